# SPDX-License-Identifier: Apache-2.0
"""The same random calls on the mount and on the host's file system: results, errno and the trees
that they leave must be equal. Hypothesis finds the calls and shrinks what fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from harness import Mount
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/f", "l", "a/x", ""])
FILES = st.integers(0, 2)
OFFSETS = st.sampled_from(
    [0, 1, 100, 4052, 4095, 4096, 4097, 65536, (1 << 20) - 1, 1 << 20, 3 << 20]
)
SIZES = st.sampled_from([0, 1, 7, 4051, 4052, 4053, 4096, 8192, 65537, (1 << 20) + 1])
MODES = st.sampled_from([0o600, 0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o000])
FLAGS = st.sampled_from(
    [
        os.O_RDWR,
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_RDWR | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT | os.O_APPEND,
        os.O_RDONLY,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        os.O_RDONLY | os.O_DIRECTORY,
        os.O_RDONLY | os.O_NOFOLLOW,
    ]
)
TIMES = st.sampled_from([0, 1, 999_999_999, 1_000_000_001, 1_700_000_000_123_456_789])
XATTRS = st.sampled_from(["user.a", "user.b", "user." + "n" * 250, "trusted.t", "bogus.x"])

CALL = st.one_of(
    st.tuples(st.just("open"), FILES, NAMES, FLAGS),
    st.tuples(st.just("close"), FILES),
    st.tuples(st.just("pwrite"), FILES, OFFSETS, SIZES),
    st.tuples(st.just("write"), FILES, SIZES),
    st.tuples(st.just("pread"), FILES, OFFSETS, SIZES),
    st.tuples(
        st.just("lseek"), FILES, OFFSETS, st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
    ),
    st.tuples(st.just("ftruncate"), FILES, OFFSETS),
    st.tuples(st.just("fstat"), FILES),
    st.tuples(st.just("fsync"), FILES),
    st.tuples(st.just("stat"), NAMES),
    st.tuples(st.just("mkdir"), NAMES, MODES),
    st.tuples(st.just("rmdir"), NAMES),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("symlink"), NAMES, NAMES),
    st.tuples(st.just("readlink"), NAMES),
    st.tuples(st.just("mkfifo"), NAMES, MODES),
    st.tuples(st.just("chmod"), NAMES, MODES),
    st.tuples(
        st.just("chown"), NAMES, st.sampled_from([-1, 0, 65534]), st.sampled_from([-1, 0, 65534])
    ),
    st.tuples(st.just("truncate"), NAMES, OFFSETS),
    st.tuples(st.just("utime"), NAMES, TIMES, TIMES),
    st.tuples(
        st.just("setxattr"),
        NAMES,
        XATTRS,
        SIZES.filter(lambda n: n < 4000),
        st.sampled_from([0, 1, 2]),
    ),
    st.tuples(st.just("getxattr"), NAMES, XATTRS),
    st.tuples(st.just("removexattr"), NAMES, XATTRS),
    st.tuples(st.just("listdir"), NAMES),
)


def pattern(offset: int, size: int) -> bytes:
    """Bytes that tell where they were meant to go."""
    unit = f"{offset:07d}.".encode()
    return (unit * (size // len(unit) + 1))[:size]


class Player:
    """Plays calls under one root; results are plain values, an error is its name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fds: dict[int, int] = {}

    def play(self, call: tuple[object, ...]) -> object:
        name, *words = call
        action: Callable[..., object] = getattr(self, f"do_{name}")
        try:
            return action(*words)
        except OSError as exc:
            return errno.errorcode[exc.errno or 0]

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def attributes(self, status: os.stat_result) -> tuple[object, ...]:
        kind = stat.S_IFMT(status.st_mode)
        size = status.st_size if kind != stat.S_IFDIR else None
        return (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, size)

    def fd(self, slot: int) -> int:
        if slot not in self.fds:
            raise OSError(errno.EBADF, "")
        return self.fds[slot]

    def do_open(self, slot: int, name: str, flags: int) -> object:
        with contextlib.suppress(KeyError):
            os.close(self.fds.pop(slot))
        self.fds[slot] = os.open(self.path(name), flags, 0o644)
        return "open"

    def do_close(self, slot: int) -> object:
        os.close(self.fd(slot))
        del self.fds[slot]
        return None

    def do_pwrite(self, slot: int, offset: int, size: int) -> object:
        return os.pwrite(self.fd(slot), pattern(offset, size), offset)

    def do_write(self, slot: int, size: int) -> object:
        return os.write(self.fd(slot), pattern(slot, size))

    def do_pread(self, slot: int, offset: int, size: int) -> object:
        return os.pread(self.fd(slot), size, offset)

    def do_lseek(self, slot: int, offset: int, whence: int) -> object:
        if stat.S_ISDIR(os.fstat(self.fd(slot)).st_mode):
            return None  # a directory's offsets are its file system's own affair
        return os.lseek(self.fd(slot), offset, whence)

    def do_ftruncate(self, slot: int, size: int) -> object:
        return os.ftruncate(self.fd(slot), size)

    def do_fstat(self, slot: int) -> object:
        return self.attributes(os.fstat(self.fd(slot)))

    def do_fsync(self, slot: int) -> object:
        return os.fsync(self.fd(slot))

    def do_stat(self, name: str) -> object:
        return self.attributes(os.lstat(self.path(name)))

    def do_mkdir(self, name: str, mode: int) -> object:
        return os.mkdir(self.path(name), mode)

    def do_rmdir(self, name: str) -> object:
        return os.rmdir(self.path(name)) if name else None

    def do_unlink(self, name: str) -> object:
        return os.unlink(self.path(name))

    def do_rename(self, old: str, new: str) -> object:
        return os.rename(self.path(old), self.path(new)) if old and new else None

    def do_link(self, old: str, new: str) -> object:
        return os.link(self.path(old), self.path(new), follow_symlinks=False)

    def do_symlink(self, target: str, name: str) -> object:
        return os.symlink(target, self.path(name))

    def do_readlink(self, name: str) -> object:
        return os.readlink(self.path(name))

    def do_mkfifo(self, name: str, mode: int) -> object:
        return os.mkfifo(self.path(name), mode)

    def do_chmod(self, name: str, mode: int) -> object:
        return os.chmod(self.path(name), mode)

    def do_chown(self, name: str, uid: int, gid: int) -> object:
        return os.chown(self.path(name), uid, gid, follow_symlinks=False)

    def do_truncate(self, name: str, size: int) -> object:
        if stat.S_ISFIFO(os.stat(self.path(name)).st_mode):
            return None  # would wait for a writer
        return os.truncate(self.path(name), size)

    def do_utime(self, name: str, atime: int, mtime: int) -> object:
        os.utime(self.path(name), ns=(atime, mtime), follow_symlinks=False)
        status = os.lstat(self.path(name))
        return status.st_atime_ns, status.st_mtime_ns

    def do_setxattr(self, name: str, key: str, size: int, flags: int) -> object:
        return os.setxattr(self.path(name), key, pattern(0, size), flags, follow_symlinks=False)

    def do_getxattr(self, name: str, key: str) -> object:
        return os.getxattr(self.path(name), key, follow_symlinks=False)

    def do_removexattr(self, name: str, key: str) -> object:
        return os.removexattr(self.path(name), key, follow_symlinks=False)

    def do_listdir(self, name: str) -> object:
        return sorted(os.listdir(self.path(name)))


