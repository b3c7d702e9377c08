# SPDX-License-Identifier: Apache-2.0
"""The file-system calls: one method for each dfe_fs_* function.

This is the mount's hot path. Out-structs are kept for each thread and unpacked in one step, which
costs a third of reading them field by field.
"""

from __future__ import annotations

import os
import struct
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from dfusepy.engine_base import Handle, alloc, check, fail, ffi, lib, record
from dfusepy.engine_types import Attr, DirEntry, FsInfo, Inode, Invalidation, StatFs

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

COPY_BYTES = 16 << 10  # reads up to this are copied: cheaper than a pin
XATTR_BYTES = 65_536  # XATTR_SIZE_MAX of Linux
SYMLINK_BYTES = 4_096

_ATTR = struct.Struct("=4Q4q7I4x")  # struct dfe_attr
_DIRENT = struct.Struct("=QII")  # struct dfe_dirent, between the attributes and the name
_NAME_AT = _ATTR.size + _DIRENT.size

if (_ATTR.size, _NAME_AT) != (ffi.sizeof("struct dfe_attr"), ffi.sizeof("struct dfe_dirent")):
    raise ImportError("dfusepy._engine was built from other headers: install dfusepy again")

# Attr._make without its check of the length, which the sizes above have settled.
_new_attr = cast("Callable[[type[Attr], tuple[Any, ...]], Attr]", tuple.__new__)
_new_entry = cast("Callable[[type[DirEntry], tuple[Any, ...]], DirEntry]", tuple.__new__)


class _Scratch(threading.local):
    """This thread's out-structs and small buffers. Nothing in them outlives a call."""

    def __init__(self) -> None:
        self.attr = ffi.new("struct dfe_attr *")
        self.attr_bytes = ffi.buffer(self.attr)
        self.u64 = ffi.new("uint64_t *")
        self.small = alloc(COPY_BYTES)
        self._large: Any = None

    def large(self, size: int) -> Any:
        """An uninitialised buffer of at least this size, kept for the next call."""
        if self._large is None or len(self._large) < size:
            self._large = alloc(size)
        return self._large


_local = _Scratch()


