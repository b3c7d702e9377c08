# SPDX-License-Identifier: Apache-2.0
"""A pool without room, through the mount: writers are told, nothing hangs, what was accepted stays,
and deleting gives the room back."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Home, Mount, make_container
from probes import attempt

PIECE = 256 << 10


@pytest.fixture
def small(home: Home) -> Mount:
    mount = make_container(home, "128M")
    mount.mount()
    return mount


def free_bytes(mount: Mount) -> int:
    found = os.statvfs(mount.path)
    return found.f_bavail * found.f_frsize


def becomes_true(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def write_until_full(path: Path, piece: int = PIECE) -> int:
    """Writes pieces, each of its own byte, until there is no room; returns how many are whole."""
    count = 0
    with open(path, "wb", buffering=0) as file:
        while (result := attempt(file.write, bytes([count % 251]) * piece)) == piece:
            count += 1
        assert result == "ENOSPC" or isinstance(result, int), result  # a part may go in
        return count


def holds(path: Path, count: int, piece: int = PIECE) -> bool:
    with open(path, "rb") as file:
        for number in range(count):
            if file.read(piece) != bytes([number % 251]) * piece:
                return False
        return len(file.read()) < piece


def test_what_was_accepted_stays(small: Mount) -> None:
    count = write_until_full(small.path / "large")
    assert count * PIECE > 64 << 20
    assert holds(small.path / "large", count)
    small.remount()
    assert holds(small.path / "large", count)
    small.umount()
    assert small.check() == []


def test_changes_that_need_no_room_work(small: Mount) -> None:
    (small.path / "victim").write_bytes(b"v" * 10_000)
    (small.path / "short").write_bytes(b"s" * 10_000)
    (small.path / "dir").mkdir()
    count = write_until_full(small.path / "large")
    write_until_full(small.path / "rest", 4096)
    for number in range(20):  # sizes alone, which are published without data
        with open(small.path / f"sparse{number}", "wb") as file:
            file.truncate(1 << 30)
    os.rename(small.path / "victim", small.path / "dir/moved")
    os.chmod(small.path / "dir/moved", 0o600)
    os.setxattr(small.path / "dir/moved", "user.x", b"1")
    os.symlink("x", small.path / "link")
    os.truncate(small.path / "short", 4096)  # whole blocks: a part of one is written anew
    os.truncate(small.path / "large", (count - 1) * PIECE)
    os.unlink(small.path / "dir/moved")
    os.rmdir(small.path / "dir")
    assert (small.path / "short").read_bytes() == b"s" * 4096
    small.umount()
    assert small.check() == []


@pytest.mark.parametrize("way", ["unlink", "truncate", "rename over", "O_TRUNC"])
def test_room_returns(small: Mount, way: str) -> None:
    empty = free_bytes(small)
    for again in range(3):
        path = small.path / "large"
        count = write_until_full(path)
        assert count * PIECE > empty * 0.8, f"round {again}"
        if way == "unlink":
            path.unlink()
        elif way == "truncate":
            os.truncate(path, 0)
        elif way == "rename over":
            (small.path / "small").write_bytes(b"")
            os.rename(small.path / "small", path)
        else:
            path.write_bytes(b"")
    assert becomes_true(lambda: free_bytes(small) > empty * 0.95), (free_bytes(small), empty)


def test_room_of_an_unlinked_file_returns_at_its_close(small: Mount) -> None:
    empty = free_bytes(small)
    with open(small.path / "large", "wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(PIECE))
        os.fsync(file.fileno())
        (small.path / "large").unlink()
        assert free_bytes(small) < empty - 80 * PIECE
    assert becomes_true(lambda: free_bytes(small) > empty * 0.95), (free_bytes(small), empty)


def test_many_writers_are_all_told(small: Mount) -> None:
    children = []
    for number in range(6):
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                write_until_full(small.path / f"f{number}", 40_000)
                os._exit(0)
            os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    for number in range(6):
        path = small.path / f"f{number}"
        assert holds(path, path.stat().st_size // 40_000, 40_000)
        path.unlink()
    small.umount()
    assert small.check() == []
