# SPDX-License-Identifier: Apache-2.0
"""Every operation of the mount, through the kernel: names, links, directories, special files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4


def fails(err: int, call: Callable[..., object], *args: object, **kwargs: object) -> None:
    with pytest.raises(OSError) as caught:
        call(*args, **kwargs)
    assert caught.value.errno == err, caught.value


def rename2(old: Path, new: Path, flags: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err))


# -- files -------------------------------------------------------------------------------------


def test_create_write_read(work: Path) -> None:
    path = work / "file"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
    assert os.write(fd, b"hello world") == 11
    assert os.pread(fd, 100, 6) == b"world"
    assert os.pread(fd, 100, 11) == b""
    os.close(fd)
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o640 & ~os.umask(os.umask(0o22))
    assert (status.st_size, status.st_nlink, status.st_uid) == (11, 1, os.geteuid())
    fails(errno.EEXIST, os.open, path, os.O_CREAT | os.O_EXCL)
    fails(errno.ENOENT, os.open, work / "absent", os.O_RDONLY)
    fails(errno.ENOTDIR, os.open, path / "below", os.O_RDONLY)


def test_umask_and_open_without_write_permission(work: Path) -> None:
    before = os.umask(0o077)
    try:
        fd = os.open(work / "private", os.O_CREAT | os.O_WRONLY, 0o444)
    finally:
        os.umask(before)
    os.write(fd, b"the descriptor may, though the mode says no")
    os.close(fd)
    assert stat.S_IMODE((work / "private").stat().st_mode) == 0o400


def test_truncation(work: Path) -> None:
    path = work / "file"
    path.write_bytes(b"x" * 10_000)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    assert path.stat().st_size == 0
    path.write_bytes(b"x" * 10_000)
    before = path.stat()
    os.truncate(path, 5_000)
    assert path.read_bytes() == b"x" * 5_000
    assert path.stat().st_mtime_ns >= before.st_mtime_ns
    with open(path, "r+b") as file:
        os.ftruncate(file.fileno(), 6_000)
    assert path.read_bytes() == b"x" * 5_000 + bytes(1_000)
    fails(errno.EISDIR, os.truncate, work, 0)


def test_append(work: Path) -> None:
    path = work / "log"
    one = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    two = os.open(path, os.O_APPEND | os.O_WRONLY)
    for number in range(100):
        os.write(one if number % 2 else two, b"%03d\n" % number)
    os.close(one)
    os.close(two)
    assert path.read_text().split() == [f"{n:03}" for n in range(100)]


def test_sparse(work: Path) -> None:
    path = work / "sparse"
    with open(path, "wb") as file:
        file.write(b"head")
        file.seek(40 << 20)
        file.write(b"tail")
    assert path.stat().st_size == (40 << 20) + 4
    with open(path, "rb") as file:
        assert file.read(8) == b"head" + bytes(4)
        file.seek((40 << 20) - 4)
        assert file.read() == bytes(4) + b"tail"


@pytest.mark.parametrize("edge", [4096, 65536, 1 << 20])
def test_edges_of_blocks(work: Path, edge: int) -> None:
    path = work / "file"
    data = bytearray()
    with open(path, "w+b", buffering=0) as file:
        for off, byte in ((edge - 1, b"a"), (edge, b"b"), (edge + 1, b"c"), (2 * edge - 1, b"dd")):
            file.seek(off)
            file.write(byte)
            data.extend(bytes(max(0, off + len(byte) - len(data))))
            data[off : off + len(byte)] = byte
        file.seek(0)
        assert file.read() == bytes(data)
    assert path.read_bytes() == bytes(data)


def test_large_requests(work: Path) -> None:
    path, data = work / "file", os.urandom(5 << 20)
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    assert os.write(fd, data) == len(data)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, len(data) + 1, 0) == data
    os.close(fd)


def test_fsync_of_file_and_directory(work: Path) -> None:
    with open(work / "file", "wb") as file:
        file.write(b"durable")
        file.flush()
        os.fsync(file.fileno())
        os.fdatasync(file.fileno())
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def test_unlinked_file_lives_while_open(work: Path) -> None:
    path = work / "file"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(fd, b"before")
    os.unlink(path)
    fails(errno.ENOENT, os.stat, path)
    os.write(fd, b" and after")
    assert os.pread(fd, 100, 0) == b"before and after"
    assert os.fstat(fd).st_nlink == 0
    os.fsync(fd)
    os.close(fd)


def test_file_renamed_over_lives_while_open(work: Path) -> None:
    (work / "old").write_bytes(b"old data")
    (work / "new").write_bytes(b"new data")
    fd = os.open(work / "old", os.O_RDWR)
    os.rename(work / "new", work / "old")
    assert os.pread(fd, 100, 0) == b"old data"
    os.pwrite(fd, b"OLD", 0)
    assert os.pread(fd, 100, 0) == b"OLD data"
    assert (work / "old").read_bytes() == b"new data"
    os.close(fd)


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [b"plain", b"with space", b"new\nline", b"\xff\xfe invalid", "ünïcode".encode(), b"n" * 255],
    ids=["plain", "space", "newline", "invalid", "unicode", "long"],
)
def test_names_are_bytes(work: Path, name: bytes) -> None:
    base = os.fsencode(work)
    path = os.path.join(base, name)
    with open(path, "wb") as file:
        file.write(name)
    assert os.listdir(base) == [name]
    os.rename(path, path[:-1] + b"_")
    assert os.listdir(base) == [name[:-1] + b"_"]
    os.unlink(path[:-1] + b"_")
    assert os.listdir(base) == []


def test_name_too_long(work: Path) -> None:
    path = work / ("n" * 256)
    fails(errno.ENAMETOOLONG, os.stat, path)
    fails(errno.ENAMETOOLONG, os.mkdir, path)
    fails(errno.ENAMETOOLONG, os.open, path, os.O_CREAT)


def test_mkdir_rmdir(work: Path) -> None:
    os.mkdir(work / "d", 0o750)
    assert stat.S_IMODE((work / "d").stat().st_mode) == 0o750
    assert (work.stat().st_nlink, (work / "d").stat().st_nlink) == (3, 2)
    fails(errno.EEXIST, os.mkdir, work / "d")
    (work / "d" / "f").touch()
    fails(errno.ENOTEMPTY, os.rmdir, work / "d")
    fails(errno.ENOTDIR, os.rmdir, work / "d" / "f")
    fails(errno.EISDIR, os.unlink, work / "d")
    os.unlink(work / "d" / "f")
    os.rmdir(work / "d")
    fails(errno.ENOENT, os.rmdir, work / "d")
    assert work.stat().st_nlink == 2


def test_working_directory_that_was_removed(work: Path) -> None:
    path = work / "d"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    path.rmdir()
    assert os.listdir(fd) == []
    fails(errno.ENOENT, os.open, "x", os.O_CREAT, dir_fd=fd)
    os.close(fd)


def test_rename(work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text(name)
    (work / "d").mkdir()
    (work / "d" / "e").mkdir()
    os.rename(work / "a", work / "b")
    assert (work / "b").read_text() == "a"
    assert not (work / "a").exists()
    os.rename(work / "b", work / "d" / "b")
    assert (work / "d" / "b").read_text() == "a"
    fails(errno.ENOENT, os.rename, work / "a", work / "c")
    fails(errno.EINVAL, os.rename, work / "d", work / "d" / "e" / "f")
    fails(errno.ENOTDIR, os.rename, work / "d" / "e", work / "d" / "b")
    fails(errno.EISDIR, os.rename, work / "d" / "b", work / "d" / "e")
    (work / "other").mkdir()
    fails(errno.ENOTEMPTY, os.rename, work / "other", work / "d")
    os.rename(work / "d", work / "other")
    assert sorted(os.listdir(work / "other")) == ["b", "e"]


def test_rename_flags(work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text(name)
    (work / "d").mkdir()
    fails(errno.EEXIST, rename2, work / "a", work / "b", RENAME_NOREPLACE)
    rename2(work / "a", work / "c", RENAME_NOREPLACE)
    rename2(work / "b", work / "c", RENAME_EXCHANGE)
    assert ((work / "b").read_text(), (work / "c").read_text()) == ("a", "b")
    rename2(work / "b", work / "d", RENAME_EXCHANGE)
    assert (work / "b").is_dir()
    assert (work / "d").is_file()
    fails(errno.ENOENT, rename2, work / "b", work / "absent", RENAME_EXCHANGE)
    fails(errno.EINVAL, rename2, work / "b", work / "x", RENAME_WHITEOUT)


def test_hard_links(work: Path) -> None:
    (work / "one").write_text("data")
    os.link(work / "one", work / "two")
    one, two = (work / "one").stat(), (work / "two").stat()
    assert (one.st_ino, one.st_nlink) == (two.st_ino, 2)
    (work / "two").write_text("changed")
    assert (work / "one").read_text() == "changed"
    os.unlink(work / "one")
    assert (work / "two").read_text() == "changed"
    assert (work / "two").stat().st_nlink == 1
    fails(errno.EPERM, os.link, work, work / "three")
    fails(errno.EEXIST, os.link, work / "two", work / "two")
    # Two names of one inode: rename does nothing.
    os.link(work / "two", work / "three")
    os.rename(work / "two", work / "three")
    assert sorted(os.listdir(work)) == ["three", "two"]


def test_symlinks(work: Path) -> None:
    target = "t" * 4095
    os.symlink(target, work / "long")
    assert os.readlink(work / "long") == target
    status = os.lstat(work / "long")
    assert stat.S_ISLNK(status.st_mode)
    assert status.st_size == len(target)
    os.symlink("file", work / "link")
    fails(errno.ENOENT, os.stat, work / "link")
    (work / "file").write_text("through the link")
    assert (work / "link").read_text() == "through the link"
    os.symlink("loop", work / "loop")
    fails(errno.ELOOP, os.stat, work / "loop")
    fails(errno.EEXIST, os.symlink, "x", work / "link")
    fails(errno.EINVAL, os.readlink, work / "file")
    os.symlink(b"\xff", os.fsencode(work / "bytes"))
    assert os.readlink(os.fsencode(work / "bytes")) == b"\xff"


def test_fifo_and_socket(work: Path) -> None:
    import socket

    os.mkfifo(work / "fifo", 0o600)
    assert stat.S_ISFIFO((work / "fifo").stat().st_mode)
    reader = os.open(work / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(work / "fifo", os.O_WRONLY)
    os.write(writer, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)
    fd = os.open(work, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(f"/proc/self/fd/{fd}/socket")  # sun_path is short
        server.listen()
        client.connect(f"/proc/self/fd/{fd}/socket")
    os.close(fd)
    assert stat.S_ISSOCK((work / "socket").stat().st_mode)


@pytest.mark.root
def test_device_nodes(work: Path) -> None:
    for name, kind in (("c", stat.S_IFCHR), ("b", stat.S_IFBLK)):
        os.mknod(work / name, kind | 0o600, os.makedev(259, 70_000))
        status = (work / name).stat()
        assert stat.S_IFMT(status.st_mode) == kind
        assert status.st_rdev == os.makedev(259, 70_000)
    fails(errno.EACCES, os.open, work / "c", os.O_RDONLY)  # mounted nodev


# -- directories -------------------------------------------------------------------------------


def test_listing(work: Path) -> None:
    names = {f"file-{n:04}" for n in range(1500)}
    for name in names:
        (work / name).touch()
    (work / "sub").mkdir()
    with os.scandir(work) as entries:
        found = {entry.name: (entry.is_dir(), entry.inode()) for entry in entries}
    assert found.keys() == names | {"sub"}
    assert found["sub"][0]
    assert all(os.lstat(work / name).st_ino == ino for name, (_, ino) in found.items())


def test_dot_and_dotdot(work: Path) -> None:
    import ctypes

    class Dirent(ctypes.Structure):
        _fields_ = (
            ("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
            ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256),
        )  # fmt: skip

    libc = ctypes.CDLL(None)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.POINTER(Dirent)
    (work / "sub").mkdir()
    handle = ctypes.c_void_p(libc.opendir(os.fsencode(work / "sub")))
    found = {}
    while entry := libc.readdir(handle):
        found[entry.contents.name] = entry.contents.ino
    libc.closedir(handle)
    assert found == {b".": (work / "sub").stat().st_ino, b"..": work.stat().st_ino}


def test_listing_while_it_changes(work: Path) -> None:
    stay = {f"stay-{n}" for n in range(800)}
    go = {f"go-{n}" for n in range(800)}
    for name in stay | go:
        (work / name).touch()
    seen: list[str] = []
    with os.scandir(work) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number == 100:
                for name in go:
                    os.unlink(work / name)
                for n in range(100):
                    (work / f"new-{n}").touch()
    assert len(seen) == len(set(seen))
    assert stay <= set(seen)
    assert sorted(os.listdir(work)) == sorted(stay | {f"new-{n}" for n in range(100)})


def test_rewind_and_seek(work: Path) -> None:
    for n in range(500):
        (work / str(n)).touch()
    fd = os.open(work, os.O_RDONLY)
    for _ in range(3):
        assert len(os.listdir(fd)) == 500  # listdir(fd) rewinds
    os.close(fd)


# -- the file system ---------------------------------------------------------------------------


def test_statfs(work: Path) -> None:
    before = os.statvfs(work)
    assert before.f_namemax == 255
    assert 0 < before.f_bavail <= before.f_bfree <= before.f_blocks
    assert before.f_files > before.f_ffree > 0


def test_mmap_shared(work: Path) -> None:
    import mmap

    path = work / "file"
    path.write_bytes(bytes(3 * 4096 + 100))
    with open(path, "r+b") as file:
        with mmap.mmap(file.fileno(), 0) as view:
            view[0:5] = b"first"
            view[4094:4098] = b"edge"
            view[-4:] = b"last"
            view.flush()
            assert os.pread(file.fileno(), 5, 0) == b"first"
        os.pwrite(file.fileno(), b"WRITE", 8192)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[8192:8197] == b"WRITE"
    data = path.read_bytes()
    assert data[:5] == b"first"
    assert data[4094:4098] == b"edge"
    assert data[-4:] == b"last"
    assert len(data) == 3 * 4096 + 100


def test_direct_io(work: Path) -> None:
    import mmap

    path = work / "file"
    buffer = mmap.mmap(-1, 8192)
    buffer.write(b"D" * 8192)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    assert os.write(fd, buffer) == 8192
    os.close(fd)
    assert path.read_bytes() == b"D" * 8192


def test_many_at_once(work: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> bool:
        path = work / str(number % 40)
        data = os.urandom(1 + number * 997 % 30_000)
        temporary = work / f"{number}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            if number % 7 == 0:
                os.fsync(file.fileno())
        same = temporary.read_bytes() == data
        os.rename(temporary, path)
        return same

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(400)))
    assert len(os.listdir(work)) == 40
