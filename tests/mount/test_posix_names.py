# SPDX-License-Identifier: Apache-2.0
"""Opening, names, links and renames: the same probes on the host's file system and on the mount
must give the same answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from probes import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Probe,
    assert_alike,
    attempt,
    make,
    open_close,
    renameat2,
)

PROBES: list[Probe] = []


def probe(function: Probe) -> Probe:
    PROBES.append(function)
    return function


def zoo() -> list[str]:
    """One of each kind of file."""
    make("file")
    os.mkdir("dir")
    os.mkdir("full")
    make("full/file")
    os.symlink("file", "to-file")
    os.symlink("dir", "to-dir")
    os.symlink("missing", "dangling")
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("socket")
    os.link("file", "hard")
    return sorted(os.listdir("."))


# -- names -------------------------------------------------------------------------------------


@probe
def kinds_of_opening() -> object:
    names = [*zoo(), "new", "file/", "dir/", "to-file/", "to-dir/", "dangling/", "new/", "", "."]
    names += ["file/x", "fifo/x", "loop/x", "to-dir/x", "..", "./file", "dir/../file"]
    ways = [
        os.O_RDONLY,
        os.O_WRONLY,
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_RDONLY | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_DIRECTORY,
        os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_CREAT | os.O_DIRECTORY,
        os.O_PATH | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_TRUNC,
        os.O_RDWR | os.O_TRUNC | os.O_APPEND,
        os.O_WRONLY | os.O_SYNC,
        os.O_RDWR | os.O_DIRECT,
    ]
    found = {}
    for name in names:
        for flags in ways:
            found[name, flags] = attempt(open_close, name, flags | os.O_NONBLOCK)
            for made in ("new", "missing"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(made)
    return found


@probe
def calls_on_each_kind() -> object:
    def go_and_return(name: str) -> None:
        os.chdir(name)
        os.chdir(here)

    calls: dict[str, Callable[[str], object]] = {
        "mkdir": os.mkdir,
        "rmdir": os.rmdir,
        "unlink": os.unlink,
        "readlink": os.readlink,
        "listdir": lambda name: sorted(os.listdir(name)),
        "link from": lambda name: os.link(name, "other", follow_symlinks=False),
        "link to": lambda name: os.link("file", name),
        "symlink": lambda name: os.symlink("x", name),
        "mkfifo": os.mkfifo,
        "lstat": lambda name: stat.filemode(os.lstat(name).st_mode),
        "stat": lambda name: stat.filemode(os.stat(name).st_mode),
        "truncate": lambda name: os.truncate(name, 1) if "fifo" not in name else None,
        "chdir": go_and_return,
        "statfs": lambda name: bool(os.statvfs(name)),
        "user xattr": lambda name: os.setxattr(name, "user.x", b"1", follow_symlinks=False),
        "trusted xattr": lambda name: os.setxattr(name, "security.x", b"", follow_symlinks=False),
        "list": lambda name: sorted(os.listxattr(name, follow_symlinks=False)),
        "lchown": lambda name: os.chown(name, 0, 0, follow_symlinks=False),
        "chmod": lambda name: os.chmod(name, 0o600),
    }
    here = os.getcwd()
    found = {}
    names = ["file", "dir", "full", "to-file", "to-dir", "dangling", "loop", "fifo", "socket"]
    names += [f"{name}/" for name in names] + [".", "..", "", "missing", "missing/", "file/x"]
    for number, (title, call) in enumerate(calls.items()):
        for place, name in enumerate(names):
            os.mkdir(inner := f"{number}.{place}")
            os.chdir(here := os.path.abspath(inner))
            zoo()
            found[title, name] = attempt(call, name)
            os.chdir("..")
    return found


@probe
def long_names_and_loops() -> object:
    name, deep = "n" * 255, "d" * 200
    found: list[object] = [attempt(open_close, name, os.O_CREAT | os.O_RDWR)]
    for call in (os.mkdir, os.rmdir, os.unlink, os.stat, os.readlink, os.mkfifo, os.listdir):
        found.append(attempt(call, name + "n"))
    make("f")
    for pair in ((name, name + "n"), (name + "n", name)):
        found.append(attempt(os.rename, *pair))
        found.append(attempt(os.link, *pair))
    for length in (1, 60, 4094, 4095, 4096):
        found.append(attempt(os.symlink, "t" * length, f"l{length}"))
        found.append(attempt(os.readlink, f"l{length}"))
    found.append(attempt(os.symlink, "", "empty"))
    found.append(attempt(os.stat, "l4095"))
    found.append(attempt(os.stat, "./" * 2047 + "f").__class__.__name__)
    found.append(attempt(os.stat, "./" * 2048 + "f"))
    for _ in range(30):  # deeper than one path can say
        os.mkdir(deep)
        os.chdir(deep)
    make("bottom")
    found.append((os.stat("bottom").st_size, len(os.listdir("."))))
    for _ in range(30):
        os.chdir("..")
    for number in range(45):
        os.symlink(f"chain{number - 1}" if number else "f", f"chain{number}")
    found.append([attempt(open_close, f"chain{number}", os.O_RDONLY) for number in range(45)])
    return found


@probe
def kinds_in_a_listing() -> object:
    zoo()
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3)) if os.geteuid() == 0 else None
    with os.scandir(".") as entries:
        return sorted(
            (
                entry.name,
                entry.is_dir(follow_symlinks=False),
                entry.is_file(follow_symlinks=False),
                entry.is_symlink(),
                entry.inode() == os.lstat(entry.name).st_ino,
            )
            for entry in entries
        )


# -- links and renames -------------------------------------------------------------------------


@probe
def renames_of_every_kind_over_every_kind() -> object:
    names = [*zoo(), "missing", ".", "..", "dir/", "file/", "missing/", "to-dir/", "full/file"]
    found = {}
    here = os.getcwd()
    for flags in (0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE):
        for old in names:
            for new in names:
                os.mkdir(inner := f"{here}/work")
                os.chdir(inner)
                zoo()
                result = attempt(renameat2, old, new, flags)
                tree = [
                    (path, sorted(folders), sorted(files))
                    for path, folders, files in sorted(os.walk("."))
                ]
                found[flags, old, new] = result, hash(str(tree)) if result == 0 else tree
                os.chdir(here)
                shutil.rmtree(inner)
    return found


@probe
def renames_of_directories() -> object:
    os.makedirs("a/b/c")
    os.makedirs("x/y")
    make("a/b/f")
    found: list[object] = [
        attempt(os.rename, "a", "a/b/c/d"),
        attempt(os.rename, "a/b", "a/b"),
        attempt(os.rename, "a/b/c", "a"),
        attempt(os.rename, "a/b", "x/y"),
        attempt(renameat2, "x", "x/y/c", RENAME_EXCHANGE),
        attempt(renameat2, "a", "x/y", RENAME_EXCHANGE),
        attempt(renameat2, "x/y", "x/a", RENAME_NOREPLACE),
        attempt(os.stat, "x/a/../../a").__class__.__name__,
    ]
    links = [(path, os.stat(path).st_nlink) for path, _, _ in sorted(os.walk("."))]
    os.chdir("x/a")
    os.rename("../../x", "../../z")
    found.append(os.path.basename(os.path.dirname(os.getcwd())))
    return found, links


@probe
def links_counted() -> object:
    found: list[object] = []
    make("f")
    for number in range(50):
        os.link("f", f"l{number}")
    found.append(os.stat("f").st_nlink)
    os.rename("l1", "l2")  # the same file: nothing happens
    found.append((os.path.exists("l1"), os.stat("f").st_nlink))
    make("g")
    os.rename("g", "l3")
    found.append(os.stat("f").st_nlink)
    fd = os.open("f", os.O_RDONLY)
    for name in os.listdir("."):
        os.unlink(name)
    found.append(os.fstat(fd).st_nlink)
    found.append(attempt(os.link, f"/proc/self/fd/{fd}", "back", follow_symlinks=True))
    found.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
    for number in range(5):
        os.mkdir(f"d{number}")
        os.mkdir(f"d0/d{number}")
    found.append((os.stat(".").st_nlink, os.stat("d0").st_nlink, os.stat("d1").st_nlink))
    os.rename("d0/d1", "d1/d1")
    os.rename("d0/d2", "d2")
    os.rmdir("d3")
    found.append((os.stat(".").st_nlink, os.stat("d0").st_nlink, os.stat("d1").st_nlink))
    return found


@probe
def a_directory_after_its_end() -> object:
    os.mkdir("d")
    fd = os.open("d", os.O_RDONLY)
    os.chdir("d")
    os.rmdir("../d")
    return [
        os.fstat(fd).st_nlink,
        attempt(os.listdir, fd),
        attempt(os.listdir, "."),
        attempt(open_close, "f", os.O_CREAT | os.O_RDWR),
        attempt(os.mkdir, "x"),
        attempt(os.symlink, "x", "y"),
        attempt(os.stat, "..").__class__.__name__,
        attempt(os.getcwd),
        attempt(os.fchmod, fd, 0o700),
        attempt(os.fsync, fd),
        attempt(os.chdir, ".."),
    ]


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_names(work: Path, tmp_path: Path, probe: Probe) -> None:
    assert_alike(work, tmp_path, probe)
