# SPDX-License-Identifier: Apache-2.0
"""A random workload that remembers what it did, and the oracle of what a crash may leave of it.

The workload runs on a mount until a call fails because the mount was killed. `check` then holds the
tree found after recovery against the log of operations:

(a) names and attributes are a prefix of the executed operations that includes everything before any
    completed fsync;
(b) each file's size and contents are one moment of that file, no older than its last fsync;
(c) a file renamed over another one holds at least what was written before the rename;
(d) nothing older than the commit interval (and some grace) is lost.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MOUNT_IS_GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV}
MAX_FILE_BYTES = 96 * 1024
MAX_NAMES = 150
PAGE_BYTES = 4096

# A name's state: ("d", mode), ("f", mode, inode) or ("l", target); None: there is no such name.
Entry = tuple[object, ...] | None


@dataclass
class Edit:
    """One change of a file's data: a write of `size` bytes made from `seed`, or a truncation."""

    op: int
    offset: int
    size: int
    seed: int | None = None

    def data(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size)


@dataclass
class FileHistory:
    size: int = 0
    edits: list[Edit] = field(default_factory=list)
    synced_op: int = -1
    renamed_over: list[int] = field(default_factory=list)

    def note(self, edit: Edit) -> None:
        self.edits.append(edit)
        self.size = edit.offset if edit.seed is None else max(self.size, edit.offset + edit.size)

    def last_edit(self, op: int = sys.maxsize) -> int:
        """The operation that made the data which the file had after operation `op`."""
        return max((edit.op for edit in self.edits if edit.op <= op), default=-1)

    def moments(self, least: int) -> Iterator[bytes]:
        """What the file held from the edit of operation `least` on. The kernel may cut a write at
        page boundaries: what it left after each part is a moment too."""
        data = bytearray()
        if least < 0:
            yield bytes(data)
        for edit in self.edits:
            if edit.seed is not None:
                yield from self.write(data, edit, edit.op >= least)
            else:
                del data[edit.offset :]
                data.extend(bytes(edit.offset - len(data)))
            if edit.op >= least:
                yield bytes(data)

    def write(self, data: bytearray, edit: Edit, tell: bool) -> Iterator[bytes]:
        """Carries out a write part by part."""
        content = edit.data()
        done = 0
        if len(data) < edit.offset:
            data.extend(bytes(edit.offset - len(data)))
        while done < edit.size:
            at = edit.offset + done
            part = min(PAGE_BYTES - at % PAGE_BYTES, edit.size - done)
            data[at : at + part] = content[done : done + part]
            done += part
            if tell and done < edit.size:
                yield bytes(data)


@dataclass
class Op:
    """One executed operation: the names that it changed, as they were and as they became."""

    text: str
    finished: float
    changes: dict[str, Entry]