class Pin:
    """Bytes of the engine's cache, lent without a copy and unchanged while they are lent.

        with fs.pin(ino, off, size) as view:
            socket.send(view)

    `view` is a read-only memoryview, shorter than asked at the end of a cache slot or of the file.
    Leaving the block gives the bytes back, or, where another object still uses them (a slice, a
    numpy array), that object's end does.
    """

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def release(self) -> None:
        try:
            self.view.release()
        except BufferError:
            # Somebody exported it: the memory goes back when the last user lets go of it.
            self.view = memoryview(b"")

    def __len__(self) -> int:
        return len(self.view)

    def __enter__(self) -> memoryview:
        return self.view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class FileSystem(Handle):
    """An open file system. Inodes are numbers; names are bytes, 1 to 255, without `/` and NUL.

    With NOWAIT in `flags` a call raises WouldBlock instead of waiting for the device, having
    changed nothing. Errors are OSError with the errno of the matching system call. Who may do what
    is not checked here: the kernel does it at the mount.

    A number is good while something refers to the inode: an entry that was looked up lately, or a
    reference, taken by `ref` or by REF in the calls that return inodes, given back by `unref`. An
    inode without links lives until its last reference goes. A number that nothing refers to raises
    OSError ESTALE.

    A file system of a session may be pickled, and a forked child may use its parent's: both open it
    for themselves. References stay where they were taken.
    """

    _what = "file system"

    def _reopen(self) -> Any:
        container: Any = self._parent
        return container.filesystem()._release() if container._reopens else None

    def __reduce__(self) -> tuple[Any, ...]:
        container: Any = self._parent
        return type(container).filesystem, (container,)

    def _close(self, handle: Any) -> int:
        result: int = lib.dfe_fs_close(handle)
        return result

    # -- references and attributes

    def ref(self, ino: Inode) -> None:
        """Takes one reference. Raises OSError: ESTALE (no such inode)."""
        check(lib.dfe_fs_ref(self._h, ino))

    def unref(self, ino: Inode, n: int = 1) -> None:
        """Gives n references back; never waits."""
        lib.dfe_fs_unref(self._h, ino, n)

    def lookup(self, dir: Inode, name: bytes, flags: int = 0) -> Attr:
        """Attributes of an entry. Raises OSError: ENOENT, ENOTDIR, ENAMETOOLONG."""
        out = _local
        result = lib.dfe_fs_lookup(self._h, dir, name, len(name), flags, out.attr)
        if result < 0:
            fail(result)
        return _new_attr(Attr, _ATTR.unpack(out.attr_bytes))

    def getattr(self, ino: Inode, flags: int = 0) -> Attr:
        out = _local
        result = lib.dfe_fs_getattr(self._h, ino, flags, out.attr)
        if result < 0:
            fail(result)
        return _new_attr(Attr, _ATTR.unpack(out.attr_bytes))

    def setattr(
        self,
        ino: Inode,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        ctime_ns: int | None = None,
        flags: int = 0,
    ) -> Attr:
        """Sets the fields that are given, all at once, and returns the result. mode: permission
        bits; its type bits are ignored. Raises OSError: EFBIG (size), EISDIR, EINVAL."""
        attr = ffi.new("struct dfe_attr *")
        mask = 0
        for bit, field, value in (
            (lib.DFE_SET_MODE, "mode", mode),
            (lib.DFE_SET_UID, "uid", uid),
            (lib.DFE_SET_GID, "gid", gid),
            (lib.DFE_SET_SIZE, "size", size),
            (lib.DFE_SET_ATIME, "atime_ns", atime_ns),
            (lib.DFE_SET_MTIME, "mtime_ns", mtime_ns),
            (lib.DFE_SET_CTIME, "ctime_ns", ctime_ns),
        ):
            if value is not None:
                setattr(attr, field, value)
                mask |= bit
        return self._attr(lib.dfe_fs_setattr, ino, attr, mask, flags)

    def _attr(self, call: Any, *args: Any) -> Attr:
        out = _local
        result = call(self._h, *args, out.attr)
        if result < 0:
            fail(result)
        return _new_attr(Attr, _ATTR.unpack(out.attr_bytes))

    # -- names

    def mknod(
        self,
        dir: Inode,
        name: bytes,
        mode: int,
        rdev: int = 0,
        *,
        uid: int = 0,
        gid: int = 0,
        umask: int = 0,
        flags: int = 0,
    ) -> Attr:
        """Makes a regular file, FIFO, socket or device, as the type bits of `mode` say. Raises
        OSError: EEXIST, ENOENT (the directory is gone), ENOTDIR, ENAMETOOLONG, ENOSPC, EROFS."""
        cred = ffi.new("struct dfe_cred *", (uid, gid, umask))
        return self._attr(lib.dfe_fs_mknod, dir, name, len(name), mode, rdev, cred, flags)

    def mkdir(
        self,
        dir: Inode,
        name: bytes,
        mode: int,
        *,
        uid: int = 0,
        gid: int = 0,
        umask: int = 0,
        flags: int = 0,
    ) -> Attr:
        """Makes a directory; errors as `mknod`, and EMLINK."""
        cred = ffi.new("struct dfe_cred *", (uid, gid, umask))
        return self._attr(lib.dfe_fs_mkdir, dir, name, len(name), mode, cred, flags)

    def symlink(
        self,
        dir: Inode,
        name: bytes,
        target: bytes,
        *,
        uid: int = 0,
        gid: int = 0,
        flags: int = 0,
    ) -> Attr:
        """Makes a symbolic link; the target has 1 to 4095 bytes."""
        cred = ffi.new("struct dfe_cred *", (uid, gid, 0))
        return self._attr(
            lib.dfe_fs_symlink, dir, name, len(name), target, len(target), cred, flags
        )

    def readlink(self, ino: Inode, flags: int = 0) -> bytes:
        target = _local.small
        n = check(lib.dfe_fs_readlink(self._h, ino, target, SYMLINK_BYTES, flags))
        return bytes(ffi.buffer(target, n))

    def link(self, ino: Inode, dir: Inode, name: bytes, flags: int = 0) -> Attr:
        """Another name for an inode. Raises OSError: EEXIST, EPERM (a directory), EMLINK."""
        return self._attr(lib.dfe_fs_link, ino, dir, name, len(name), flags)

    def unlink(self, dir: Inode, name: bytes, flags: int = 0) -> None:
        """Removes a name. Raises OSError: ENOENT, EISDIR."""
        check(lib.dfe_fs_unlink(self._h, dir, name, len(name), flags))

    def rmdir(self, dir: Inode, name: bytes, flags: int = 0) -> None:
        """Removes an empty directory. Raises OSError: ENOENT, ENOTDIR, ENOTEMPTY."""
        check(lib.dfe_fs_rmdir(self._h, dir, name, len(name), flags))

    def rename(
        self, dir: Inode, name: bytes, new_dir: Inode, new_name: bytes, flags: int = 0
    ) -> None:
        """Moves an entry, over an existing one unless NOREPLACE; with EXCHANGE swaps the two."""
        check(
            lib.dfe_fs_rename(
                self._h, dir, name, len(name), new_dir, new_name, len(new_name), flags
            )
        )

    def readdir(
        self, dir: Inode, cookie: int = 0, flags: int = 0, page_bytes: int = 65_536
    ) -> list[DirEntry]:
        """A page of entries after `cookie` (0: the start), [] at the end; `.` and `..` are not
        among them. Cookies stay valid across changes and restarts. With REF each inode returned has
        one reference more. page_bytes: bound of the page, at least 512."""
        page = _local.large(page_bytes)
        used = check(lib.dfe_fs_readdir(self._h, dir, cookie, page, page_bytes, flags))
        view = bytes(ffi.buffer(page, used))
        entries = []
        at = 0
        while at < used:
            cookie, rec_len, name_len = _DIRENT.unpack_from(view, at + _ATTR.size)
            attr = _new_attr(Attr, _ATTR.unpack_from(view, at))
            name = view[at + _NAME_AT : at + _NAME_AT + name_len]
            entries.append(_new_entry(DirEntry, (name, attr, cookie)))
            at += rec_len
        return entries

    def parent(self, dir: Inode, flags: int = 0) -> Inode:
        """The parent of a directory; the root is its own."""
        out = _local.u64
        check(lib.dfe_fs_parent(self._h, dir, flags, out))
        return Inode(out[0])

    # -- data

    def read(self, ino: Inode, off: int, size: int, flags: int = 0) -> bytes | memoryview:
        """At most `size` bytes from `off`, fewer only at the end of the file. Up to 16 KiB they are
        bytes; above, a read-only memoryview: of the cache itself where one slot holds them all
        (they stay as they are while the view lives), else of fresh memory."""
        if size <= COPY_BYTES:
            small = _local.small
            n = lib.dfe_fs_read(self._h, ino, off, small, size, flags)
            if n < 0:
                fail(n)
            return bytes(ffi.buffer(small, n))
        view = self._pin(ino, off, size, flags)
        if len(view) in (0, size):
            return view
        # It ended with the file, where nothing follows, or with its slot.
        if not self._pin(ino, off + len(view), 1, flags):
            return view
        del view
        large = alloc(size)
        n = check(lib.dfe_fs_read(self._h, ino, off, large, size, flags))
        return memoryview(ffi.buffer(large, n)).toreadonly()

    def readinto(self, ino: Inode, off: int, buffer: Buffer, flags: int = 0) -> int:
        """Fills a writable buffer; returns the number of bytes, fewer only at the end."""
        dst = ffi.from_buffer("char[]", buffer, require_writable=True)
        return check(lib.dfe_fs_read(self._h, ino, off, dst, len(dst), flags))

    def pin(self, ino: Inode, off: int, size: int, flags: int = 0) -> Pin:
        """Lends bytes of the cache, at most `size`; see Pin. Empty at the end of the file. The file
        system cannot be closed (OSError EBUSY) while any are lent."""
        return Pin(self._pin(ino, off, size, flags))

    def _pin(self, ino: Inode, off: int, size: int, flags: int) -> memoryview:
        pin = ffi.new("struct dfe_pin *")
        check(lib.dfe_fs_pin(self._h, ino, off, size, flags, pin))
        if pin.len == 0:
            return memoryview(b"")

        # By its address: a reference would keep `close` waiting, which EBUSY is there for.
        address, owner_pid = ffi.cast("uintptr_t", self._h), os.getpid()

        def unpin(_ptr: Any) -> None:
            if os.getpid() == owner_pid:  # else the process was forked, and the pin is the parent's
                lib.dfe_fs_unpin(ffi.cast("struct dfe_fs *", address), pin)

        # The memoryview keeps the pointer alive, and the pointer's end is the pin's end.
        owner = ffi.gc(ffi.cast("char *", pin.ptr), unpin, pin.len)
        return memoryview(ffi.buffer(owner, pin.len)).toreadonly()

    def write(self, ino: Inode, off: int, data: Buffer, flags: int = 0) -> int:
        """Accepts all of `data` at `off`, or with APPEND at the end. Returns its length. Raises
        OSError: ENOSPC, EFBIG, EIO (the device is failing and memory is full), EROFS."""
        src = ffi.from_buffer("char[]", data)
        n = lib.dfe_fs_write(self._h, ino, off, src, len(src), flags, ffi.NULL)
        return check(n)

    def write_at(self, ino: Inode, off: int, data: Buffer, flags: int = 0) -> tuple[int, int]:
        """As `write`; returns (length, the offset where the bytes went)."""
        src, at = ffi.from_buffer("char[]", data), _local.u64
        n = check(lib.dfe_fs_write(self._h, ino, off, src, len(src), flags, at))
        return n, int(at[0])

    def punch(self, ino: Inode, off: int, length: int, flags: int = 0) -> None:
        """Makes a range within the size read as zeros and frees its whole blocks."""
        check(lib.dfe_fs_punch(self._h, ino, off, length, flags))

    def next_data(self, ino: Inode, off: int) -> int:
        """As lseek(SEEK_DATA). Raises OSError ENXIO where no data follows."""
        out = _local.u64
        check(lib.dfe_fs_next(self._h, ino, off, 0, out))
        return int(out[0])

    def next_hole(self, ino: Inode, off: int) -> int:
        """As lseek(SEEK_HOLE): the file's end counts as a hole. Raises OSError ENXIO past it."""
        out = _local.u64
        check(lib.dfe_fs_next(self._h, ino, off, 1, out))
        return int(out[0])

    def fsync(self, ino: Inode, flags: int = 0) -> None:
        """The file's data and attributes (DATASYNC: data), and every name change before, are
        durable. Raises OSError: the file's write-back error, until that data was rewritten."""
        check(lib.dfe_fs_fsync(self._h, ino, flags))

    def sync(self) -> None:
        """Everything is durable."""
        check(lib.dfe_fs_sync(self._h))

    # -- extended attributes

    def getxattr(self, ino: Inode, name: bytes, flags: int = 0) -> bytes:
        """Raises OSError: ENODATA (no such attribute)."""
        value = _local.large(XATTR_BYTES)
        n = check(lib.dfe_fs_getxattr(self._h, ino, name, len(name), value, XATTR_BYTES, flags))
        return bytes(ffi.buffer(value, n))

    def setxattr(self, ino: Inode, name: bytes, value: Buffer, flags: int = 0) -> None:
        """flags: XATTR_CREATE (EEXIST where it is there), XATTR_REPLACE (ENODATA where it is not).
        Raises OSError: E2BIG, ENOTSUP (namespace), ENOSPC."""
        src = ffi.from_buffer("char[]", value)
        check(lib.dfe_fs_setxattr(self._h, ino, name, len(name), src, len(src), flags))

    def listxattr(self, ino: Inode, flags: int = 0) -> list[bytes]:
        names = _local.large(XATTR_BYTES)
        n = check(lib.dfe_fs_listxattr(self._h, ino, names, XATTR_BYTES, flags))
        return bytes(ffi.buffer(names, n)).split(b"\0")[:-1]

    def removexattr(self, ino: Inode, name: bytes, flags: int = 0) -> None:
        """Raises OSError: ENODATA."""
        check(lib.dfe_fs_removexattr(self._h, ino, name, len(name), flags))

    # -- several faces: for a mount on a session

    def mount(self, read_only: bool = False) -> int:
        """This session's kernel will cache names, attributes and pages. Returns the mount's
        generation: another one for each mount; 0 for a pool in this process, which has one face.
        Raises OSError: EBUSY (another mount writes to it)."""
        out = ffi.new("uint64_t *")
        check(lib.dfe_fs_mount(self._h, bool(read_only), out))
        return int(out[0])

    def inval_next(self, done: int = 0) -> Invalidation:
        """Waits for what the kernel is to forget; done: the id of what was just done, 0 at first.
        Whoever changed it waits meanwhile, so this is for a thread of its own. Raises OSError:
        ESHUTDOWN (after inval_stop), ENOTSUP (a pool in this process)."""
        out = ffi.new("struct dfe_inval *")
        check(lib.dfe_fs_inval_next(self._h, done, out))
        name = bytes(ffi.buffer(out.name, out.name_len))
        return Invalidation(int(out.id), Inode(out.ino), int(out.what), name)

    def inval_stop(self) -> None:
        """Ends `inval_next`, now and from now on."""
        lib.dfe_fs_inval_stop(self._h)

    # -- state

    def statfs(self) -> StatFs:
        out = ffi.new("struct dfe_statfs *")
        check(lib.dfe_fs_statfs(self._h, out))
        return record(StatFs, out)

    def query(self) -> FsInfo:
        out = ffi.new("struct dfe_fs_info *")
        check(lib.dfe_fs_query(self._h, out))
        return record(FsInfo, out)
