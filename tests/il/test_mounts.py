# SPDX-License-Identifier: Apache-2.0
"""Which mount a descriptor belongs to: snapshots, read-only ones, several, one after another."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Home, Mount, make_container, make_home, why_not
from hooked import hear, start, tell

from dfusepy import interception

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    yield from make_home(tmp_path)


@pytest.fixture
def mnt(home: Home) -> Mount:
    if reason := why_not():
        pytest.skip(reason)
    mount = make_container(home, "256M")
    mount.mount()
    return mount


@contextlib.contextmanager
def mounted(home: Home, name: str, path: Path, *options: str) -> Iterator[Path]:
    path.mkdir()
    home.run("mount", name, path, *options)
    try:
        yield path
    finally:
        home.run("umount", path)


READS_BOTH = """
fds = [os.open(path + "/f", os.O_RDONLY) for path in sys.argv[1:3]]
for fd in fds:
    attach(fd)
while told() != "end":
    say(b" ".join(os.pread(fd, 3, 0) for fd in fds).decode())
os.close(fds[0]), os.close(fds[1])
"""


def test_a_snapshot_is_what_it_was(mnt: Mount, library: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    (mnt.path / "f").write_bytes(b"old" * 10000)
    mnt.home.run("container", "snapshot", "create", "demo/data", "then")
    with (
        mounted(mnt.home, "demo/data", tmp_path / "s", "--snapshot", "then") as then,
        start(library, READS_BOTH, then, mnt.path, report=report) as program,
    ):
        tell(program)
        assert hear(program) == "old old"
        (mnt.path / "f").write_bytes(b"new" * 10000)
        tell(program)
        assert hear(program) == "old new"
        tell(program, "end")
        assert program.wait(60) == 0
        assert "snapshot" in mnt.home.run("il", "explain", report).stdout
    [account] = interception.read_report(report)
    assert account.attached == 1
    assert account.left["pread"]["snapshot"].calls > 50
    assert account.bypassed["pread"].calls > 50


WRITES = """
path = sys.argv[1]
fd = os.open(path + "/f", os.O_RDONLY)
attach(fd)
say(attempt(os.open, path + "/f", os.O_RDWR))
say(attempt(os.open, path + "/new", os.O_RDWR | os.O_CREAT))
say(attempt(os.pwrite, fd, b"x", 0))
told()
say(os.pread(fd, 3, 0).decode())
"""


def test_a_read_only_mount_sees_what_is_written_and_writes_nothing(
    mnt: Mount, library: str, tmp_path: Path
) -> None:
    (mnt.path / "f").write_bytes(b"old" * 10000)
    with (
        mounted(mnt.home, "demo/data", tmp_path / "ro", "--read-only") as path,
        start(library, WRITES, path) as program,
    ):
        assert [hear(program) for _ in range(3)] == ["EROFS", "EROFS", "EBADF"]
        (mnt.path / "f").write_bytes(b"new" * 10000)
        tell(program)
        assert hear(program) == "new"
        assert program.wait(60) == 0


TWO = """
fds = [os.open(path + "/f", os.O_RDWR) for path in sys.argv[1:3]]
for fd in fds:
    attach(fd)
say(b" ".join(os.pread(fd, 3, 0) for fd in fds).decode())
for fd, text in zip(fds, (b"ONE", b"TWO")):
    os.pwrite(fd, text, 0)
    os.lseek(fd, 0, os.SEEK_END)
    os.write(fd, text)