def is_fifo_open(call: tuple[object, ...], root: Path) -> bool:
    """Opening a FIFO waits for its other end."""
    with contextlib.suppress(OSError):
        return call[0] == "open" and stat.S_ISFIFO(os.stat(root / str(call[2])).st_mode)
    return False


def leftovers(root: Path) -> dict[str, object]:
    player = Player(root)
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            keys = sorted(os.listxattr(path, follow_symlinks=False))
            found[os.path.relpath(path, root)] = (player.attributes(status), content, keys)
    return found


def assert_same_behaviour(here: Path, there: Path, calls: list[tuple[object, ...]]) -> None:
    for root in (here, there):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
    players = [Player(here), Player(there)]
    try:
        for number, call in enumerate(calls):
            if is_fifo_open(call, here):
                continue
            expected, got = (player.play(call) for player in players)
            assert got == expected, f"call {number}, {call}: {got!r}, the host gives {expected!r}"
        assert leftovers(there) == leftovers(here)
    finally:
        for player in players:
            player.close()


def test_random_calls_behave_as_on_the_host(mnt: Mount, tmp_path: Path) -> None:
    @settings(
        max_examples=int(os.environ.get("DFUSEPY_EXAMPLES", "300")),
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(CALL, min_size=5, max_size=60))
    @example(
        [
            ("open", 0, "a", os.O_RDWR | os.O_CREAT),
            ("pwrite", 0, 0, 100),
            ("open", 1, "a", os.O_RDWR | os.O_TRUNC),
            ("fstat", 0),
        ]
    )
    @example([("mkdir", "d", 0o755), ("mkdir", "d/e", 0o755), ("rename", "d", "d/e")])
    @example(
        [
            ("open", 0, "a", os.O_RDWR | os.O_CREAT | os.O_APPEND),
            ("write", 0, 4097),
            ("pwrite", 0, 0, 10),
            ("lseek", 0, 0, os.SEEK_CUR),
            ("fstat", 0),
        ]
    )
    def play(calls: list[tuple[object, ...]]) -> None:
        assert_same_behaviour(tmp_path / "host", mnt.path / "mount", calls)

    play()


def test_calls_survive_a_remount(mnt: Mount, tmp_path: Path) -> None:
    """The tree is the same again when the pool has been closed and opened."""

    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(CALL, min_size=40, max_size=120))
    def play(calls: list[tuple[object, ...]]) -> None:
        assert_same_behaviour(tmp_path / "host", mnt.path / "mount", calls)
        mnt.remount()
        assert leftovers(mnt.path / "mount") == leftovers(tmp_path / "host")

    play()
