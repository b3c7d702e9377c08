# SPDX-License-Identifier: Apache-2.0
"""Modes, owners, times, extended attributes and ACLs, through the kernel."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def fails(err: int, call: Callable[..., object], *args: object, **kwargs: object) -> None:
    with pytest.raises(OSError) as caught:
        call(*args, **kwargs)
    assert caught.value.errno == err, caught.value


def as_nobody(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as another user, inside a directory whose parents that user may not enter."""
    return subprocess.run(
        command,
        cwd=folder,
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def file(work: Path) -> Path:
    path = work / "file"
    path.write_bytes(b"data")
    return path


# -- modes and owners --------------------------------------------------------------------------


def test_chmod(file: Path, work: Path) -> None:
    for mode in (0o000, 0o640, 0o4755, 0o7777):
        os.chmod(file, mode)
        assert stat.S_IMODE(file.stat().st_mode) == mode
    os.chmod(work, 0o1777)
    assert stat.S_IMODE(work.stat().st_mode) == 0o1777
    assert stat.S_ISDIR(work.stat().st_mode)


@pytest.mark.root
def test_chown(file: Path, work: Path) -> None:
    os.chown(file, 1234, 4321)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 4321)
    os.chown(file, -1, 7)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 7)
    os.symlink("file", work / "link")
    os.lchown(work / "link", 5, 6)
    assert (os.lstat(work / "link").st_uid, file.stat().st_uid) == (5, 1234)


@pytest.mark.root
def test_chown_takes_setuid_away(file: Path) -> None:
    os.chmod(file, 0o6755)
    os.chown(file, 1234, 4321)
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


@pytest.mark.root
def test_a_write_by_another_takes_setuid_away(file: Path, work: Path) -> None:
    os.chmod(file, 0o6777)
    done = as_nobody(work, "/bin/sh", "-c", "echo more >>file")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o777


@pytest.mark.root
def test_group_is_inherited_from_setgid_directory(work: Path) -> None:
    os.chown(work, -1, 77)
    os.chmod(work, 0o2755)
    (work / "f").touch()
    (work / "d").mkdir()
    assert (work / "f").stat().st_gid == 77
    assert (work / "d").stat().st_gid == 77
    assert (work / "d").stat().st_mode & stat.S_ISGID


@pytest.mark.root
def test_the_kernel_checks_permissions(file: Path, work: Path) -> None:
    os.chmod(work, 0o755)
    os.chmod(file, 0o600)
    assert "Permission denied" in as_nobody(work, "/bin/cat", "file").stderr
    assert as_nobody(work, "/usr/bin/touch", "new").returncode != 0
    os.chmod(file, 0o604)
    assert as_nobody(work, "/bin/cat", "file").stdout == "data"
    os.chmod(work, 0o1777)
    assert as_nobody(work, "/bin/rm", "-f", "file").returncode != 0  # sticky


# -- times -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [0, 1, 1_600_000_000_123_456_789, -1_500_000_001, 2**33 * 10**9])
def test_times_in_nanoseconds(file: Path, when: int) -> None:
    os.utime(file, ns=(when, when + 1))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (when, when + 1)


def test_times_move_as_they_should(file: Path, work: Path) -> None:
    def after(change: Callable[[], object], path: Path = file) -> set[str]:
        before = path.stat()
        time.sleep(0.01)
        change()
        now = path.stat()
        pairs = {"m": "st_mtime_ns", "c": "st_ctime_ns"}
        return {key for key, name in pairs.items() if getattr(now, name) > getattr(before, name)}

    assert after(lambda: file.write_bytes(b"x")) == {"m", "c"}
    assert after(lambda: os.truncate(file, 0)) == {"m", "c"}
    assert after(lambda: os.chmod(file, 0o600)) == {"c"}
    assert after(lambda: os.link(file, work / "second")) == {"c"}
    assert after(lambda: os.setxattr(file, "user.x", b"1")) == {"c"}
    assert after(lambda: (work / "new").touch(), work) == {"m", "c"}
    assert after(lambda: os.unlink(work / "new"), work) == {"m", "c"}
    assert after(lambda: file.read_bytes()) == set()
    assert abs(file.stat().st_mtime - time.time()) < 60


def test_touch_sets_now(file: Path) -> None:
    os.utime(file, ns=(1, 1))
    os.utime(file)
    assert abs(file.stat().st_mtime - time.time()) < 60


def test_fstat_sees_own_writes(file: Path) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    for length in range(5, 20):
        os.write(fd, b"x")
        assert os.fstat(fd).st_size == length
    os.close(fd)


