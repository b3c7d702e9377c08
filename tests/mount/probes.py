# SPDX-License-Identifier: Apache-2.0
"""What POSIX probes are made of: other users, calls that Python lacks, results that compare.

A probe is a function without arguments that runs in an empty directory, in a process of its own,
and returns plain values. It takes the same on every file system that behaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import os
import pickle
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
ACCESS_ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
# Tags of an ACL's entries, as in its extended attribute.
OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

Probe = Callable[[], object]

libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


def attempt(call: Callable[..., object], *args: object, **kwargs: object) -> object:
    """The result, or the name of the error."""
    try:
        result = call(*args, **kwargs)
    except OSError as err:
        return errno.errorcode[err.errno or 0]
    return "ok" if result is None else result


def libc_call(name: str, *args: object) -> int:
    """Calls a function of the C library that returns -1 and sets errno."""
    result = int(getattr(libc, name)(*args))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def utimens(path: str, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
    """utimensat(2) with the special values that os.utime cannot pass."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    libc_call("utimensat", AT_FDCWD, os.fsencode(path), times, 0)


def renameat2(old: str, new: str, flags: int) -> None:
    libc_call("renameat2", AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)


def make(path: str, data: bytes = b"data", mode: int = 0o644, uid: int = 0, gid: int = 0) -> str:
    """A file with that owner and mode."""
    with open(path, "wb") as file:
        file.write(data)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    return path


def make_dir(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> str:
    os.mkdir(path)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    return path


def open_close(path: str, flags: int, mode: int = 0o666) -> None:
    os.close(os.open(path, flags, mode))


def owner_and_mode(path: str) -> tuple[int, int, str]:
    found = os.lstat(path)
    return found.st_uid, found.st_gid, stat.filemode(found.st_mode)


@contextlib.contextmanager
def user(uid: int, gid: int | None = None, groups: Iterable[int] = ()) -> Iterator[None]:
    """As that user, by real and effective id, without root's capabilities."""
    gid = uid if gid is None else gid
    os.setgroups(list(groups))
    os.setresgid(gid, gid, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([])


def moved(change: Callable[[], object], *paths: str) -> dict[str, str]:
    """For each path, which of its times went forward with the change: "m", "c", or both."""
    before = {path: os.lstat(path) for path in paths}
    time.sleep(0.015)
    change()
    found = {}
    for path, old in before.items():
        new = os.lstat(path)
        data, inode = new.st_mtime_ns - old.st_mtime_ns, new.st_ctime_ns - old.st_ctime_ns
        assert data >= 0 <= inode, f"{path}: a time went back"
        found[path] = "m" * (data > 0) + "c" * (inode > 0)
    return found


def acl(*entries: tuple[int, int] | tuple[int, int, int]) -> bytes:
    """An ACL as its extended attribute has it, of (tag, permissions[, id])."""
    rows = [(*entry, 0xFFFFFFFF)[:3] for entry in entries]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


def run_in_child(folder: Path, probe: Probe) -> object:
    """Runs a probe in a child whose working directory is `folder`; returns its result. The child
    may change users there: those need no way in through the folders above."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            faulthandler.disable()  # probes may die on purpose
            os.umask(0o022)
            os.chdir(folder)
            os.chmod(".", 0o755)
            try:
                answer: tuple[bool, object] = True, probe()
            except BaseException as err:
                answer = False, f"{type(err).__name__}: {err}"
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    done, result = pickle.loads(text) if text else (False, "the probe died")
    assert done, result
    return result


def assert_alike(there: Path, here: Path, probe: Probe) -> None:
    """The probe must find on the mount, `there`, what it finds on the host's file system."""
    found, expected = run_in_child(there, probe), run_in_child(here, probe)
    assert found == expected, f"the mount and the host differ: {difference(found, expected)}"


def difference(found: object, expected: object) -> object:
    """The innermost pairs of values that differ, each with its place."""
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [key for key in found | expected if found.get(key) != expected.get(key)]
        return {key: difference(found.get(key), expected.get(key)) for key in keys}
    return f"{found!r}, the host has {expected!r}"
