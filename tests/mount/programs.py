# SPDX-License-Identifier: Apache-2.0
"""Runs real programs, and tells what trees they leave."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[2]
GIT_ENV = {
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.invalid",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def environment() -> dict[str, str]:
    """That of programs: git knows its user, and meson and ninja are beside the interpreter."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, **GIT_ENV, "PATH": path}


def run(*command: str | Path, cwd: Path | None = None, timeout: float = 300, **more: str) -> str:
    """Runs a program that must succeed; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment() | more,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


class Entry(NamedTuple):
    """What a name in a tree stands for; None where it does not count."""

    mode: int
    uid: int
    gid: int
    size: int | None  # None: a directory
    links: int | None
    mtime_ns: int | None
    first_name: str | None  # of a file of several names
    content: str | None  # checksum, or the target of a symlink
    xattrs: list[tuple[str, bytes]]


def fingerprint(root: Path, *, times: bool = True) -> dict[str, Entry]:
    """Everything under root. Files may name the root: that counts as the same everywhere."""
    found: dict[str, Entry] = {}
    first_name: dict[int, str] = {}
    for folder, folders, files in os.walk(root):
        folders.sort()  # this is the order of the walk, too
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root)
            status = os.lstat(path)
            is_folder = stat.S_ISDIR(status.st_mode)
            content = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path).replace(str(root), "ROOT")
            elif stat.S_ISREG(status.st_mode):
                data = Path(path).read_bytes().replace(os.fsencode(root), b"ROOT")
                content = hashlib.sha256(data).hexdigest()
            found[relative] = Entry(
                mode=status.st_mode,
                uid=status.st_uid,
                gid=status.st_gid,
                size=None if is_folder else status.st_size,
                links=None if is_folder else status.st_nlink,
                mtime_ns=status.st_mtime_ns if times else None,
                first_name=None if is_folder else first_name.setdefault(status.st_ino, relative),
                content=content,
                xattrs=sorted(
                    (key, os.getxattr(path, key, follow_symlinks=False))
                    for key in os.listxattr(path, follow_symlinks=False)
                ),
            )
    return found


def assert_same(found: dict[str, Entry], expected: dict[str, Entry]) -> None:
    assert found.keys() == expected.keys()
    different = {
        name: (found[name], expected[name]) for name in found if found[name] != expected[name]
    }
    assert not different, f"{len(different)} differ, first: {next(iter(different.items()))}"


def make_odd_files(folder: Path) -> None:
    """What trees in the field have: links, a FIFO, holes, names, modes, times, xattrs, an ACL."""
    folder.mkdir()
    (folder / "file").write_bytes(b"data" * 5000)
    os.link(folder / "file", folder / "hard link")
    os.symlink("file", folder / "symlink")
    os.symlink("nowhere/at/all", folder / "dangling")
    os.mkfifo(folder / "fifo", 0o640)
    (folder / ("n" * 255)).write_bytes(b"long")
    (folder / "new\nline").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(folder) + b"/not utf-8 \xff\xfe")).write_bytes(b"x")
    with open(folder / "sparse", "wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"island")
    (folder / "read only").write_bytes(b"r")
    os.chmod(folder / "read only", 0o444)
    os.chmod(folder / "file", 0o4755)
    os.setxattr(folder / "sparse", "user.colour", b"blue")
    os.utime(folder / "new\nline", ns=(1_000_000_001, 999_999_999_123_456_789))
    subprocess.run(["setfacl", "-m", "u:65534:r-x", str(folder)], check=True)