class Workload:
    """Random operations under `root`, remembered one by one."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.ops: list[Op] = []
        self.tree: dict[str, Entry] = {}
        self.files: dict[int, FileHistory] = {}
        self.synced_op = -1
        self.counter = 0

    def run(self) -> None:
        """Works until the mount goes away."""
        actions = (
            [self.create] * 5
            + [self.write] * 8
            + [self.overwrite] * 3
            + [self.truncate] * 2
            + [self.fsync] * 2
            + [self.rename] * 3
            + [self.replace] * 3
            + [self.unlink] * 2
            + [self.mkdir]
            + [self.rmdir]
            + [self.symlink]
            + [self.chmod] * 2
            + [self.link]
            + [self.fsync_dir]
        )
        while True:
            crowded = len(self.tree) > MAX_NAMES
            try:
                (
                    self.rng.choice([self.unlink, self.rmdir])
                    if crowded
                    else self.rng.choice(actions)
                )()
            except OSError as exc:
                if exc.errno in MOUNT_IS_GONE:
                    return
                raise

    # -- choosing -------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.root / name

    def names(self, kind: str) -> list[str]:
        return [name for name, entry in self.tree.items() if entry and entry[0] == kind]

    def some(self, kind: str) -> str | None:
        names = self.names(kind)
        return self.rng.choice(names) if names else None

    def new_name(self) -> str:
        self.counter += 1
        parent = self.some("d") if self.rng.random() < 0.7 else None
        name = f"n{self.counter}"
        return f"{parent}/{name}" if parent else name

    def history(self, name: str) -> FileHistory:
        entry = self.tree[name]
        assert entry is not None
        inode = entry[2]
        assert isinstance(inode, int)
        return self.files[inode]

    # -- remembering -----------------------------------------------------------------------------

    def begin(self, text: str, changes: dict[str, Entry]) -> None:
        """Logs the operation before it runs: a crash in the middle may leave it done or not."""
        self.ops.append(Op(text, float("inf"), changes))

    def end(self) -> None:
        op = self.ops[-1]
        op.finished = time.monotonic()
        for name, entry in op.changes.items():
            if entry is None:
                self.tree.pop(name, None)
            else:
                self.tree[name] = entry

    @property
    def now(self) -> int:
        """The number of the operation that has begun last."""
        return len(self.ops) - 1

    # -- operations -------------------------------------------------------------------------------

    def create(self) -> None:
        name = self.new_name()
        # The inode number is known only afterwards: -1 stands for "whatever file is found there".
        self.begin(f"create {name}", {name: ("f", 0o644, -1)})
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            inode = os.fstat(fd).st_ino
        finally:
            os.close(fd)
        self.ops[-1].changes = {name: ("f", 0o644, inode)}
        self.files[inode] = FileHistory()
        self.end()

    def put(self, name: str, offset: int) -> None:
        size = self.rng.choice([1, 100, 4095, 4096, 4097, 20000, 60000])
        self.begin(f"write {name} {offset}+{size}", {})
        edit = Edit(self.now, offset, size, seed=self.now)
        self.history(name).note(edit)
        fd = os.open(self.path(name), os.O_WRONLY)
        try:
            if os.pwrite(fd, edit.data(), offset) < size:
                raise OSError(errno.ENOTCONN, "the mount went away between two parts of a write")
        finally:
            os.close(fd)
        self.end()

    def write(self) -> None:
        name = self.some("f")
        if name is not None and self.history(name).size < MAX_FILE_BYTES:
            self.put(name, self.history(name).size)

    def overwrite(self) -> None:
        name = self.some("f")
        if name is not None:
            self.put(name, self.rng.randrange(MAX_FILE_BYTES // 2))

    def truncate(self) -> None:
        name = self.some("f")
        if name is None:
            return
        history = self.history(name)
        size = self.rng.choice([0, 1, 4096, history.size // 2, 70000])
        self.begin(f"truncate {name} {size}", {})
        history.note(Edit(self.now, size, 0))
        os.truncate(self.path(name), size)
        self.end()

    def fsync(self) -> None:
        name = self.some("f")
        if name is None:
            return
        history = self.history(name)
        self.begin(f"fsync {name}", {})
        fd = os.open(self.path(name), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.end()
        history.synced_op = history.last_edit()
        self.synced_op = self.now

    def fsync_dir(self) -> None:
        self.begin("fsync of the root", {})
        fd = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.end()
        self.synced_op = self.now

    def rename(self) -> None:
        name = self.some("f")
        if name is None:
            return
        new = self.new_name()
        self.begin(f"rename {name} {new}", {name: None, new: self.tree[name]})
        os.rename(self.path(name), self.path(new))
        self.end()

    def replace(self) -> None:
        """Renames a file over another one, as editors and databases do to save."""
        name, other = self.some("f"), self.some("f")
        if name is None or other is None or self.tree[name] == self.tree[other]:
            return
        history = self.history(name)
        self.begin(f"replace {other} by {name}", {name: None, other: self.tree[name]})
        os.replace(self.path(name), self.path(other))
        history.renamed_over.append(self.now)
        self.end()

    def unlink(self) -> None:
        name = self.some(self.rng.choice("fffl"))
        if name is None:
            return
        self.begin(f"unlink {name}", {name: None})
        os.unlink(self.path(name))
        self.end()

    def mkdir(self) -> None:
        name = self.new_name()
        self.begin(f"mkdir {name}", {name: ("d", 0o755)})
        os.mkdir(self.path(name), 0o755)
        self.end()

    def rmdir(self) -> None:
        name = self.some("d")
        if name is None or any(other.startswith(name + "/") for other in self.tree):
            return
        self.begin(f"rmdir {name}", {name: None})
        os.rmdir(self.path(name))
        self.end()

    def symlink(self) -> None:
        name = self.new_name()
        target = f"target-{self.counter}"
        self.begin(f"symlink {name}", {name: ("l", target)})
        os.symlink(target, self.path(name))
        self.end()

    def link(self) -> None:
        name = self.some("f")
        if name is None:
            return
        new = self.new_name()
        self.begin(f"link {name} {new}", {new: self.tree[name]})
        os.link(self.path(name), self.path(new))
        self.end()

    def chmod(self) -> None:
        name = self.some("f")
        if name is None:
            return
        mode = self.rng.choice([0o600, 0o640, 0o755])
        inode = self.tree[name][2]  # type: ignore[index]
        same = [n for n, e in self.tree.items() if e and e[0] == "f" and e[2] == inode]
        self.begin(f"chmod {name} {mode:o}", dict.fromkeys(same, ("f", mode, inode)))
        os.chmod(self.path(name), mode)
        self.end()


def observe(root: Path) -> tuple[dict[str, Entry], dict[int, bytes]]:
    """The tree under `root` as Workload remembers trees, and each file's data."""
    names: dict[str, Entry] = {}
    data: dict[int, bytes] = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                status = entry.stat(follow_symlinks=False)
                mode = stat.S_IMODE(status.st_mode)
                if stat.S_ISDIR(status.st_mode):
                    names[name] = ("d", mode)
                    pending.append(name)
                elif stat.S_ISLNK(status.st_mode):
                    names[name] = ("l", os.readlink(entry.path))
                else:
                    names[name] = ("f", mode, status.st_ino)
                    content = Path(entry.path).read_bytes()
                    assert len(content) == status.st_size
                    data[status.st_ino] = content
    return names, data


