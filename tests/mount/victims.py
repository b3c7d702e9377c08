# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed: what they do until then, and what must be there afterwards.

Each has a place of its own: a file of blocks, a directory of names, and a row of acknowledgements
in memory that outlives it. A block says everywhere which file, block and version it is; a version
is acknowledged after its write has returned. After a kill the file holds of each block the version
that was acknowledged or the one after it, as a whole.

As a program it is a nursery: it has everything imported, and forks a victim for each line that
names one ("PLACE SEED"), whose process it answers; "kill PID" ends one.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dfusepy
from dfusepy import engine

BLOCK = 4096
BLOCKS = 48
PLACES = 4
SHARED_BYTES = 4 << 20
UNIT = struct.Struct("<4Q")
MASK = 0x5A5AA5A5_3C3CC3C3
CREATED, UNLINKED = BLOCKS, BLOCKS + 1  # words of a row of acknowledgements
ROW = BLOCKS + 2


def block(place: int, number: int, version: int) -> bytes:
    return UNIT.pack(place, number, version, version ^ MASK) * (BLOCK // UNIT.size)


def version_of(data: bytes, place: int, number: int) -> int:
    """The block's version; 0 for one that was never written. AssertionError: it is not whole."""
    if not any(data):
        return 0
    version: int = UNIT.unpack_from(data)[2]
    assert data == block(place, number, version), (
        f"block {number} of place {place} is no block: {data[:64].hex()}"
    )
    return version


def shared_bytes() -> bytes:
    """What the file that all victims read holds."""
    return random.Random(7).randbytes(SHARED_BYTES)


class Acks:
    """Rows of 64-bit words in a file that victims map."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(PLACES * ROW * 8)
            self._words = memoryview(mmap.mmap(file.fileno(), PLACES * ROW * 8)).cast("Q")

    def get(self, place: int, word: int) -> int:
        return self._words[place * ROW + word]

    def set(self, place: int, word: int, value: int) -> None:
        self._words[place * ROW + word] = value


@dataclass(frozen=True)
class Places:
    """Inodes: of the shared file, of each place's file and directory."""

    shared: int
    files: tuple[int, ...]
    folders: tuple[int, ...]

    @classmethod
    def make(cls, mountpoint: Path) -> Places:
        (mountpoint / "shared").write_bytes(shared_bytes())
        for place in range(PLACES):
            (mountpoint / f"file-{place}").write_bytes(bytes(BLOCKS * BLOCK))
            (mountpoint / f"names-{place}").mkdir()

        def number(name: str) -> int:
            return (mountpoint / name).stat().st_ino

        return cls(
            number("shared"),
            tuple(number(f"file-{place}") for place in range(PLACES)),
            tuple(number(f"names-{place}") for place in range(PLACES)),
        )

    def words(self) -> list[str]:
        return [str(number) for number in (self.shared, *self.files, *self.folders)]

    @classmethod
    def parse(cls, words: list[str]) -> Places:
        numbers = [int(word) for word in words]
        return cls(numbers[0], tuple(numbers[1 : PLACES + 1]), tuple(numbers[PLACES + 1 :]))

    def check(self, fs: engine.FileSystem, acks: Acks, place: int) -> None:
        """Holds what a place has against what was acknowledged; the next goes on from there."""
        data = bytes(fs.read(engine.Inode(self.files[place]), 0, BLOCKS * BLOCK))
        for number in range(BLOCKS):
            version = version_of(data[number * BLOCK :][:BLOCK], place, number)
            told = acks.get(place, number)
            assert version in (told, told + 1), (
                f"place {place}, block {number}: version {version}, but {told} was acknowledged"
            )
            acks.set(place, number, version)
        self._check_names(fs, acks, place)

    def _check_names(self, fs: engine.FileSystem, acks: Acks, place: int) -> None:
        created, gone = acks.get(place, CREATED), acks.get(place, UNLINKED)
        names = {int(entry.name) for entry in listing(fs, engine.Inode(self.folders[place]))}
        most = set(range(gone + 1, created + 2))
        least = set(range(gone + 2, created + 1))
        assert least <= names <= most, f"place {place}: {names}, created {created}, gone {gone}"
        acks.set(place, CREATED, max([created, *names]))
        acks.set(place, UNLINKED, gone if gone + 1 in names or gone == created else gone + 1)


def listing(fs: engine.FileSystem, folder: engine.Inode) -> Iterator[engine.DirEntry]:
    cookie = 0
    while entries := fs.readdir(folder, cookie):
        yield from entries
        cookie = entries[-1].cookie


# -- a victim -------------------------------------------------------------------------------------


class Victim:
    """A Python session that does a bit of everything, for ever, on two threads."""

    def __init__(self, pool: Path, place: int, seed: int, places: Places, acks: Acks) -> None:
        self.rng = random.Random(seed)
        self.place, self.places, self.acks = place, places, acks
        self.session = dfusepy.connect(pool)
        self.container = self.session.container("data")
        self.fs = self.container.filesystem()
        self.mine = engine.Inode(places.files[place])
        self.folder = engine.Inode(places.folders[place])
        self.shared = engine.Inode(places.shared)
        self.expected = shared_bytes()
        self.lent: list[tuple[int, memoryview]] = []

    def write(self) -> None:
        number = self.rng.randrange(BLOCKS)
        version = self.acks.get(self.place, number) + 1
        self.fs.write(self.mine, number * BLOCK, block(self.place, number, version))
        self.acks.set(self.place, number, version)

    def read(self) -> None:
        number = self.rng.randrange(BLOCKS)
        data = bytes(self.fs.read(self.mine, number * BLOCK, BLOCK))
        assert version_of(data, self.place, number) == self.acks.get(self.place, number)

    def borrow(self) -> None:
        off = self.rng.randrange(0, SHARED_BYTES - (256 << 10))
        view = memoryview(self.fs.read(self.shared, off, self.rng.randrange(20 << 10, 256 << 10)))
        self.lent.append((off, view))
        if len(self.lent) > 24:
            off, view = self.lent.pop(self.rng.randrange(24))
            assert view == self.expected[off : off + len(view)]

    def names(self) -> None:
        created = self.acks.get(self.place, CREATED) + 1
        self.fs.mknod(self.folder, b"%d" % created, 0o100644)
        self.acks.set(self.place, CREATED, created)
        gone = self.acks.get(self.place, UNLINKED) + 1
        if gone + 5 < created:
            self.fs.unlink(self.folder, b"%d" % gone)
            self.acks.set(self.place, UNLINKED, gone)

    def sync(self) -> None:
        if self.rng.randrange(20) == 0:
            self.fs.fsync(self.mine)

    def readers(self) -> None:
        rng = random.Random(self.rng.random())
        while True:
            off = rng.randrange(SHARED_BYTES - BLOCK)
            data = self.fs.read(self.shared, off, BLOCK)
            if data != self.expected[off : off + BLOCK]:
                os._exit(1)

    def close(self) -> None:
        """The end of one that is not killed."""
        self.lent.clear()
        for handle in (self.fs, self.container, self.session):
            handle.close()

    def run(self) -> None:
        threading.Thread(target=self.readers, daemon=True).start()
        steps = (self.write, self.read, self.borrow, self.names, self.sync)
        while True:
            self.rng.choice(steps)()


class Nursery:
    """The process that forks Python victims."""

    def __init__(self, env: dict[str, str], pool: Path, acks: Path, places: Places) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(pool), str(acks), *places.words()],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its victims end with it
        )

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def spawn(self, place: int, seed: int) -> int:
        return int(self._ask(f"{place} {seed}"))

    def kill(self, pid: int) -> None:
        status = int(self._ask(f"kill {pid}"))
        assert os.WIFSIGNALED(status), f"a victim ended by itself: {status}"

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # any victim left holds its pipes open
        self._process.communicate()


