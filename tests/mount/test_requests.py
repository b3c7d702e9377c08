# SPDX-License-Identifier: Apache-2.0
"""Which requests the kernel sends: their sizes, and that what it remembers is not asked again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Mount

MIB = 1 << 20


class Log:
    """The requests that libfuse prints under --debug."""

    def __init__(self, mount: Mount, path: Path, *options: str) -> None:
        self.path = path
        mount.mount("--debug", "--log-file", str(path), *options)
        self._at = 0

    def lines(self) -> list[str]:
        """What was printed since the last call."""
        text = self.path.read_text()
        new, self._at = text[self._at :], len(text)
        return new.splitlines()

    def during(self, call: Callable[[], object]) -> list[str]:
        """Names of the requests that a call sends, but for those that nobody waits for."""
        self.lines()
        call()
        names = re.findall(r"opcode: (\w+)", "\n".join(self.lines()))
        return [name for name in names if name not in ("RELEASE", "RELEASEDIR", "FORGET")]


def read_twice(path: Path) -> None:
    path.read_bytes()
    path.read_bytes()


def drop_pages(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_requests_are_of_one_mebibyte(unmounted: Mount, tmp_path: Path) -> None:
    log = Log(unmounted, tmp_path / "log")
    path = unmounted.path / "file"
    path.write_bytes(os.urandom(8 * MIB))
    sizes = [int(size) for size in re.findall(r"WRITE .*insize: (\d+)", "\n".join(log.lines()))]
    assert sizes == [MIB + 80] * 8  # the request's header is 80 bytes
    drop_pages(path)
    log.lines()
    with open(path, "rb", buffering=0) as file:
        while file.read(4 * MIB):
            pass
    if os.geteuid() == 0:  # others have the kernel's read-ahead of 128 KiB
        assert f"outsize: {MIB + 16}" in "\n".join(log.lines())


def test_pages_stay_while_the_data_does(unmounted: Mount, tmp_path: Path) -> None:
    log = Log(unmounted, tmp_path / "log")
    path = unmounted.path / "file"
    path.write_bytes(b"x" * 30_000)
    path.read_bytes()
    assert "READ" not in log.during(lambda: read_twice(path))
    assert "FLUSH" not in log.during(lambda: path.write_bytes(b"y" * 30_000))
    assert path.read_bytes() == b"y" * 30_000
    assert "READ" not in log.during(lambda: read_twice(path))


@pytest.mark.parametrize("cache", ["auto", "direct"])
def test_pages_go_where_that_is_asked(unmounted: Mount, tmp_path: Path, cache: str) -> None:
    log = Log(unmounted, tmp_path / "log", "--cache", cache)
    path = unmounted.path / "file"
    path.write_bytes(b"x" * 30_000)
    assert log.during(lambda: read_twice(path)).count("READ") >= 2


def test_names_and_attributes_are_remembered(unmounted: Mount, tmp_path: Path) -> None:
    log = Log(unmounted, tmp_path / "log")
    path = unmounted.path / "file"
    path.touch()
    path.stat()
    assert log.during(path.stat) == []
    assert not (unmounted.path / "absent").exists()
    assert log.during((unmounted.path / "absent").exists) == []
    (unmounted.path / "absent").touch()
    assert (unmounted.path / "absent").exists()


def test_a_listing_brings_the_attributes(unmounted: Mount, tmp_path: Path) -> None:
    unmounted.mount()
    for number in range(300):
        (unmounted.path / str(number)).touch()
    unmounted.umount()
    log = Log(unmounted, tmp_path / "log")
    names = os.listdir(unmounted.path)
    assert log.during(lambda: [os.stat(unmounted.path / name) for name in names]) == []


def test_timeouts_of_zero_ask_each_time(unmounted: Mount, tmp_path: Path) -> None:
    zero = [f"--{name}-timeout=0" for name in ("attr", "entry", "negative")]
    log = Log(unmounted, tmp_path / "log", *zero)
    path = unmounted.path / "file"
    path.touch()
    path.stat()
    assert log.during(path.stat) != []
    assert not (unmounted.path / "absent").exists()
    assert "LOOKUP" in log.during((unmounted.path / "absent").exists)
