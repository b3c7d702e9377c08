# SPDX-License-Identifier: Apache-2.0
"""A program that changes names as fast as it can and knows what each call must say.

    python storm.py FOLDER SEED

It goes on until its standard input ends, then holds the tree against its own account. Exit status
0: every call did what it should, once; 1: it says what did not.
"""

from __future__ import annotations

import errno
import os
import random
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

NAMES = 40


class Wrong(Exception):
    pass


class Storm:
    """The account: name to ("f", number), ("d",) or ("l", number, target); each number once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.names: dict[str, tuple[object, ...]] = {}
        self.files = 0
        self.calls = 0
        self.last: deque[str] = deque(maxlen=200)  # calls, to be told where one is wrong

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def expect(self, wanted: int, call: Callable[[], object], what: str) -> bool:
        """Makes a call that must give that errno; True: it did its work."""
        self.calls += 1
        got = 0
        start = time.monotonic()
        try:
            call()
        except OSError as err:
            got = err.errno or -1
        told = errno.errorcode.get(got, str(got))
        took_ms = (time.monotonic() - start) * 1e3  # long: a worker was lost meanwhile
        self.last.append(f"{self.calls} {what}: {told} after {took_ms:.0f} ms")
        if got != wanted:
            wrong = f"call {self.calls}, {what}: {told}, not {errno.errorcode.get(wanted, 0)}"
            raise Wrong("\n".join([wrong, *self.history(what.split()[1:]), *self.present()]))
        return got == 0

    def history(self, names: list[str]) -> list[str]:
        """The last calls with one of these names, and those that took long."""
        return [
            told
            for told in self.last
            if set(names) & set(told.partition(":")[0].split()) or int(told.split()[-2]) > 100
        ]

    def present(self) -> list[str]:
        """What there is and what there should be, where they differ."""
        found = {
            entry.name: entry.stat(follow_symlinks=False).st_ino
            for entry in os.scandir(self.folder)
        }
        differ = found.keys() ^ self.names.keys()
        return [f"{name}: inode {found.get(name)}, not {self.names.get(name)}" for name in differ]

    def pick(self) -> str:
        return f"n{self.rng.randrange(NAMES)}"

    def create(self, name: str, _other: str) -> None:
        def call() -> None:
            fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                os.write(fd, b"%d" % self.files)
            finally:
                os.close(fd)

        if self.expect(errno.EEXIST if name in self.names else 0, call, f"create {name}"):
            self.names[name] = ("f", self.files)
            self.files += 1

    def mkdir(self, name: str, _other: str) -> None:
        wanted = errno.EEXIST if name in self.names else 0
        if self.expect(wanted, lambda: os.mkdir(self.path(name)), f"mkdir {name}"):
            self.names[name] = ("d",)

    def symlink(self, name: str, other: str) -> None:
        wanted = errno.EEXIST if name in self.names else 0
        if self.expect(wanted, lambda: os.symlink(other, self.path(name)), f"symlink {name}"):
            self.names[name] = ("l", self.files, other)
            self.files += 1

    def unlink(self, name: str, _other: str) -> None:
        is_ = self.names.get(name)
        wanted = errno.ENOENT if is_ is None else errno.EISDIR if is_ == ("d",) else 0
        if self.expect(wanted, lambda: os.unlink(self.path(name)), f"unlink {name}"):
            del self.names[name]

    def rmdir(self, name: str, _other: str) -> None:
        is_ = self.names.get(name)
        wanted = errno.ENOENT if is_ is None else 0 if is_ == ("d",) else errno.ENOTDIR
        if self.expect(wanted, lambda: os.rmdir(self.path(name)), f"rmdir {name}"):
            del self.names[name]

    def link(self, name: str, other: str) -> None:
        is_ = self.names.get(name)
        wanted = 0
        if is_ is None:
            wanted = errno.ENOENT
        elif other in self.names:
            wanted = errno.EEXIST
        elif is_ == ("d",):
            wanted = errno.EPERM

        def call() -> None:
            os.link(self.path(name), self.path(other), follow_symlinks=False)

        if self.expect(wanted, call, f"link {name} {other}") and is_ is not None:
            self.names[other] = is_

    def rename(self, name: str, other: str) -> None:
        is_, over = self.names.get(name), self.names.get(other)
        wanted = 0
        if is_ is None:
            wanted = errno.ENOENT
        elif name != other and over is not None and (is_ == ("d",)) != (over == ("d",)):
            wanted = errno.ENOTDIR if is_ == ("d",) else errno.EISDIR

        def call() -> None:
            os.rename(self.path(name), self.path(other))

        # Two names of one file: nothing happens, both stay.
        same = name == other or (is_ == over and is_ != ("d",))
        if self.expect(wanted, call, f"rename {name} {other}") and not same:
            self.names[other] = self.names.pop(name)

    def step(self) -> None:
        steps = (
            *(self.create, self.create, self.mkdir, self.symlink, self.unlink, self.unlink),
            *(self.rmdir, self.link, self.rename, self.rename),
        )
        self.rng.choice(steps)(self.pick(), self.pick())

    def check(self) -> None:
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(self.folder)}
        if found.keys() != self.names.keys():
            raise Wrong(f"names differ: {found.keys() ^ self.names.keys()}")
        inodes: dict[int, tuple[object, ...]] = {}
        for name, is_ in self.names.items():
            st = found[name]
            kind = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}[
                stat.S_IFMT(st.st_mode)
            ]
            if kind != is_[0] or (kind != "d" and inodes.setdefault(st.st_ino, is_) != is_):
                raise Wrong(f"{name} is {kind} {st.st_ino}, not {is_}")
            if kind == "f":
                links = sum(other == is_ for other in self.names.values())
                text = Path(self.path(name)).read_text()
                if st.st_nlink != links or text != str(is_[1]):
                    raise Wrong(f"{name} has {st.st_nlink} links and says {text}; {links}, {is_}")
            if kind == "l" and os.readlink(self.path(name)) != is_[2]:
                raise Wrong(f"{name} leads elsewhere than {is_[2]}")


def main() -> int:
    storm = Storm(Path(sys.argv[1]), int(sys.argv[2]))
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(20):
                storm.step()
        storm.check()
    except Wrong as err:
        print(f"{storm.folder}: {err}")
        return 1
    print(storm.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
