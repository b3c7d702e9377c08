# SPDX-License-Identifier: Apache-2.0
"""Times, data, maps, locks and programs: the same probes on the host's file system and on the mount
must give the same answers."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from probes import (
    RENAME_EXCHANGE,
    Probe,
    assert_alike,
    attempt,
    libc_call,
    make,
    moved,
    open_close,
    renameat2,
)

PROBES: list[Probe] = []


def probe(function: Probe) -> Probe:
    PROBES.append(function)
    return function


# -- times -------------------------------------------------------------------------------------


def write_bytes(path: str, data: bytes, flags: int = 0) -> None:
    fd = os.open(path, os.O_WRONLY | flags)
    os.write(fd, data)
    os.close(fd)


def write_through_map(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 4) as view:
        view[0] = 65
        view.flush()
    os.close(fd)


@probe
def which_times_move() -> object:
    make("f", b"some data")
    os.mkdir("d")
    os.mkdir("e")
    make("d/victim")
    os.symlink("f", "l")
    keep = os.open("f", os.O_RDWR)
    found: list[object] = [
        moved(lambda: write_bytes("f", b"x"), "f", "."),
        moved(lambda: write_bytes("f", b""), "f"),
        moved(lambda: write_bytes("f", b"y", os.O_APPEND), "f"),
        moved(lambda: write_bytes("f", b"", os.O_TRUNC), "f", "."),
        moved(lambda: open_close("f", os.O_RDWR | os.O_TRUNC), "f"),
        moved(lambda: open_close("f", os.O_RDWR | os.O_CREAT), "f", "."),
        moved(lambda: os.truncate("f", 0), "f"),
        moved(lambda: os.truncate("f", 100), "f"),
        moved(lambda: os.truncate("f", 100), "f"),
        moved(lambda: os.ftruncate(keep, 100), "f"),
        moved(lambda: os.ftruncate(keep, 50), "f"),
        moved(lambda: os.pread(keep, 10, 0), "f"),
        moved(lambda: os.fsync(keep), "f"),
        moved(lambda: write_through_map("f"), "f"),
        moved(lambda: os.chmod("f", 0o600), "f", "."),
        moved(lambda: os.chmod("f", 0o600), "f"),
        moved(lambda: os.chown("f", os.getuid(), os.getgid()), "f"),
        moved(lambda: os.chown("f", -1, -1), "f"),
        moved(lambda: os.utime("f"), "f"),
        moved(lambda: os.utime("f", ns=(1, os.stat("f").st_mtime_ns)), "f"),
        moved(lambda: os.setxattr("f", "user.x", b"1"), "f", "."),
        moved(lambda: attempt(os.setxattr, "f", "user.x", b"2", os.XATTR_CREATE), "f"),
        moved(lambda: os.getxattr("f", "user.x"), "f"),
        moved(lambda: os.removexattr("f", "user.x"), "f"),
        moved(lambda: attempt(os.removexattr, "f", "user.x"), "f"),
        moved(lambda: os.link("f", "d/f"), "f", ".", "d"),
        moved(lambda: os.rename("d/f", "e/f"), "f", ".", "d", "e"),
        moved(lambda: os.rename("e/f", "e/g"), "f", ".", "d", "e"),
        moved(lambda: os.rename("e/g", "e/g"), "f", "e"),
        moved(lambda: os.unlink("e/g"), "f", "e", "."),
        moved(lambda: os.symlink("x", "d/s"), "d", "."),
        moved(lambda: os.rename("d/s", "s"), "d", "."),
        moved(lambda: os.readlink("l"), "l", "."),
        moved(lambda: os.chown("l", -1, os.getgid(), follow_symlinks=False), "l", "f"),
        moved(lambda: os.mkdir("d/sub"), "d", "."),
        moved(lambda: os.rename("d/sub", "e/sub"), "d", "e", "."),
        moved(lambda: os.listdir("e"), "e"),
        moved(lambda: os.rmdir("e/sub"), "d", "e", "."),
        moved(lambda: os.mkfifo("d/p"), "d", "."),
        moved(lambda: attempt(os.mkdir, "d/p"), "d"),
        moved(lambda: attempt(os.rmdir, "d"), "d", "."),
        moved(lambda: attempt(os.unlink, "d/none"), "d"),
        moved(lambda: renameat2("f", "d/p", RENAME_EXCHANGE), ".", "d"),
    ]
    victim = os.open("d/victim", os.O_RDONLY)
    old = os.fstat(victim).st_ctime_ns
    found.append(moved(lambda: os.rename("d/p", "d/victim"), "d"))
    return found, os.fstat(victim).st_ctime_ns > old


@probe
def a_new_file_has_one_time() -> object:
    open_close("f", os.O_CREAT | os.O_WRONLY)
    os.mkdir("d")
    os.symlink("x", "l")
    found: list[object] = []
    for name in ("f", "d", "l"):
        times = os.lstat(name)
        found.append(times.st_mtime_ns == times.st_ctime_ns)
    os.utime("l", ns=(5, 7), follow_symlinks=False)
    found.append(os.lstat("l").st_mtime_ns)
    return found


# -- data --------------------------------------------------------------------------------------


@probe
def offsets_beyond() -> object:
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    far = 1 << 62
    return [
        attempt(os.lseek, fd, 1 << 43, os.SEEK_SET),
        attempt(os.read, fd, 10),
        attempt(os.lseek, fd, -1, os.SEEK_SET),
        attempt(os.lseek, fd, 0, 99),
        attempt(os.pwrite, fd, b"x", -1),
        attempt(os.pread, fd, 1, -1),
        attempt(os.pwrite, fd, b"x", far),
        attempt(os.ftruncate, fd, far),
        attempt(os.ftruncate, fd, -1),
        attempt(os.pwrite, fd, b"", far),
        attempt(os.truncate, "f", 1 << 43),
        attempt(os.pwrite, fd, b"x", (1 << 43) + 5),
        attempt(os.pread, fd, 10, (1 << 43) + 4),
        attempt(os.pread, fd, 10, 1 << 42),
        os.fstat(fd).st_size,
        os.fstat(fd).st_blocks < 100,
        attempt(os.lseek, fd, 0, os.SEEK_END),
    ]


@probe
def the_limit_of_file_size() -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    return [
        attempt(os.pwrite, fd, b"x" * 9000, 0),
        attempt(os.pwrite, fd, b"x" * 9000, 9000),
        attempt(os.pwrite, fd, b"x", 10_000),
        attempt(os.ftruncate, fd, 10_001),
        attempt(os.truncate, "f", 20_000),
        attempt(os.ftruncate, fd, 10_000),
        os.fstat(fd).st_size,
    ]


@probe
def vectors_and_copies() -> object:
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    out = os.open("g", os.O_RDWR | os.O_CREAT)
    reader, writer = os.pipe()
    buffers = [bytearray(3), bytearray(5000), bytearray(1)]
    found: list[object] = [
        attempt(os.writev, fd, [b"abc", b"", b"d" * 5000, b"e"]),
        attempt(os.preadv, fd, buffers, 0),
        bytes(buffers[1]) == b"d" * 5000,
        attempt(os.pwritev, fd, [b"zz"], 1, os.RWF_DSYNC),
        attempt(os.pwritev, fd, [b"end"], 0, os.RWF_APPEND),
        attempt(os.sendfile, out, fd, 0, 6000),
        attempt(os.copy_file_range, fd, out, 3000, 0, 10_000),
        attempt(os.splice, fd, writer, 100, offset_src=0),
        attempt(os.read, reader, 1000),
        attempt(os.write, writer, b"through a pipe"),
        attempt(os.splice, reader, out, 100, offset_dst=20_000),
        attempt(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED),
        attempt(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_WILLNEED),
        attempt(os.posix_fallocate, out, 0, 30_000),
        attempt(os.fdatasync, out),
        attempt(os.isatty, fd),
        attempt(fcntl.ioctl, fd, 0x5401, bytes(64)),  # TCGETS
        len(select.select([fd], [fd], [], 0)[1]),
        attempt(fcntl.fcntl, fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK),
        attempt(os.pwrite, fd, b"appended", 0),
        os.fstat(fd).st_size,
        os.fstat(out).st_size,
    ]
    return found, Path("f").read_bytes(), Path("g").read_bytes()


@probe
def appends_of_many() -> object:
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            fd = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for line in range(300):
                os.write(fd, f"{number} {line:05d} {'x' * 37}\n".encode())
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    lines = Path("log").read_text().splitlines()
    by_writer = [[line for line in lines if line[0] == str(n)] for n in range(4)]
    return len(lines), len(set(lines)), [found == sorted(found) for found in by_writer]


@probe
def truncated_at_every_open() -> object:
    """Readers beside writers that open with O_TRUNC see a part of one version from its start."""
    versions = [bytes([65 + n]) * (3000 * n + 10) for n in range(4)]
    children = []
    for version in versions:
        if (child := os.fork()) == 0:
            for _ in range(50):
                Path("f").write_bytes(version)
            os._exit(0)
        children.append(child)
    strange = 0
    for _ in range(200):
        with contextlib.suppress(FileNotFoundError):
            data = Path("f").read_bytes()
            strange += not set(data) <= {0, *b"ABCD"}
    for child in children:
        os.waitpid(child, 0)
    make("f", versions[2])
    return strange, Path("f").read_bytes() == versions[2]


@probe
def shared_maps() -> object:
    make("f", bytes(10_000))
    fd = os.open("f", os.O_RDWR)
    first = mmap.mmap(fd, 10_000)
    second = mmap.mmap(os.open("f", os.O_RDONLY), 0, prot=mmap.PROT_READ)
    private = mmap.mmap(fd, 10_000, flags=mmap.MAP_PRIVATE)
    first[5000:5003] = b"map"
    found: list[object] = [bytes(second[5000:5003]), os.pread(fd, 3, 5000)]
    os.pwrite(fd, b"fd", 4096)
    found += [bytes(first[4096:4098]), bytes(second[4096:4098])]
    private[0:2] = b"pp"
    found += [bytes(first[0:2]), os.pread(fd, 2, 0)]
    if (child := os.fork()) == 0:
        first[9000:9005] = b"child"
        os._exit(0)
    os.waitpid(child, 0)
    found += [bytes(second[9000:9005]), os.pread(fd, 5, 9000)]
    os.ftruncate(fd, 4098)
    os.ftruncate(fd, 10_000)
    found += [bytes(second[4096:4100]), bytes(first[9000:9005])]
    first.flush()
    if (child := os.fork()) == 0:  # a page beyond the end
        os.ftruncate(fd, 4096)
        found.append(first[8192])
        os._exit(0)
    found.append(os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGBUS)
    found.append(attempt(mmap.mmap, os.open("f", os.O_RDONLY), 4096))
    return found


# -- locks and programs ------------------------------------------------------------------------


def in_child(call: Callable[[], object]) -> int:
    """Exit status of a child: 0 where the call went well, else the number of its error."""
    if (child := os.fork()) == 0:
        try:
            call()
        except OSError as err:
            os._exit(err.errno or 255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@probe
def locks() -> object:
    make("f", bytes(100))
    fd = os.open("f", os.O_RDWR)

    def again(kind: int, call: Callable[..., object], *where: int) -> int:
        def attempt_lock() -> None:
            call(os.open("f", os.O_RDWR), kind | fcntl.LOCK_NB, *where)

        return in_child(attempt_lock)

    found: list[object] = []
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN):
        fcntl.flock(fd, kind)
        found += [again(fcntl.LOCK_SH, fcntl.flock), again(fcntl.LOCK_EX, fcntl.flock)]
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    for start in (0, 15, 25, 30):
        found.append(again(fcntl.LOCK_EX, fcntl.lockf, 10, start))
        found.append(again(fcntl.LOCK_SH, fcntl.lockf, 10, start))
    os.close(os.open("f", os.O_RDONLY))  # closing any descriptor gives the lock back
    found.append(again(fcntl.LOCK_EX, fcntl.lockf, 10, 20))
    readonly = os.open("f", os.O_RDONLY)
    found.append(attempt(fcntl.lockf, readonly, fcntl.LOCK_EX))
    found.append(attempt(fcntl.lockf, readonly, fcntl.LOCK_SH))
    found.append(attempt(fcntl.flock, readonly, fcntl.LOCK_EX))
    found.append(again(fcntl.LOCK_EX, fcntl.flock))
    return found


@probe
def programs_written_and_run() -> object:
    def run(name: str) -> object:
        return subprocess.check_output([f"./{name}", "x"], stderr=subprocess.STDOUT)

    make("script", b"#!/bin/sh\necho ran $1\n", 0o755)
    make("binary", Path("/bin/echo").read_bytes(), 0o755)
    make("plain", b"#!/bin/sh\necho ran\n", 0o644)
    found: list[object] = [attempt(run, name) for name in ("script", "binary", "plain")]
    make("script", b"#!/bin/sh\necho changed $1\n", 0o755)
    found.append(attempt(run, "script"))
    make("sleep", Path("/bin/sleep").read_bytes(), 0o755)
    sleeper = subprocess.Popen(["./sleep", "60"])
    found.append(attempt(open_close, "sleep", os.O_WRONLY))
    os.unlink("sleep")
    sleeper.kill()
    sleeper.wait()
    fd = os.open("binary", os.O_WRONLY)
    found.append(attempt(run, "binary"))
    os.close(fd)
    found.append(attempt(run, "binary"))
    return found


@probe
def changes_are_watched() -> object:
    os.mkdir("d")
    watch = libc_call("inotify_init1", os.O_NONBLOCK)
    libc_call("inotify_add_watch", watch, b"d", 0xFFF)
    make("d/f")
    os.rename("d/f", "d/g")
    Path("d/g").read_bytes()
    os.unlink("d/g")
    found: list[object] = []
    events = os.read(watch, 65536)
    while events:
        mask, length = (
            int.from_bytes(events[4:8], "little"),
            int.from_bytes(events[12:16], "little"),
        )
        found.append((mask, events[16 : 16 + length].rstrip(b"\0")))
        events = events[16 + length :]
    return found


@probe
def reached_by_handle() -> object:
    if os.geteuid() != 0:
        return None
    os.mkdir("d")
    make("d/f", b"by handle")
    handle = (ctypes.c_uint * 40)(128)
    mount = ctypes.c_int()
    libc_call("name_to_handle_at", -100, b"d/f", handle, ctypes.byref(mount), 0)
    here = os.open(".", os.O_RDONLY)
    fd = libc_call("open_by_handle_at", here, handle, os.O_RDONLY)
    found: list[object] = [os.read(fd, 100), os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))]
    os.close(fd)
    os.unlink("d/f")
    found.append(attempt(libc_call, "open_by_handle_at", here, handle, os.O_RDONLY))
    return found


@probe
def xattrs_at_their_limits() -> object:
    make("f")
    libc_call("setxattr", b"f", b"user.a", b"value", 5, 0)
    buffer = ctypes.create_string_buffer(100)
    found: list[object] = [
        attempt(libc_call, "getxattr", b"f", b"user.a", buffer, size) for size in (0, 4, 5, 100)
    ]
    found += [attempt(libc_call, "listxattr", b"f", buffer, size) for size in (0, 3, 7, 100)]
    for name in (
        "user." + "n" * 250,
        "user." + "n" * 251,
        "user.",
        "user",
        "bogus.x",
        "",
        "system.x",
    ):
        found.append(attempt(os.setxattr, "f", name, b"1"))
        found.append(attempt(os.getxattr, "f", name))
        found.append(attempt(os.removexattr, "f", name))
    found.append(attempt(os.setxattr, "f", "user.a", b"1", 3))
    found.append(attempt(os.setxattr, "f", "user.big", bytes(65537)))
    found.append(attempt(os.setxattr, "f", "user.empty", b""))
    found.append(attempt(os.getxattr, "f", "user.empty"))
    found.append(sorted(os.listxattr("f")))
    return found


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_files(work: Path, tmp_path: Path, probe: Probe) -> None:
    assert_alike(work, tmp_path, probe)
