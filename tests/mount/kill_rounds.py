# SPDX-License-Identifier: Apache-2.0
"""Rounds of kills, of clients and of workers, for test_kills.py and scripts/soak.

Each returns a line that says what was seen, or fails with an AssertionError.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import victims
from bounds import bounded
from harness import PROGRAM, Home, Mount
from victims import Acks, Holdings, Places, await_holdings, nursery, private_kib, settled_holdings

import dfusepy
from dfusepy import engine, interception

HERE = Path(__file__).resolve().parent
RECLAIM_S = 20.0  # nothing is left behind for ever; the summary says how long it took
STEP_S = 120.0  # what takes a second or two on an idle machine
FIO_S = 300.0
GROWTH_KIB = 6 << 10
FIO = (
    *("fio", "--name=kills", "--ioengine=psync", "--bs=4k", "--size=8M", "--verify=crc32c"),
    *("--do_verify=1", "--verify_backlog=256", "--verify_fatal=1", "--loops=2"),
    "--verify_state_save=0",
)
PATTERNS = ("randwrite", "write", "randrw")


@contextmanager
def session_of(home: Home) -> Iterator[engine.Pool]:
    """A session of this process with the pool `demo`, whose service runs."""
    with dfusepy.connect(home.path / "pools" / "demo") as session:
        yield session


# -- clients --------------------------------------------------------------------------------------


def compile_victim(folder: Path) -> Path:
    program = folder / "victim"
    subprocess.run(["cc", "-O1", "-g", "-o", program, HERE / "victim.c"], check=True)
    return program


class ClientKills:
    """Victims in all places, killed at random moments, round after round."""

    def __init__(self, mount: Mount, folder: Path, seed: int) -> None:
        self.mount, self.folder = mount, folder
        self.rng = random.Random(seed)
        self.program = compile_victim(folder)
        self.places = Places.make(mount.path)
        self.acks = Acks(folder / "acks")
        (folder / "shared").write_bytes(victims.shared_bytes())
        self.reclaimed_s: list[float] = []
        self.kib: list[int] = []
        self.killed = 0

    def start_program(self, place: int, hooked: bool) -> subprocess.Popen[str]:
        env = dict(os.environ)
        library = interception.library_path()
        if hooked and library is not None:
            env = interception.environment(library, None)
        words = (self.mount.path, place, self.rng.randrange(2**32))
        return subprocess.Popen(
            [
                *(self.program, *map(str, words)),
                *(self.folder / "acks", self.folder / "shared"),
            ],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )

    def round(self, young: victims.Nursery) -> None:
        """Two sessions, a program under interception, one without; killed one by one."""
        sessions = [young.spawn(place, self.rng.randrange(2**32)) for place in (0, 1)]
        programs = [self.start_program(2, hooked=True), self.start_program(3, hooked=False)]
        everyone: list[int | subprocess.Popen[str]] = [*sessions, *programs]
        self.rng.shuffle(everyone)
        try:
            time.sleep(self.rng.choice((0.01, 0.05, 0.2, 0.4)) * self.rng.random())
            for victim in everyone:
                time.sleep(self.rng.uniform(0, 0.02))
                if isinstance(victim, int):
                    young.kill(victim)
                    continue
                victim.kill()
                said = victim.communicate()[1]
                assert victim.returncode == -signal.SIGKILL, f"it ended by itself: {said}"
        finally:
            for program in programs:
                program.kill()
        self.killed += len(everyone)

    def check(self, fs: engine.FileSystem) -> None:
        for place in range(victims.PLACES):
            self.places.check(fs, self.acks, place)

    def run(self, count: int) -> str:
        home = self.mount.home
        env = {"DFUSEPY_HOME": str(home.path), **home.env}
        pool = home.path / "pools" / "demo"
        with (
            session_of(home) as session,
            session.container("data") as cont,
            cont.filesystem() as fs,
            nursery(env, pool, self.folder / "acks", self.places) as young,
        ):
            worker = session.service().worker_pid
            with bounded(home, "the first round of kills", STEP_S):
                before = self.first_round(session, young)
                self.check(fs)
            while self.killed < count:
                with bounded(home, f"a round after {self.killed} kills", STEP_S):
                    self.round(young)
                    took_s = await_holdings(session, self.mount.pid, before, RECLAIM_S)
                    self.reclaimed_s.append(took_s)
                    self.check(fs)
                    self.kib.append(private_kib(worker))
            assert session.service().worker_pid == worker, "the worker died"
            assert session.service().bad_clients == 0
            with bounded(home, "caches dropped at the end", STEP_S):
                session.sync()
                session.drop_caches()
            left = session.query()
            assert left.slots_bytes <= 8 << 20, f"pinned: {left.slots_bytes} bytes"
        return self.summary()

    def first_round(self, session: engine.Pool, young: victims.Nursery) -> Holdings:
        """What is made once is there from now on."""
        sessions = session.service().sessions
        self.round(young)
        end = time.monotonic() + RECLAIM_S
        while (now := session.service().sessions) > sessions:
            assert time.monotonic() < end, f"{now - sessions} sessions of the dead are left"
            time.sleep(0.01)
        return settled_holdings(session, self.mount.pid)

    def summary(self) -> str:
        third = max(1, len(self.kib) // 3)
        grown = int(statistics.median(self.kib[-third:]) - statistics.median(self.kib[:third]))
        assert grown < GROWTH_KIB, f"the worker's memory grew by {grown} KiB: {self.kib}"
        worst, half = max(self.reclaimed_s), statistics.median(self.reclaimed_s)
        return (
            f"{self.killed} clients killed; all given back after {half * 1e3:.0f} ms, at most"
            f" {worst * 1e3:.0f} ms; memory grew by {grown} KiB"
        )


# -- workers --------------------------------------------------------------------------------------


class WorkerKills:
    """Kills the worker of the pool now and then, on a thread of its own."""

    def __init__(self, home: Home, seed: int, least_s: float = 0.05, most_s: float = 0.8) -> None:
        self.home, self.rng = home, random.Random(seed)
        self.pause_s = least_s, most_s
        self.count = 0
        self.failed = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with session_of(self.home) as session:
                while not self._stop.is_set():
                    pid = session.service().worker_pid  # waits for the one that serves next
                    if not self._stop.wait(self.rng.uniform(*self.pause_s)):
                        os.kill(pid, signal.SIGKILL)
                        self.count += 1
        except (OSError, AssertionError) as err:
            self.failed = repr(err)

    def __enter__(self) -> WorkerKills:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        with bounded(self.home, f"a worker's successor after {self.count} kills", STEP_S):
            self._thread.join()
        assert not self.failed, self.failed


def fio_while_killed(mount: Mount, seed: int, count: int, hooked: bool) -> str:
    """Runs of fio, which verifies what it wrote, until that many workers have been killed."""
    face = (PROGRAM, "run", "--") if hooked else ()
    runs = 0
    with WorkerKills(mount.home, seed) as kills:
        while kills.count < count and not kills.failed:
            rw = PATTERNS[runs % len(PATTERNS)]
            command = [*face, *FIO, f"--rw={rw}", f"--directory={mount.path}"]
            with bounded(mount.home, f"fio after {kills.count} kills, seed {seed}", FIO_S):
                _succeed([*command, f"--randseed={seed + runs}"], mount.home, f"seed {seed}")
            runs += 1
    return f"{kills.count} workers killed during {runs} runs of fio"


def _succeed(command: Sequence[str], home: Home, told: str) -> None:
    env = {**os.environ, "DFUSEPY_HOME": str(home.path), **home.env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    said = f"{told}: {done.stdout[-3000:]}{done.stderr[-3000:]}{home.logs()}"
    assert done.returncode == 0, said
    assert "error" not in done.stderr.lower(), said


class Storms:
    """Programs that change names, each in a folder of its own."""

    def __init__(self, mount: Mount, seed: int) -> None:
        self.seed = seed
        self.running = [self._start(mount.path / f"storm-{seed}-{n}", seed + n) for n in range(3)]

    def _start(self, folder: Path, seed: int) -> subprocess.Popen[str]:
        folder.mkdir()
        return subprocess.Popen(
            [sys.executable, HERE / "storm.py", folder, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def calm(self) -> bool:
        """One has ended: something is wrong."""
        return any(storm.poll() is not None for storm in self.running)

    def finish(self) -> int:
        """Lets them end and say how much they did."""
        said = [storm.communicate()[0].strip() for storm in self.running]
        states = [storm.returncode for storm in self.running]
        assert states == [0, 0, 0], f"seed {self.seed}: {states} {said}"
        return sum(map(int, said))

    def kill(self) -> None:
        for storm in self.running:
            storm.kill()


def storms_while_killed(mount: Mount, seed: int, count: int) -> str:
    """Programs that change names until that many workers have been killed."""
    storms = Storms(mount, seed)
    try:
        with (
            bounded(mount.home, f"{count} kills, seed {seed}", STEP_S + 4 * count),
            WorkerKills(mount.home, seed) as kills,
        ):
            while kills.count < count and not kills.failed and not storms.calm():
                time.sleep(0.05)
        with bounded(mount.home, f"the end of the storms, seed {seed}", STEP_S):
            changes = storms.finish()
    finally:
        storms.kill()
    return f"{kills.count} workers killed during {changes} changes of names"
