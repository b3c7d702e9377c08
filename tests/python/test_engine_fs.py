# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: the file-system calls, and memory that crosses without a copy."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import stat
from collections.abc import Callable

import pytest

from dfusepy import engine
from dfusepy.engine import ROOT, Inode

MIB = 1 << 20


def make(fs: engine.FileSystem, name: bytes = b"file", data: bytes = b"") -> Inode:
    attr = fs.mknod(ROOT, name, stat.S_IFREG | 0o644, uid=1, gid=2)
    if data:
        assert fs.write(attr.ino, 0, data) == len(data)
    return attr.ino


def code(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as error:
        call()
    return error.value.errno


def test_the_root(fs: engine.FileSystem) -> None:
    attr = fs.getattr(ROOT)
    assert attr.ino == ROOT
    assert attr.mode == stat.S_IFDIR | 0o755
    assert (attr.uid, attr.gid) == (7, 8)
    assert fs.parent(ROOT) == ROOT
    assert fs.readdir(ROOT) == []


def test_attributes(fs: engine.FileSystem) -> None:
    made = fs.mknod(ROOT, b"file", stat.S_IFREG | 0o644, uid=1, gid=2)
    assert fs.lookup(ROOT, b"file") == fs.getattr(made.ino) == made
    assert (made.uid, made.gid, made.nlink, made.size) == (1, 2, 1, 0)
    attr = fs.setattr(made.ino, mode=0o4600, uid=3, size=10_000, mtime_ns=-5, atime_ns=2**40)
    assert attr.mode == stat.S_IFREG | 0o4600
    assert (attr.uid, attr.gid, attr.size) == (3, 2, 10_000)
    assert (attr.mtime_ns, attr.atime_ns) == (-5, 2**40)
    assert attr.version != made.version
    assert attr.ctime_ns >= made.ctime_ns
    assert fs.setattr(made.ino).size == 10_000


def test_names(fs: engine.FileSystem) -> None:
    ino = make(fs)
    directory = fs.mkdir(ROOT, b"d", 0o755).ino
    link = fs.symlink(ROOT, b"s", b"some/where").ino
    assert fs.readlink(link) == b"some/where"
    assert fs.link(ino, directory, b"second").nlink == 2
    fs.rename(ROOT, b"file", directory, b"moved")
    assert fs.lookup(directory, b"moved").ino == ino
    assert code(lambda: fs.lookup(ROOT, b"file")) == errno.ENOENT
    assert code(lambda: fs.rmdir(ROOT, b"d")) == errno.ENOTEMPTY
    noreplace = engine.NOREPLACE
    assert (
        code(lambda: fs.rename(directory, b"moved", directory, b"second", noreplace))
        == errno.EEXIST
    )
    fs.rename(directory, b"moved", ROOT, b"s", engine.EXCHANGE)
    assert fs.lookup(directory, b"moved").ino == link
    assert fs.lookup(ROOT, b"s").ino == ino
    for name in (b"moved", b"second"):
        fs.unlink(directory, name)
    fs.rmdir(ROOT, b"d")
    assert code(lambda: fs.unlink(ROOT, b"d")) == errno.ENOENT
    for bad, wanted in (
        (b"", errno.ENOENT),
        (b"a/b", errno.EINVAL),
        (b"a\0b", errno.EINVAL),
        (b"x" * 256, errno.ENAMETOOLONG),
    ):
        assert code(functools.partial(make, fs, bad)) == wanted


def test_readdir_in_pages(fs: engine.FileSystem) -> None:
    names = {b"entry-%03d" % n: make(fs, b"entry-%03d" % n) for n in range(200)}
    seen: dict[bytes, engine.Attr] = {}
    cookie = 0
    while page := fs.readdir(ROOT, cookie, engine.PLUS, page_bytes=4096):
        assert len(page) < 200
        seen |= {entry.name: entry.attr for entry in page}
        cookie = page[-1].cookie
    assert {name: attr.ino for name, attr in seen.items()} == names
    assert seen[b"entry-007"] == fs.getattr(names[b"entry-007"])
    assert code(lambda: fs.readdir(ROOT, page_bytes=10)) == errno.EINVAL
    plain = fs.readdir(ROOT)
    assert {entry.attr.ino for entry in plain} == set(names.values())
    assert all(stat.S_ISREG(entry.attr.mode) for entry in plain)


def test_references_keep_an_unlinked_file(fs: engine.FileSystem) -> None:
    ino = make(fs, data=b"still here")
    fs.ref(ino)
    fs.unlink(ROOT, b"file")
    assert fs.getattr(ino).nlink == 0
    assert fs.read(ino, 0, 100) == b"still here"
    fs.unref(ino)
    assert code(lambda: fs.ref(ino)) in (errno.ESTALE, errno.ENOENT)


def test_data(fs: engine.FileSystem) -> None:
    ino = make(fs, data=b"hello")
    assert fs.read(ino, 1, 3) == b"ell"
    assert fs.read(ino, 5, 10) == b""
    assert fs.write_at(ino, 0, b" world", engine.APPEND) == (6, 5)
    assert fs.read(ino, 0, 100) == b"hello world"
    into = bytearray(b"-" * 20)
    assert fs.readinto(ino, 6, memoryview(into)[2:]) == 5
    assert into[:8] == b"--world-"
    fs.punch(ino, 0, 2)
    assert fs.read(ino, 0, 5) == b"\0\0llo"
    fs.fsync(ino)
    fs.fsync(ino, engine.DATASYNC)
    fs.sync()
    assert fs.getattr(ino).used > 0


def test_holes(fs: engine.FileSystem) -> None:
    ino = make(fs)
    fs.write(ino, MIB, b"x" * 4096)
    fs.setattr(ino, size=2 * MIB)
    assert fs.next_data(ino, 0) == MIB
    assert fs.next_hole(ino, MIB) == MIB + 4096
    assert fs.next_hole(ino, 0) == 0
    assert code(lambda: fs.next_data(ino, MIB + 4096)) == errno.ENXIO
    assert code(lambda: fs.next_hole(ino, 2 * MIB)) == errno.ENXIO


@pytest.mark.parametrize("size", [1, 16 << 10, (16 << 10) + 1, 100_000, MIB, MIB + 1, 3 * MIB])
@pytest.mark.parametrize("off", [0, 1, 4096, 70_001])
def test_reads_of_every_length(fs: engine.FileSystem, off: int, size: int) -> None:
    data = bytes(range(256)) * (16 * MIB // 1024)
    ino = make(fs, data=data)
    assert fs.read(ino, off, size) == data[off : off + size]
    assert fs.read(ino, len(data) - size + off, size) == data[len(data) - size + off :][:size]
    assert fs.read(ino, len(data) + off, size) == b""


def test_a_pin_is_the_cache_itself(fs: engine.FileSystem) -> None:
    ino = make(fs, data=b"old " * 2048)
    with fs.pin(ino, 0, 8192) as one, fs.pin(ino, 0, 8192) as two:
        assert one.readonly
        assert bytes(one[:4]) == b"old "
        assert address(one) == address(two)
        fs.write(ino, 0, b"new ")
        assert bytes(one[:4]) == b"old "
        assert fs.read(ino, 0, 4) == b"new "
    with pytest.raises(ValueError, match="released"):
        one[0]
    with fs.pin(ino, 8192, 10) as end:
        assert len(end) == 0


def test_a_large_read_is_not_a_copy(fs: engine.FileSystem) -> None:
    ino = make(fs, data=bytes(MIB))
    with fs.pin(ino, 0, MIB) as pinned:
        whole = len(pinned)
        read = fs.read(ino, 0, whole)
        assert isinstance(read, memoryview)
        assert read.readonly
        assert address(read) == address(pinned)


def test_an_exported_view_outlives_its_block(fs: engine.FileSystem) -> None:
    ino = make(fs, data=b"abcdefgh")
    with fs.pin(ino, 0, 8) as view:
        part = view[2:4]
    assert bytes(part) == b"cd"
    assert code(fs.close) == errno.EBUSY
    assert not fs.closed
    part.release()
    del part
    gc.collect()
    fs.close()


def test_extended_attributes(fs: engine.FileSystem) -> None:
    ino = make(fs)
    assert fs.listxattr(ino) == []
    fs.setxattr(ino, b"user.a", b"1", engine.XATTR_CREATE)
    fs.setxattr(ino, b"user.b", bytes(5000))
    assert code(lambda: fs.setxattr(ino, b"user.a", b"2", engine.XATTR_CREATE)) == errno.EEXIST
    assert code(lambda: fs.setxattr(ino, b"user.c", b"", engine.XATTR_REPLACE)) == errno.ENODATA
    assert fs.getxattr(ino, b"user.a") == b"1"
    assert fs.getxattr(ino, b"user.b") == bytes(5000)
    assert sorted(fs.listxattr(ino)) == [b"user.a", b"user.b"]
    fs.removexattr(ino, b"user.a")
    assert code(lambda: fs.getxattr(ino, b"user.a")) == errno.ENODATA
    assert code(lambda: fs.setxattr(ino, b"user.x", bytes(65_537))) == errno.E2BIG


def test_state(fs: engine.FileSystem) -> None:
    make(fs)
    st = fs.statfs()
    assert 0 < st.blocks_free <= st.blocks
    assert st.name_max == 255
    assert fs.query().inodes_cached >= 1


def test_a_snapshot_of_dirty_data(engine_pool: engine.Pool, fs: engine.FileSystem) -> None:
    ino = make(fs, data=b"before")
    with engine_pool.container("files") as container:
        container.snapshot_create("s")
        assert container.check(data=True) == []
    fs.write(ino, 0, b"after!")
    with engine_pool.container("files", "s") as then, then.filesystem() as old:
        assert old.lookup(ROOT, b"file").ino == ino
        assert old.read(ino, 0, 10) == b"before"
        assert code(lambda: old.unlink(ROOT, b"file")) == errno.EROFS
    assert fs.read(ino, 0, 10) == b"after!"


def test_nowait_answers_from_memory_or_says_so(
    engine_pool: engine.Pool, fs: engine.FileSystem
) -> None:
    data = b"x" * MIB
    ino = make(fs, data=data)
    fs.sync()
    engine_pool.drop_caches()
    with contextlib.suppress(engine.WouldBlock):
        assert fs.read(ino, 0, MIB, engine.NOWAIT) == data
    assert fs.read(ino, 0, MIB) == data
    assert fs.read(ino, 0, 4096, engine.NOWAIT) == data[:4096]
    assert fs.lookup(ROOT, b"file", engine.NOWAIT).ino == ino


def address(view: memoryview) -> int:
    """Where a read-only view's memory is."""
    from dfusepy.engine_base import ffi

    return int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