os.dup2(fds[0], fds[1])
say(os.pread(fds[1], 3, 0).decode())
say(len({os.stat(path + "/f").st_ino for path in sys.argv[1:3]}))
"""


def test_two_containers_in_one_program(mnt: Mount, library: str, tmp_path: Path) -> None:
    """Their first files have the same inode number."""
    report = tmp_path / "report"
    mnt.home.run("container", "create", "demo/second")
    with mounted(mnt.home, "demo/second", tmp_path / "second") as second:
        (mnt.path / "f").write_bytes(b"one" * 1000)
        (second / "f").write_bytes(b"two" * 1000)
        with start(library, TWO, mnt.path, second, report=report) as program:
            assert [hear(program) for _ in range(3)] == ["one two", "ONE", "1"]
            assert program.wait(60) == 0
        assert (mnt.path / "f").read_bytes() == b"ONE" + b"one" * 999 + b"ONE"
        assert (second / "f").read_bytes() == b"TWO" + b"two" * 999 + b"TWO"
    [account] = interception.read_report(report)
    assert account.attached == 2


TWICE = """
path = sys.argv[1] + "/f"
fd = os.open(path, os.O_RDWR)
attach(fd)
say("ready")
told()
new = os.open(path, os.O_RDWR)
attach(new)
say(os.pread(new, 5, 0).decode())
say(os.pwrite(new, b"again", 0))
say(attempt(os.pread, fd, 5, 0))
say(attempt(os.pwrite, fd, b"stale", 5))
os.close(fd)
say(os.pread(new, 10, 0).decode())
"""


@root
def test_another_container_comes_at_the_same_path(mnt: Mount, library: str, tmp_path: Path) -> None:
    """The first one is still open when it is unmounted lazily: it stays what it is."""
    mnt.home.run("container", "create", "demo/second")
    with mounted(mnt.home, "demo/second", tmp_path / "second") as second:
        (second / "f").write_bytes(b"later" * 1000)
    (mnt.path / "f").write_bytes(b"first" * 1000)
    with start(library, TWICE, mnt.path) as program:
        assert hear(program) == "ready"
        subprocess.run(["umount", "--lazy", mnt.path], check=True)
        mnt.home.run("mount", "demo/second", mnt.path)
        tell(program)
        assert [hear(program), hear(program)] == ["later", "5"]
        assert hear(program) == "b'first'"
        assert hear(program) == "5"
        assert hear(program) == "againlater"
        assert program.wait(60) == 0
    assert (mnt.path / "f").read_bytes() == b"again" + b"later" * 999
    mnt.umount()


BOUND = """
fds = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for fd in fds:
    attach(fd)
os.pwrite(fds[0], b"by the first", 0)
say(os.pread(fds[1], 12, 0).decode())
os.pwrite(fds[1], b"by the other", 0)
say(os.pread(fds[0], 12, 0).decode())
"""


@root
def test_a_bind_mount_is_the_same_file(mnt: Mount, library: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    bound = tmp_path / "bound"
    bound.mkdir()
    (mnt.path / "d").mkdir()
    (mnt.path / "d/f").write_bytes(b"-" * 8192)
    subprocess.run(["mount", "--bind", mnt.path / "d", bound], check=True)
    try:
        with start(library, BOUND, mnt.path / "d/f", bound / "f", report=report) as program:
            assert [hear(program), hear(program)] == ["by the first", "by the other"]
            assert program.wait(60) == 0
    finally:
        subprocess.run(["umount", bound], check=True)
    [account] = interception.read_report(report)
    assert account.bypassed["pwrite"].calls == 2


ROOTED = """
fd = os.open(sys.argv[1] + "/f", os.O_RDWR)
attach(fd)
os.chroot(sys.argv[1])
os.chdir("/")
say(os.pread(fd, 5, 0).decode())
inside = os.open("/f", os.O_RDWR)
attach(inside)
os.pwrite(inside, b"inner", 0)
say(os.pread(fd, 5, 0).decode())
"""


@root
def test_chroot_into_the_mount(mnt: Mount, library: str) -> None:
    (mnt.path / "f").write_bytes(b"outer" * 1000)
    with start(library, ROOTED, mnt.path) as program:
        assert [hear(program), hear(program)] == ["outer", "inner"]
        assert program.wait(60) == 0