def same(found: Entry, expected: Entry) -> bool:
    if found and expected and found[0] == expected[0] == "f" and expected[2] == -1:
        return found[:2] == expected[:2]
    return found == expected


def matching_prefixes(ops: list[Op], found: dict[str, Entry]) -> list[int]:
    """Numbers k for which the tree found is the tree after operations 0 to k (-1: before all)."""
    tree: dict[str, Entry] = {}
    wrong = set(found)
    matches = [] if wrong else [-1]
    for number, op in enumerate(ops):
        for name, entry in op.changes.items():
            tree[name] = entry
            if same(found.get(name), entry):
                wrong.discard(name)
            else:
                wrong.add(name)
        if not wrong:
            matches.append(number)
    return matches


def check(
    work: Workload,
    found: dict[str, Entry],
    data: dict[int, bytes],
    killed_at: float,
    grace_s: float,
) -> None:
    """Asserts the four promises for what was found after the crash."""
    old_ops = [number for number, op in enumerate(work.ops) if op.finished < killed_at - grace_s]
    last_old_op = old_ops[-1] if old_ops else -1
    oldest_allowed = max(work.synced_op, last_old_op)
    matching = matching_prefixes(work.ops, found)
    prefixes = [number for number in matching if number >= oldest_allowed]
    assert prefixes, (
        f"(a) the names are no prefix of the {len(work.ops)} operations that includes number "
        f"{oldest_allowed}; they match {matching[-3:]}"
    )
    for inode, content in data.items():
        history = work.files.get(inode)
        if history is None:  # created by the operation that the crash interrupted
            assert content == b""
            continue
        published = [op for op in history.renamed_over if op <= prefixes[0]]
        least = max(history.synced_op, history.last_edit(max([last_old_op, *published])))
        assert any(content == moment for moment in history.moments(least)), (
            f"(b) inode {inode}: {len(content)} bytes that are no moment from operation {least} on"
        )
