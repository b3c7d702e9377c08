# SPDX-License-Identifier: Apache-2.0
"""Programs that change and map the same files through sessions and two mounts, and know what each
of them must see.

    python cohere_storm.py session SEED FIRST POOL SOCKET MOUNT READER INODE...
    python cohere_storm.py mapper SEED FIRST MOUNT READER
    python cohere_storm.py reader SEED FIRST MOUNT

Each of a program's THREADS is an actor; every page of the files FOLDER/0.. belongs to one, who
writes rising numbers into it: through a session, or into a shared map of the mount. An actor's
number must be seen through both mounts once its change has been acknowledged; nobody may ever see
a number fall. A program goes on until its standard input ends, then tells in JSON what it has
written, how long its changes waited, and what was wrong.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from dfusepy import engine

PAGE = mmap.PAGESIZE
FILES, PAGES = 4, 48
THREADS = 3
ACTORS = 4 * THREADS  # two programs with sessions, two that map
SLOW_S = 1.0
FOLDER = "storm"
BEGINS = "begins"  # a program's first line: the worker may die from now on


@dataclass
class Told:
    """What a program tells at its end."""

    longest_s: float = 0
    slow: list[float] = field(default_factory=list)  # waits of more than SLOW_S
    changes: int = 0
    looks: int = 0
    last: dict[str, int] = field(default_factory=dict)  # "FILE PAGE" -> the last number
    wrong: list[str] = field(default_factory=list)

    def waited(self, since: float) -> None:
        took = time.monotonic() - since
        self.longest_s = max(self.longest_s, took)
        if took > SLOW_S:
            self.slow.append(round(took, 2))
        self.changes += 1


def pages_of(actor: int) -> range:
    return range(actor, PAGES, ACTORS)


def number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def open_all(mount: str, flags: int) -> list[int]:
    return [os.open(f"{mount}/{FOLDER}/{file}", flags) for file in range(FILES)]


class Actor:
    """One thread of a program: `step` until it is told to stop."""

    def __init__(self, told: Told, seed: int, actor: int) -> None:
        self.told = told
        self.actor = actor
        self.rng = random.Random(seed * ACTORS + actor)
        self.next = 1

    def pick(self) -> tuple[int, int]:
        return self.rng.randrange(FILES), self.rng.choice(pages_of(self.actor))

    def check(self, fd: int, where: tuple[int, int], wanted: int, mount: str) -> None:
        """Its own page, of which it alone knows what is in it, at once."""
        self.told.looks += 1
        got = number(os.pread(fd, 8, where[1] * PAGE))
        if got != wanted:
            self.told.wrong.append(f"{where} on {mount} is {got}, not {wanted}")

    def step(self) -> None:
        raise NotImplementedError


class Writer(Actor):
    """Changes its pages through a session."""

    def __init__(
        self, told: Told, seed: int, actor: int, fs: engine.FileSystem, words: list[str]
    ) -> None:
        super().__init__(told, seed, actor)
        self.fs = fs
        self.inodes = [engine.Inode(int(word)) for word in words[2:]]
        self.mounts = {mount: open_all(mount, os.O_RDONLY) for mount in words[:2]}

    def step(self) -> None:
        file, page = self.pick()
        data = self.next.to_bytes(8, "little") * self.rng.choice((1, PAGE // 8))
        began = time.monotonic()
        self.fs.write(self.inodes[file], page * PAGE, data)
        self.told.waited(began)
        self.told.last[f"{file} {page}"] = self.next
        if self.rng.random() < 0.3:
            for mount, fds in self.mounts.items():
                self.check(fds[file], (file, page), self.next, mount)
        self.next += 1


class Mapper(Actor):
    """Changes its pages in shared maps of the mount that may be written."""

    def __init__(self, told: Told, seed: int, actor: int, mount: str, reader: str) -> None:
        super().__init__(told, seed, actor)
        self.maps = [mmap.mmap(fd, PAGES * PAGE) for fd in open_all(mount, os.O_RDWR)]
        self.reader = reader
        self.fds = open_all(reader, os.O_RDONLY)

    def step(self) -> None:
        file, page = self.pick()
        self.maps[file][page * PAGE : page * PAGE + 8] = self.next.to_bytes(8, "little")
        self.told.last[f"{file} {page}"] = self.next
        if self.rng.random() < 0.05:
            began = time.monotonic()
            self.maps[file].flush(page * PAGE, PAGE)
            self.told.waited(began)
            self.check(self.fds[file], (file, page), self.next, self.reader)
        self.next += 1
        time.sleep(self.rng.random() * 0.002)


class Reader(Actor):
    """Looks at everybody's pages, mapped or read."""

    def __init__(self, told: Told, seed: int, actor: int, mount: str) -> None:
        super().__init__(told, seed, actor)
        self.mount = mount
        self.fds = open_all(mount, os.O_RDONLY)
        self.maps = [mmap.mmap(fd, PAGES * PAGE, prot=mmap.PROT_READ) for fd in self.fds]
        self.seen: dict[tuple[int, int], int] = {}

    def step(self) -> None:
        where = file, page = self.rng.randrange(FILES), self.rng.randrange(PAGES)
        if self.rng.random() < 0.5:
            got = number(self.maps[file][page * PAGE : page * PAGE + 8])
        else:
            got = number(os.pread(self.fds[file], 8, page * PAGE))
        if got < self.seen.get(where, 0):
            self.told.wrong.append(f"{where} on {self.mount} fell: {self.seen[where]}, {got}")
        self.seen[where] = got
        self.told.looks += 1
        time.sleep(self.rng.random() * 0.002)


def run(make: Callable[[Told, int], Actor], first: int) -> None:
    """Says that it begins; runs the actors, each with its own account, until the standard input
    ends."""
    print(BEGINS, flush=True)
    stop = threading.Event()
    told = [Told() for _ in range(THREADS)]

    def act(at: int) -> None:
        try:
            actor = make(told[at], first + at)
            while not stop.is_set():
                actor.step()
        except OSError as err:
            told[at].wrong.append(f"actor {first + at}: {err!r}")

    threads = [threading.Thread(target=act, args=(at,)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps([asdict(one) for one in told]))


def main() -> None:
    role, seed, first, *words = sys.argv[1:]
    with ExitStack() as stack:
        if role == "session":
            pool = stack.enter_context(engine.Pool.open(words[0], socket=words[1]))
            fs = stack.enter_context(stack.enter_context(pool.container("data")).filesystem())
            run(lambda told, at: Writer(told, int(seed), at, fs, words[2:]), int(first))
        elif role == "mapper":
            run(lambda told, at: Mapper(told, int(seed), at, words[0], words[1]), int(first))
        else:
            run(lambda told, at: Reader(told, int(seed), at, words[0]), int(first))


if __name__ == "__main__":
    main()
