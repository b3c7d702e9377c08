# SPDX-License-Identifier: Apache-2.0
"""A service with hostile clients, and one that behaves beside them."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import victims
from bounds import bounded
from harness import Home, Mount
from victims import Acks, Places

import dfusepy
from dfusepy import engine

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "engine"
NOBODY = 65534
SECRET = b"\x9d\x11no eye\xfe\xc3\x07bytes"
API, MOUNT, IL = 0, 1, 2
STEP_S = 120.0  # what takes a second or two on an idle machine


class Neighbour:
    """A session that reads, writes, borrows and creates, checks all of it, and times each step."""

    def __init__(self, home: Home, places: Places, acks: Acks, seed: int) -> None:
        self.home, self.places, self.acks, self.seed = home, places, acks, seed
        self.took_s: list[float] = []
        self.failed = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            pool = self.home.path / "pools" / "demo"
            victim = victims.Victim(pool, 0, self.seed, self.places, self.acks)
            rng = random.Random(self.seed)
            while not self._stop.wait(0.002):
                step = rng.choice((victim.write, victim.read, victim.borrow, victim.names))
                start = time.monotonic()
                step()
                self.took_s.append(time.monotonic() - start)
            victim.close()
        except (OSError, AssertionError) as err:
            self.failed = repr(err)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        with bounded(self.home, f"the neighbour's step {len(self.took_s) + 1}", STEP_S):
            self._thread.join()
        assert not self.failed, self.failed


class Siege:
    """Two containers of the pool `demo`: `data`, which has a secret that NOBODY may not read and a
    file that all may, and `prey`, which clients that are root may do with as they like."""

    def __init__(self, mount: Mount, folder: Path, seed: int) -> None:
        self.mount, self.folder, self.seed = mount, folder, seed
        self.program = folder / "hostile"
        command = ["cc", "-O1", "-g", "-pthread", "-I", ENGINE, "-I", ENGINE / "include", "-o"]
        subprocess.run([*command, self.program, HERE / "hostile.c"], check=True)
        self.pool = mount.home.path / "pools" / "demo"
        self.secret = mount.path / "secret"
        self.secret.write_bytes(SECRET * (4 << 16))
        self.secret.chmod(0o600)
        self.places = Places.make(mount.path)
        self.inos = [self.secret.stat().st_ino, self.places.shared, self.places.files[0]]
        mount.home.run("container", "create", "demo/prey")
        with (
            dfusepy.connect(self.pool) as session,
            session.container("prey") as cont,
            cont.filesystem() as fs,
        ):
            made = [fs.mknod(engine.ROOT, b"%d" % number, 0o100666) for number in range(4)]
            for attr in made:
                fs.write(attr.ino, 0, os.urandom(1 << 20))
        self.prey = [int(attr.ino) for attr in made]

    def start(
        self, role: int, uid: int, seconds: float, number: int, secret: bytes = b""
    ) -> subprocess.Popen[str]:
        [record] = self.mount.home.services()
        path = Path(record.socket)
        if uid == NOBODY:
            secret = SECRET
        looks = bool(secret) or role == MOUNT
        inos, label = (self.inos, "data") if looks else (self.prey, "prey")
        words: Sequence[object] = (
            *(path.parent, path.name, role, uid, self.seed + number, int(seconds), label),
            *(secret.hex() or "-", *inos),
        )
        return subprocess.Popen(
            [str(self.program), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, attackers: Sequence[tuple[int, int]], seconds: float) -> tuple[str, list[float]]:
        """Attackers are (role, uid). Returns a line that says what was seen, and how long each of
        the neighbour's steps took."""
        acks = Acks(self.folder / "acks")
        with (
            dfusepy.connect(self.pool) as session,
            session.container("data") as cont,
            session.container("prey") as prey,
            prey.filesystem() as prey_fs,
        ):
            for number in range(len(self.prey)):  # only what somebody holds has a number
                prey_fs.lookup(engine.ROOT, b"%d" % number, engine.REF)
            before = session.service()
            with Neighbour(self.mount.home, self.places, acks, self.seed) as neighbour:
                running = [
                    self.start(role, uid, seconds, number)
                    for number, (role, uid) in enumerate(attackers)
                ]
                with bounded(self.mount.home, f"attackers, seed {self.seed}", seconds + STEP_S):
                    said = [self._await(process) for process in running]
            now = session.service()
            assert now.worker_pid == before.worker_pid, self.mount.home.logs()
            self._settled(session, before)
            with cont.filesystem() as fs:
                self.places.check(fs, acks, 0)
            shared = (self.mount.path / "shared").read_bytes()
            assert shared == victims.shared_bytes()
            assert self.secret.read_bytes() == SECRET * (4 << 16)
        took = neighbour.took_s
        line = (
            f"{'; '.join(said)}; {now.bad_clients - before.bad_clients} sessions ended for what"
            f" they wrote; {len(took)} steps beside them, half within"
            f" {statistics.median(took) * 1e3:.2f} ms, all within {max(took) * 1e3:.0f} ms"
        )
        return line, took

    def would_see(self) -> None:
        """What the attackers look for secrets with finds what they may read."""
        known = victims.shared_bytes()[1 << 17 :][: len(SECRET)]
        with (
            bounded(self.mount.home, "one who may see", STEP_S),
            self.start(IL, 0, STEP_S, 0, known) as process,
        ):
            err = process.communicate()[1]
        assert process.returncode == 1
        assert "the secret is in memory" in err

    def _await(self, process: subprocess.Popen[str]) -> str:
        while process.poll() is None:  # keeps the secret in memory
            assert self.secret.read_bytes()[:16] == SECRET
            time.sleep(0.2)
        out, err = process.communicate()
        assert process.returncode == 0, f"seed {self.seed}: {err}{self.mount.home.logs()}"
        return out.strip()

    def _settled(self, session: engine.Pool, before: engine.ServiceInfo) -> None:
        """Nothing of theirs is left in the worker."""
        end = time.monotonic() + STEP_S
        while True:
            now = session.service()
            if now.sessions <= before.sessions and now.mounts == before.mounts and now.loans == 0:
                return
            assert time.monotonic() < end, f"left behind: {now}"
            time.sleep(0.05)