@contextmanager
def nursery(env: dict[str, str], pool: Path, acks: Path, places: Places) -> Iterator[Nursery]:
    made = Nursery(env, pool, acks, places)
    try:
        yield made
    finally:
        made.close()


def _serve(pool: Path, acks: Acks, places: Places) -> None:
    for line in sys.stdin:
        words = line.split()
        if words[0] == "kill":
            os.kill(int(words[1]), signal.SIGKILL)
            answer = os.waitpid(int(words[1]), 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                try:
                    Victim(pool, int(words[0]), int(words[1]), places, acks).run()
                except BaseException:
                    print(f"victim in place {words[0]}:", file=sys.stderr)
                    traceback.print_exc()
                    os._exit(1)
        print(answer, flush=True)


# -- what the worker has --------------------------------------------------------------------------


@dataclass(frozen=True)
class Holdings:
    """What a worker holds for its clients: it must be the same when they are gone. The mount has a
    channel for each thread that it needs at the moment; what belongs to a channel (two mappings, a
    socket) is left out, channels are counted against those who live."""

    sessions: int
    loans: int
    loan_bytes: int
    fds: tuple[tuple[str, int], ...]
    maps: int
    surplus: int  # channels that no thread can have

    @classmethod
    def of(cls, session: engine.Pool, mount_pid: int) -> Holdings:
        info = session.service()
        kinds: dict[str, int] = {"socket": -info.channels}
        folder = f"/proc/{info.worker_pid}/fd"
        for name in os.listdir(folder):
            try:
                kind = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if "dfusepy-arena" not in kind and "io_uring" not in kind:  # the engine's, and bounded
                kind = kind.split(":[")[0] if kind[:4] in ("sock", "pipe") else Path(kind).name
                kinds[kind] = kinds.get(kind, 0) + 1
        maps = Path(f"/proc/{info.worker_pid}/maps").read_text()
        threads = len(os.listdir(f"/proc/{mount_pid}/task")) + 1
        return cls(
            info.sessions,
            info.loans,
            info.loan_bytes,
            tuple(sorted(kinds.items())),
            maps.count("dfusepy-push") + maps.count("dfusepy-reply") - 2 * info.channels,
            max(0, info.channels - threads),
        )


def await_holdings(
    session: engine.Pool, mount_pid: int, wanted: Holdings, timeout_s: float
) -> float:
    """Seconds until the worker holds no more than that."""
    start = time.monotonic()
    while (now := Holdings.of(session, mount_pid)) != wanted:
        assert time.monotonic() - start < timeout_s, f"it still holds {now}, not {wanted}"
        select.select([], [], [], 0.003)
    return time.monotonic() - start


def settled_holdings(session: engine.Pool, mount_pid: int) -> Holdings:
    """What the worker holds when it has stayed the same for a while."""
    end, same_since = time.monotonic() + 60, time.monotonic()
    was = Holdings.of(session, mount_pid)
    while time.monotonic() - same_since < 0.5:
        assert time.monotonic() < end, f"what it holds does not settle: {was}"
        time.sleep(0.02)
        now = Holdings.of(session, mount_pid)
        if now != was:
            was, same_since = now, time.monotonic()
    return was


def private_kib(pid: int) -> int:
    """Memory of a process that is no cache and no file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has ended")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Acks(Path(sys.argv[2])), Places.parse(sys.argv[3:]))
