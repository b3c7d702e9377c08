# SPDX-License-Identifier: Apache-2.0
"""Users and their rights, groups, ACLs and access: the same probes on the host's file system and on
the mount must give the same answers."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from probes import (
    ACCESS_ACL,
    DEFAULT_ACL,
    GROUP,
    GROUP_OWNER,
    MASK,
    OTHER,
    OWNER,
    USER,
    UTIME_NOW,
    UTIME_OMIT,
    Probe,
    acl,
    assert_alike,
    attempt,
    make,
    make_dir,
    open_close,
    owner_and_mode,
    user,
    utimens,
)

PROBES: list[Probe] = []


def probe(function: Probe) -> Probe:
    PROBES.append(function)
    return function


@probe
def sticky_directory() -> object:
    found: list[object] = []
    make_dir("d", 0o1777, uid=1003)
    make_dir("own", 0o777)
    for who in (1001, 1002, 1003):
        make("d/file", uid=1001)
        make("d/other", uid=1002)
        with user(who):
            found.append(attempt(os.rename, "d/file", "own/file"))
            found.append(attempt(os.rename, "d/file", "d/other"))
            found.append(attempt(os.unlink, "d/file"))
            found.append(attempt(os.unlink, "d/other"))
        for name in ("d/file", "d/other", "own/file"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    return found


@probe
def setgid_directory() -> object:
    make_dir("d", 0o2777, gid=2000)
    names = ["file", "dir", "link", "fifo", "suid"]
    with user(1001):
        open_close("d/file", os.O_CREAT | os.O_WRONLY, 0o2755)
        os.mkdir("d/dir")
        os.symlink("file", "d/link")
        os.mkfifo("d/fifo")
        open_close("d/suid", os.O_CREAT | os.O_WRONLY, 0o6755)
        os.chmod("d/file", 0o2755)
    with user(1001, groups=[2000]):
        open_close("d/member", os.O_CREAT | os.O_WRONLY, 0o2755)
    return [owner_and_mode(f"d/{name}") for name in (*names, "member")]


@probe
def supplementary_groups() -> object:
    found: list[object] = []
    for groups in ([], [2000], [3000, 2000, 4000]):
        make("f", mode=0o640, gid=2000)
        make("mine", uid=1001)
        with user(1001, groups=groups):
            found.append(attempt(open_close, "f", os.O_RDONLY))
            found.append(attempt(open_close, "f", os.O_WRONLY))
            found.append(attempt(os.chown, "mine", -1, 2000))
            found.append(attempt(os.chown, "mine", -1, 5000))
            found.append(attempt(os.chown, "mine", 1002, -1))
            found.append(attempt(os.access, "f", os.R_OK))
    return found


@probe
def changes_of_mode_and_owner_by_others() -> object:
    make("f", uid=1001, gid=1001)
    found: list[object] = []
    with user(1002):
        found.append(attempt(os.chmod, "f", 0o777))
        found.append(attempt(os.chown, "f", 1002, -1))
        found.append(attempt(os.chown, "f", -1, -1))
        found.append(attempt(os.truncate, "f", 0))
        found.append(attempt(os.setxattr, "f", "user.x", b"1"))
        found.append(attempt(os.getxattr, "f", "trusted.x"))
    with user(1001):
        found.append(attempt(os.chown, "f", 1001, 1001))
        found.append(attempt(os.chown, "f", -1, -1))
        found.append(attempt(os.setxattr, "f", "trusted.x", b"1"))
    os.chown("f", 1001, 2000)
    with user(1001):  # not of the file's group: no setgid bit
        found.append(attempt(os.chmod, "f", 0o2755))
    return found, owner_and_mode("f")


@probe
def what_takes_setuid_away() -> object:
    def write() -> None:
        fd = os.open("f", os.O_WRONLY)
        os.pwrite(fd, b"x", 0)
        os.close(fd)

    def write_map() -> None:
        fd = os.open("f", os.O_RDWR)
        with mmap.mmap(fd, 4) as view:
            view[0] = 1
            view.flush()
        os.close(fd)

    found: list[object] = []
    changes: list[Callable[[], object]] = [
        write,
        write_map,
        lambda: os.truncate("f", 1),
        lambda: open_close("f", os.O_WRONLY | os.O_TRUNC),
        lambda: os.chown("f", 1001, 1001),
        lambda: os.chown("f", -1, -1),
        lambda: os.rename("f", "f"),
        lambda: os.setxattr("f", "user.x", b"1"),
    ]
    for mode in (0o6777, 0o2767):
        for change in changes:
            for who in (0, 1001):
                make("f", uid=1001, gid=1001, mode=mode)
                if who:
                    with user(who):
                        attempt(change)
                else:
                    attempt(change)
                found.append(owner_and_mode("f"))
                os.unlink("f")
    return found


@probe
def access_asks_for_the_real_user() -> object:
    modes = (0o000, 0o444, 0o222, 0o111, 0o700, 0o070, 0o007, 0o640)
    for mode in modes:
        make(f"f{mode}", mode=mode, uid=1001, gid=2000)
        make_dir(f"d{mode}", mode=mode, uid=1001, gid=2000)
    names = [kind + str(mode) for mode in modes for kind in "fd"]
    asked = (os.F_OK, os.R_OK, os.W_OK, os.X_OK, os.R_OK | os.W_OK | os.X_OK)
    found: list[object] = [[os.access(name, how) for name in names for how in asked]]
    for who, groups in ((1001, []), (1002, [2000]), (1002, [])):
        with user(who, groups=groups):
            found.append([os.access(name, how) for name in names for how in asked])
    return found


@probe
def rights_in_directories() -> object:
    found: list[object] = []
    for mode in (0o777, 0o666, 0o555, 0o333, 0o111, 0o000):
        make_dir("d", uid=0)
        make("d/f", mode=0o666)
        make_dir("d/sub", 0o777)
        os.chmod("d", mode)
        with user(1001):
            found.append(attempt(lambda: sorted(os.listdir("d"))))
            found.append(attempt(lambda: os.stat("d/f").st_size))
            found.append(attempt(open_close, "d/f", os.O_RDWR))
            found.append(attempt(open_close, "d/new", os.O_CREAT | os.O_RDWR))
            found.append(attempt(os.rename, "d/f", "d/g"))
            found.append(attempt(os.link, "d/g", "d/h"))
            found.append(attempt(os.mkdir, "d/made"))
            found.append(attempt(os.rmdir, "d/sub"))
            found.append(attempt(os.symlink, "x", "d/l"))
            found.append(attempt(open_close, "d/.", os.O_PATH))
        shutil.rmtree("d")
    return found


@probe
def a_directory_moves_only_with_a_right_to_its_dotdot() -> object:
    make_dir("a", 0o777)
    make_dir("b", 0o777)
    make_dir("a/closed", 0o555, uid=1001)
    make_dir("a/foreign", 0o755, uid=1002)
    with user(1001):
        return [
            attempt(os.rename, "a/closed", "b/closed"),
            attempt(os.rename, "a/foreign", "b/foreign"),
            attempt(os.rename, "a/foreign", "a/renamed"),
        ]


@probe
def utimensat_variants() -> object:
    now, omit, fixed = (0, UTIME_NOW), (0, UTIME_OMIT), (1_000_000_000, 123_456_789)
    values = {"now": now, "omit": omit, "fixed": fixed}
    found: list[object] = []
    for mode in (0o600, 0o666):
        for who in (0, 1001, 1002):
            for first, atime in values.items():
                for second, mtime in values.items():
                    make("f", mode=mode, uid=1001)
                    os.utime("f", ns=(1, 2))
                    with user(who) if who else contextlib.nullcontext():
                        result = attempt(utimens, "f", atime, mtime)
                    status = os.stat("f")
                    times = (status.st_atime_ns, status.st_mtime_ns)
                    recent = [time.time() - t / 1e9 < 100 or t for t in times]
                    found.append((mode, who, first, second, result, recent))
                    os.unlink("f")
            make("f", mode=mode, uid=1001)
            with user(who) if who else contextlib.nullcontext():
                found.append(attempt(os.utime, "f"))
                found.append(attempt(open_close, "f", os.O_RDONLY | os.O_NOATIME))
            os.unlink("f")
    make("f")
    found.append(attempt(utimens, "f", (0, 1_000_000_000), now))
    found.append(attempt(utimens, "missing", omit, omit))
    return found


@probe
def links_and_nodes_by_others() -> object:
    make_dir("d", 0o777)
    make("d/secret", mode=0o600)
    make("d/shared", mode=0o666)
    make("d/suid", mode=0o4755)
    with user(1001):
        return [
            attempt(os.link, "d/secret", "d/1"),
            attempt(os.link, "d/shared", "d/2"),
            attempt(os.link, "d/suid", "d/3"),
            attempt(os.mknod, "d/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
            attempt(os.mknod, "d/fifo", stat.S_IFIFO | 0o666),
            attempt(os.mknod, "d/file", stat.S_IFREG | 0o666),
            attempt(os.chmod, "d/file", 0o1644),
            owner_and_mode("d/file"),
        ]


@probe
def a_descriptor_keeps_its_rights() -> object:
    make_dir("d", 0o777)
    with user(1001):
        fd = os.open("d/f", os.O_RDWR | os.O_CREAT, 0o000)
        found = [attempt(os.write, fd, b"x"), attempt(os.pread, fd, 9, 0), attempt(os.fsync, fd)]
        found.append(attempt(open_close, "d/f", os.O_RDONLY))
        found.append(attempt(os.ftruncate, fd, 100))
    os.chown("d/f", 1002, 1002)
    with user(1001):
        found.append(attempt(os.write, fd, b"x"))
        found.append(attempt(os.fchmod, fd, 0o777))
        found.append(attempt(os.ftruncate, fd, 7))
        found.append(attempt(os.setxattr, fd, "user.x", b"1"))
    return found, os.fstat(fd).st_size


@probe
def acl_mask() -> object:
    found: list[object] = []
    make_dir("d", 0o755)
    for mask in (7, 4, 0):
        make("d/f", mode=0o640, gid=2000)
        rows = (OWNER, 6), (USER, 7, 1001), (GROUP_OWNER, 6), (GROUP, 6, 3000), (MASK, mask)
        os.setxattr("d/f", ACCESS_ACL, acl(*rows, (OTHER, 0)))
        found.append(owner_and_mode("d/f"))
        for who, groups in ((1001, []), (1002, [2000]), (1002, [3000]), (1003, [])):
            with user(who, groups=groups):
                for flags in (os.O_RDONLY, os.O_WRONLY):
                    found.append(attempt(open_close, "d/f", flags))
                found.append(os.access("d/f", os.X_OK))
        os.chmod("d/f", 0o670)
        found.append(os.getxattr("d/f", ACCESS_ACL))
        os.removexattr("d/f", ACCESS_ACL)
        found.append(owner_and_mode("d/f"))
        found.append(attempt(os.getxattr, "d/f", ACCESS_ACL))
    return found


@probe
def acl_inheritance() -> object:
    found: list[object] = []
    os.umask(0)  # the umask should not matter here, but does: see Limits in docs/mount.md
    for number, mask in enumerate((7, 6, 0)):
        top = make_dir(f"d{number}", 0o777)
        rows = (OWNER, 7), (USER, 6, 1001), (GROUP_OWNER, 5), (MASK, mask), (OTHER, 4)
        os.setxattr(top, DEFAULT_ACL, acl(*rows))
        for who in (0, 1002):
            with user(who) if who else contextlib.nullcontext():
                open_close(f"{top}/file{who}", os.O_CREAT | os.O_RDWR, 0o666)
                os.mkdir(f"{top}/dir{who}", 0o775)
                os.mkfifo(f"{top}/fifo{who}", 0o644)
                os.mknod(f"{top}/node{who}", stat.S_IFREG | 0o600)
                os.symlink("x", f"{top}/link{who}")
        for name in sorted(os.listdir(top)):
            path = f"{top}/{name}"
            found.append((name, owner_and_mode(path)))
            for key in (ACCESS_ACL, DEFAULT_ACL):
                found.append(attempt(os.getxattr, path, key, follow_symlinks=False))
    with user(1002):
        found.append(attempt(os.setxattr, "d0", DEFAULT_ACL, acl((OWNER, 7))))
    found.append(attempt(os.setxattr, "d0", ACCESS_ACL, b"\2\0\0\0garbage"))
    found.append(attempt(os.setxattr, "d0", ACCESS_ACL, acl((OWNER, 7), (USER, 7, 1))))
    found.append(attempt(os.setxattr, "d0/file0", DEFAULT_ACL, acl((OWNER, 7))))
    os.setxattr("d0", DEFAULT_ACL, b"")
    found.append(attempt(os.getxattr, "d0", DEFAULT_ACL))
    return found


@pytest.mark.root
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_users(work: Path, tmp_path: Path, probe: Probe) -> None:
    assert_alike(work, tmp_path, probe)