# -- extended attributes -----------------------------------------------------------------------


def test_xattrs(file: Path) -> None:
    os.setxattr(file, "user.one", b"1")
    os.setxattr(file, "user.empty", b"")
    os.setxattr(file, "user.binary", bytes(range(256)))
    assert sorted(os.listxattr(file)) == ["user.binary", "user.empty", "user.one"]
    assert os.getxattr(file, "user.binary") == bytes(range(256))
    assert os.getxattr(file, "user.empty") == b""
    os.removexattr(file, "user.one")
    fails(errno.ENODATA, os.getxattr, file, "user.one")
    fails(errno.ENODATA, os.removexattr, file, "user.one")
    assert sorted(os.listxattr(file)) == ["user.binary", "user.empty"]


def test_xattr_create_and_replace(file: Path) -> None:
    fails(errno.ENODATA, os.setxattr, file, "user.x", b"1", os.XATTR_REPLACE)
    os.setxattr(file, "user.x", b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, os.setxattr, file, "user.x", b"2", os.XATTR_CREATE)
    os.setxattr(file, "user.x", b"3", os.XATTR_REPLACE)
    assert os.getxattr(file, "user.x") == b"3"


def test_large_xattr(file: Path) -> None:
    value = os.urandom(30_000)
    os.setxattr(file, "user.large", value)
    assert os.getxattr(file, "user.large") == value
    fails(errno.E2BIG, os.setxattr, file, "user.larger", bytes(70_000))


@pytest.mark.root
def test_trusted_and_security_xattrs(file: Path, work: Path) -> None:
    os.setxattr(file, "trusted.t", b"t")
    os.setxattr(file, "security.dfusepytest", b"s")
    assert set(os.listxattr(file)) == {"trusted.t", "security.dfusepytest"}
    os.symlink("file", work / "link")
    os.setxattr(work / "link", "trusted.l", b"l", follow_symlinks=False)
    assert os.getxattr(work / "link", "trusted.l", follow_symlinks=False) == b"l"


def test_the_virtual_xattr_is_not_a_real_one(file: Path) -> None:
    assert os.getxattr(file, "user.dfusepy.query").startswith(b"{")
    assert os.listxattr(file) == []
    fails(errno.EPERM, os.setxattr, file, "user.dfusepy.query", b"x")
    fails(errno.EPERM, os.setxattr, file, "user.dfusepy.other", b"x")
    fails(errno.EPERM, os.removexattr, file, "user.dfusepy.query")


# -- ACLs --------------------------------------------------------------------------------------

needs_acl = pytest.mark.skipif(not shutil.which("setfacl"), reason="setfacl is not installed")


def acl(*words: object) -> str:
    done = subprocess.run(map(str, words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_acl
def test_acl_is_kept_and_shows_in_the_mode(file: Path) -> None:
    os.chmod(file, 0o600)
    acl("setfacl", "-m", "u:65534:rw,g:1234:r", file)
    shown = acl("getfacl", "-cpn", file).split()
    assert {"user:65534:rw-", "group:1234:r--", "mask::rw-"} <= set(shown)
    assert stat.S_IMODE(file.stat().st_mode) == 0o660
    os.chmod(file, 0o640)  # changes the mask
    assert "mask::r--" in acl("getfacl", "-cpn", file)
    acl("setfacl", "-b", file)
    assert acl("getfacl", "-cpn", file).split() == ["user::rw-", "group::---", "other::---"]


def test_an_acl_that_is_absent_can_be_removed(file: Path) -> None:
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        os.removexattr(file.parent, name)
    with pytest.raises(OSError) as refused:
        os.removexattr(file.parent, "user.absent")
    assert refused.value.errno == errno.ENODATA


@needs_acl
@pytest.mark.root
def test_acl_is_enforced(file: Path, work: Path) -> None:
    os.chmod(work, 0o755)
    os.chmod(file, 0o600)
    assert as_nobody(work, "/bin/cat", "file").returncode != 0
    acl("setfacl", "-m", "u:65534:r", file)
    assert as_nobody(work, "/bin/cat", "file").stdout == "data"


@needs_acl
def test_default_acl_is_inherited(work: Path) -> None:
    acl("setfacl", "-d", "-m", "u:65534:rwx,m::rwx", work)
    (work / "sub").mkdir()
    (work / "f").touch()
    assert "default:user:65534:rwx" in acl("getfacl", "-cpn", work / "sub")
    assert "user:65534:rwx" in acl("getfacl", "-cpn", work / "f")
    assert stat.S_IMODE((work / "f").stat().st_mode) & 0o111 == 0
