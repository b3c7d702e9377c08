# SPDX-License-Identifier: Apache-2.0
"""Several faces at once, where the kernel of the mount holds what others change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import PROGRAM, Mount
from test_semantics import fs, inode, mnt

from dfusepy import engine

__all__ = ["fs", "mnt"]  # fixtures

PAGE = 4096

# Each writer has bytes of its own, so that its stream can be told from the others'.
RECORD = """
def record(writer, length, number):
    digits = b"%08d" % number
    return bytes(writer * 16 + digits[at % 8] % 16 for at in range(length))
"""
APPENDER = (
    RECORD
    + """
import os, sys
path, flags, writer, length, count = sys.argv[1], *map(int, sys.argv[2:])
fd = os.open(path, flags | os.O_APPEND)
for number in range(count):
    assert os.write(fd, record(writer, length, number)) == length
"""
)
SESSION_APPENDER = (
    RECORD
    + """
import sys
from dfusepy import engine
pool, socket, ino, writer, length, count = *sys.argv[1:3], *map(int, sys.argv[3:])
with engine.Pool.open(pool, socket=socket) as opened, opened.container("data") as container:
    with container.filesystem() as fs:
        for number in range(count):
            assert fs.write(ino, 0, record(writer, length, number), engine.APPEND) == length
"""
)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize("length", [10, PAGE])
def test_an_append_long_after_a_session_s(
    mnt: Mount, fs: engine.FileSystem, flags: int, length: int
) -> None:
    """The kernel remembers the end that it knew when the file was opened."""
    path = mnt.path / "log"
    path.write_bytes(b"1" * length)
    fd = os.open(path, flags | os.O_APPEND)
    fs.write(inode(path), 0, b"2" * length, engine.APPEND)
    time.sleep(6)
    os.write(fd, b"3" * length)
    os.close(fd)
    assert path.read_bytes() == b"1" * length + b"2" * length + b"3" * length


def test_an_append_after_a_session_s_and_a_killed_worker(mnt: Mount, fs: engine.FileSystem) -> None:
    path = mnt.path / "log"
    path.write_bytes(b"1" * PAGE)
    with open(path, "ab", buffering=0) as file:
        fs.write(inode(path), 0, b"2" * PAGE, engine.APPEND)
        mnt.kill_worker()
        file.write(b"3" * PAGE)
    assert path.read_bytes()[::PAGE] == b"123"


def test_an_append_after_an_open_that_truncates(mnt: Mount, fs: engine.FileSystem) -> None:
    path = mnt.path / "log"
    path.write_bytes(b"1" * 3 * PAGE)
    with open(path, "ab", buffering=0) as file:
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        fs.write(inode(path), 0, b"2" * PAGE, engine.APPEND)
        file.write(b"3" * PAGE)
    assert path.read_bytes()[::PAGE] == b"23"


@pytest.mark.parametrize("length", [100, PAGE])
def test_appends_of_six_writers(mnt: Mount, length: int) -> None:
    """While the size is asked for all the time: two each by the mount, under interception and in
    sessions, with descriptors that may be read and such that may not."""
    path, count = mnt.path / "log", 200
    path.write_bytes(b"")
    [record] = mnt.home.services()
    ino = inode(path)
    commands: list[list[object]] = []
    for writer, flags in enumerate([os.O_WRONLY, os.O_RDWR] * 2):
        run = [PROGRAM, "run", "--"] if writer >= 2 else []
        commands.append([*run, sys.executable, "-c", APPENDER, path, flags, writer, length, count])
    for writer in (4, 5):
        served = [record.pool, record.socket, ino, writer, length, count]
        commands.append([sys.executable, "-c", SESSION_APPENDER, *served])
    children = [subprocess.Popen([str(word) for word in command]) for command in commands]
    until = time.monotonic() + 100
    sizes = [0]
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        sizes.append(path.stat().st_size)
    assert [child.wait(1) for child in children] == [0] * 6
    assert sizes == sorted(sizes)
    data = path.read_bytes()
    scope: dict[str, object] = {}
    exec(RECORD, scope)
    make = scope["record"]
    assert callable(make)
    for writer in range(6):
        mine = bytes(byte for byte in data if byte >> 4 == writer)
        assert mine == b"".join(make(writer, length, number) for number in range(count))
    assert len(data) == 6 * length * count


def test_a_descriptor_whose_append_mode_was_taken_off(mnt: Mount) -> None:
    import fcntl

    path = Path(mnt.path / "file")
    path.write_bytes(b"1" * 100)
    with open(path, "ab", buffering=0) as file:
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        os.pwrite(file.fileno(), b"22", 10)
    assert path.read_bytes() == b"1" * 10 + b"22" + b"1" * 88
