# SPDX-License-Identifier: Apache-2.0
"""The mount's operations: translate a request, call the engine, translate the answer.

An operation first runs on trio's thread from the engine's memory (NOWAIT); one that would wait is
repeated on a worker thread. So nothing blocks the loop, and most requests never change threads.
Most are plain functions, run both ways (`quick`): coroutines that await one another cost as much as
the engine's call.

A file handle is the inode's number, with a bit for O_APPEND: the kernel keeps the inode referenced
while it is open, so there is no table of handles to keep or leak. The kernel checks permissions
(default_permissions) and holds all locks. Its look-ups are counted by the engine: one reference for
each inode that a reply names.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext

from dfusepy.engine import (
    APPEND,
    DATASYNC,
    EXCHANGE,
    NOREPLACE,
    NOWAIT,
    PLUS,
    REF,
    Attr,
    DirEntry,
    FileSystem,
    Inode,
    WouldBlock,
)
from dfusepy.loop import Door, InHand
from dfusepy.operation import R, needs_wait, operation, quick

QUERY_XATTR = b"user.dfusepy.query"
IL_XATTR = b"user.dfusepy.il"  # where a program finds the session that serves this file
RESERVED_XATTRS = b"user.dfusepy."
ACL_XATTRS = (b"system.posix_acl_access", b"system.posix_acl_default")

# Calls that may wait at the same time. Below pyfuse3's 99 tasks, so that requests which run from
# memory still find a task while the device is slow.
WORKERS = 32

# One page of a directory as the engine gives it. The kernel asks for 4 to 32 KiB, how much pyfuse3
# does not tell; entries that do not fit are fetched for nothing. So the page grows by a step while
# whole pages fit, and shrinks to what did.
DIR_PAGE_BYTES = 16 << 10
DIR_PAGE_STEP = 512
DIR_PAGE_MOST = 24 << 10

# Handles. Inode numbers never get so large.
_APPENDS = 1 << 63
_UNMAPPED = 1 << 62  # it cannot be read, so nothing is mapped through it
_INODE = _UNMAPPED - 1
_TOLD_SIZES = 64  # that the kernel may hold for a file's end while an append is on its way
_PAGE_BYTES = 4096  # the kernel writes dirty pages of maps back whole

_SHARED = 1  # of Attr.flags, as Attr.shared

# Positions of "." and ".." in a listing; the engine's cookies are hashes, which are larger.
_AFTER_DOT, _AFTER_DOTDOT = 1, 2

_RENAME_FLAGS = {
    0: 0,
    pyfuse3.RENAME_NOREPLACE: NOREPLACE,
    pyfuse3.RENAME_EXCHANGE: EXCHANGE,
}

log = logging.getLogger("dfusepy.mount")


@dataclass(frozen=True)
class CacheOptions:
    """How long the kernel may remember, in seconds, and what becomes of its pages at an open.

    keep: they stay while the file's data version is the one they were read from; auto: they are
    dropped at every open; direct: there are none.
    """

    attr_timeout: float
    entry_timeout: float
    negative_timeout: float
    mode: str = "keep"


def _who(ctx: RequestContext) -> dict[str, int]:
    """Who asks, as the engine's calls that create take it."""
    return {"uid": ctx.uid, "gid": ctx.gid, "umask": ctx.umask}


def _mode_after_write(mode: int) -> int | None:
    """The mode without setuid and setgid, which a change of the data by an ordinary user takes away
    (a setgid bit without a group's execute bit means something else); None: as it is. Of all such
    changes the kernel leaves an open with O_TRUNC alone to us."""
    taken = mode & (stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0))
    return stat.S_IMODE(mode & ~taken) if taken else None


@dataclass(frozen=True)
class Session:
    """What a mount on a session has beside its file system."""

    il: bytes  # the value of IL_XATTR
    in_hand: InHand
    forget_pages: Callable[[Inode], None]  # the kernel has wrong ones; does not wait


class Operations(pyfuse3.Operations):
    """One mounted file system. `query` returns the JSON text of `fs query`; without `session` the
    mount is the only writer there is.

    Not implemented, each on purpose: `flush` (ENOSYS: the kernel stops sending one at every close;
    write-back errors are fsync's to report), `poll` (the kernel's answer for files is right).
    """

    supports_dot_lookup = True  # file handles (NFS) work while the engine remembers the inode
    enable_acl = True

    def __init__(
        self,
        filesystem: FileSystem,
        cache: CacheOptions,
        query: Callable[[], bytes],
        door: Door,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        self._fs = filesystem
        self._cache = cache
        self._query = query
        self._door = door
        self._session = session
        self._keep = cache.mode == "keep"
        self._direct = cache.mode == "direct"
        self._attr_timeout = cache.attr_timeout
        self._entry_timeout = cache.entry_timeout
        self._dir_page = DIR_PAGE_BYTES
        self._limiter = trio.CapacityLimiter(WORKERS)
        # Data version of the pages that the kernel may hold, as of the last open or close; and the
        # inodes written since. Both forget with the kernel.
        self._seen: dict[int, int] = {}
        self._written: set[int] = set()
        # Sizes that the kernel was told, the last one last, of files opened for appending.
        self._told: dict[int, deque[int]] = {}

    # -- how the engine is called --------------------------------------------------------------

    async def _call(self, call: Callable[..., R], *args: Any, flags: int = 0, **kwargs: Any) -> R:
        """Runs an engine call here if it needs not wait, else on a worker thread."""
        try:
            return call(*args, flags=flags | NOWAIT, **kwargs)
        except WouldBlock:
            return await self._wait(call, *args, flags=flags, **kwargs)

    async def _wait(self, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Runs a call that may wait, on a worker thread."""
        bound = functools.partial(call, *args, **kwargs)
        self._door.pending += 1
        try:
            return await trio.to_thread.run_sync(bound, limiter=self._limiter)
        finally:
            self._door.pending -= 1

    async def _wait_naming(self, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """As `_wait`, for a call whose answer names inodes: see loop.InHand."""
        if self._session is None:
            return await self._wait(call, *args, **kwargs)
        in_hand = self._session.in_hand
        number = in_hand.begin()
        try:
            return await self._wait(call, *args, **kwargs)
        finally:
            in_hand.end(number)

    def _entry(self, attr: Attr) -> EntryAttributes:
        return self._fill(EntryAttributes(), attr)

    def _fill(self, entry: EntryAttributes, attr: Attr) -> EntryAttributes:
        (
            entry.st_ino,
            entry.st_size,
            used,
            _,
            entry.st_atime_ns,
            entry.st_mtime_ns,
            entry.st_ctime_ns,
            _,
            entry.st_mode,
            entry.st_nlink,
            entry.st_uid,
            entry.st_gid,
            entry.st_rdev,
            entry.st_blksize,
            flags,
        ) = attr
        entry.st_blocks = used >> 9
        entry.attr_timeout = 0 if flags & _SHARED else self._attr_timeout
        entry.entry_timeout = self._entry_timeout
        if self._told and attr.ino in self._told:
            self._tell(attr.ino, attr.size)
        return entry

    def _tell(self, ino: int, size: int) -> None:
        """The kernel hears of a size, or knows it from what it does itself."""
        told = self._told.setdefault(ino, deque(maxlen=_TOLD_SIZES))
        if not told or told[-1] != size:
            told.append(size)

    def _opened(self, attr: Attr, flags: int) -> FileInfo:
        keep = self._keep and self._seen.get(attr.ino) == attr.version
        self._seen[attr.ino] = attr.version
        handle: int = attr.ino
        if flags & os.O_APPEND and self._session is not None:
            handle |= _APPENDS | (0 if flags & os.O_RDWR else _UNMAPPED)
            self._tell(attr.ino, attr.size)
        elif flags & os.O_TRUNC and attr.ino in self._told:
            self._tell(attr.ino, 0)
        return FileInfo(fh=handle, direct_io=self._direct, keep_cache=keep)

    # -- names ---------------------------------------------------------------------------------

    @quick
    def lookup(
        self, now: int, parent_inode: Inode, name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        """Lookup count of the entry's inode: +1; an absent name has none."""
        if name in (b".", b".."):
            needs_wait(now)
            return self._entry(self._lookup_dots(parent_inode, name))
        try:
            attr = self._fs.lookup(parent_inode, name, now | REF)
        except FileNotFoundError:
            absent = EntryAttributes()  # inode 0: the kernel remembers that there is none
            absent.entry_timeout = self._cache.negative_timeout
            return absent
        return self._entry(attr)

    def _lookup_dots(self, inode: Inode, name: bytes) -> Attr:
        """Lookup count: +1. Asked for when a file handle is opened (NFS, open_by_handle_at), of an
        inode that the kernel has forgotten; the engine may not have heard of that yet."""
        if name == b"..":
            inode = self._fs.parent(inode)
        self._fs.ref(inode)
        try:
            attr = self._fs.getattr(inode)
            if attr.nlink == 0:
                raise FUSEError(errno.ESTALE)
            return attr
        except BaseException:
            self._fs.unref(inode)
            raise

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Lookup count: as given in the list, downwards."""
        for inode, count in inode_list:
            self._seen.pop(inode, None)
            self._written.discard(inode)
            self._told.pop(inode, None)
            self._fs.unref(Inode(inode), count)

    @quick
    def mknod(
        self, now: int, parent_inode: Inode, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Lookup count of the new inode: 1."""
        attr = self._fs.mknod(parent_inode, name, mode, rdev, flags=now | REF, **_who(ctx))
        return self._entry(attr)

    @quick
    def mkdir(
        self, now: int, parent_inode: Inode, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Lookup count of the new inode: 1."""
        attr = self._fs.mkdir(parent_inode, name, mode, flags=now | REF, **_who(ctx))
        return self._entry(attr)

    @quick
    def symlink(
        self, now: int, parent_inode: Inode, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        """Lookup count of the new inode: 1."""
        attr = self._fs.symlink(
            parent_inode, name, target, uid=ctx.uid, gid=ctx.gid, flags=now | REF
        )
        return self._entry(attr)

    @quick
    def link(
        self, now: int, inode: Inode, new_parent_inode: Inode, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        """Lookup count of the inode: +1."""
        attr = self._fs.link(inode, new_parent_inode, new_name, now | REF)
        return self._entry(attr)

    @quick
    def unlink(self, now: int, parent_inode: Inode, name: bytes, ctx: RequestContext) -> None:
        """Lookup counts: no change; the inode lives until its count is 0."""
        self._fs.unlink(parent_inode, name, now)

    @quick
    def rmdir(self, now: int, parent_inode: Inode, name: bytes, ctx: RequestContext) -> None:
        """Lookup counts: no change."""
        self._fs.rmdir(parent_inode, name, now)

    @quick
    def rename(
        self,
        now: int,
        parent_inode_old: Inode,
        name_old: bytes,
        parent_inode_new: Inode,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        """Lookup counts: no change; an inode replaced lives until its count is 0."""
        how = _RENAME_FLAGS.get(flags)
        if how is None:
            raise FUSEError(errno.EINVAL)
        self._fs.rename(parent_inode_old, name_old, parent_inode_new, name_new, now | how)

    @quick
    def readlink(self, now: int, inode: Inode, ctx: RequestContext) -> bytes:
        """Lookup counts: no change."""
        return self._fs.readlink(inode, now)

    # -- attributes ----------------------------------------------------------------------------

    @quick
    def getattr(self, now: int, inode: Inode, ctx: RequestContext) -> EntryAttributes:
        """Lookup counts: no change."""
        return self._entry(self._fs.getattr(inode, now))

    @quick
    def setattr(
        self,
        now: int,
        inode: Inode,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: Inode | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Lookup counts: no change. All fields change together or not at all."""
        new = self._fs.setattr(
            inode,
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=attr.st_ctime_ns if fields.update_ctime else None,
            flags=now,
        )
        return self._entry(new)

    @operation
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        """Lookup counts: no change. The kernel decides by itself and does not ask."""
        return True

    @operation
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        """Lookup counts: no change."""
        found = await self._wait(self._fs.statfs)
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = found.block_bytes
        data.f_blocks, data.f_bfree = found.blocks, found.blocks_free
        data.f_files, data.f_ffree = found.files, found.files_free
        data.f_bavail, data.f_favail = found.blocks_free, found.files_free
        data.f_namemax = found.name_max
        return data

    # -- files ---------------------------------------------------------------------------------

    @quick
    def open(self, now: int, inode: Inode, flags: int, ctx: RequestContext) -> FileInfo:
        """Lookup counts: no change. O_TRUNC arrives here and not as a setattr."""
        attr = self._fs.getattr(inode, now)
        if flags & os.O_TRUNC:
            mode = _mode_after_write(attr.mode) if ctx.uid else None
            attr = self._fs.setattr(inode, size=0, mode=mode, flags=now)
        return self._opened(attr, flags)

    @quick
    def create(
        self, now: int, parent_inode: Inode, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        """Lookup count of the new inode: 1."""
        mode = stat.S_IFREG | stat.S_IMODE(mode)
        attr = self._fs.mknod(parent_inode, name, mode, flags=now | REF, **_who(ctx))
        return self._opened(attr, flags), self._entry(attr)

    @quick
    def read(  # type: ignore[override]
        self, now: int, fh: int, off: int, size: int
    ) -> bytes | memoryview:
        """Lookup counts: no change. The reply is sent from the engine's cache where it can be."""
        return self._fs.read(Inode(fh & _INODE), off, size, now)

    @quick
    def write(self, now: int, fh: int, off: int, buf: bytes) -> int:
        """Lookup counts: no change. The kernel has placed an append at the end; where the mount is
        not the only way in, its idea of the end may be an old one."""
        inode = Inode(fh & _INODE)
        self._written.add(inode)
        if self._told and inode in self._told:
            return self._write_told(now, fh, off, buf)
        return self._fs.write(inode, off, buf, now)

    def _write_told(self, now: int, fh: int, off: int, buf: bytes) -> int:
        """Writes to a file that is open for appending.

        The kernel sends an append with its own end of the file as the offset, which may be any size
        that it was told lately. It may also choose a handle that can be read to write a dirty page
        of a map back: such a write begins with a page and before the end, and stays where it is.
        """
        inode = Inode(fh & _INODE)
        told = self._told[inode]
        placed = off % _PAGE_BYTES == 0 and off < told[-1] and off not in told
        if fh & _APPENDS and (fh & _UNMAPPED or not placed):
            length, at = self._fs.write_at(inode, off, buf, now | APPEND)
            if at != off and self._session is not None:
                # The kernel put these bytes at `off` into its pages.
                self._seen.pop(inode, None)
                self._session.forget_pages(inode)
        else:
            length = self._fs.write(inode, off, buf, now)
        end, last = off + length, told[-1]
        self._tell(inode, end)
        self._tell(inode, max(end, last))
        return length

    @quick
    def release(self, now: int, fh: int) -> None:
        """Lookup counts: no change. The kernel's pages are those of this moment."""
        inode = Inode(fh & _INODE)
        if inode in self._written:
            self._seen[inode] = self._fs.getattr(inode, now).version
            self._written.discard(inode)

    @operation
    async def fsync(self, fh: int, datasync: bool) -> None:
        """Lookup counts: no change. Always waits, so always on a worker thread."""
        await self._wait(self._fs.fsync, Inode(fh & _INODE), flags=DATASYNC if datasync else 0)

    # -- directories ---------------------------------------------------------------------------

    @operation
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        """Lookup counts: no change."""
        return inode

    @operation
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Lookup count of each inode that the reply takes: +1, but for "." and ".."."""
        if start_id < _AFTER_DOTDOT and not await self._reply_dots(Inode(fh), start_id, token):
            return
        cookie = start_id if start_id > _AFTER_DOTDOT else 0
        page = functools.partial(self._fs.readdir, Inode(fh), cookie, page_bytes=self._dir_page)
        try:
            entries = page(flags=PLUS | REF | NOWAIT)
        except WouldBlock:
            entries = await self._wait_naming(page, flags=PLUS | REF)
        taken = self._reply_page(entries, token)
        if taken == len(entries):
            self._dir_page = min(self._dir_page + DIR_PAGE_STEP, DIR_PAGE_MOST)
        else:
            self._dir_page = max(self._dir_page * taken // len(entries), DIR_PAGE_STEP)

    def _reply_page(self, entries: Sequence[DirEntry], token: pyfuse3.ReaddirToken) -> int:
        """The number of entries that the reply took; the others give their reference back."""
        entry = EntryAttributes()
        for at, (name, attr, cookie) in enumerate(entries):
            if not pyfuse3.readdir_reply(token, name, self._fill(entry, attr), cookie):
                for _, left, _ in entries[at:]:
                    self._fs.unref(left.ino)
                return at
        return len(entries)

    async def _reply_dots(self, inode: Inode, start: int, token: pyfuse3.ReaddirToken) -> bool:
        dot = EntryAttributes()
        dot.st_mode = stat.S_IFDIR
        dot.st_ino = inode
        if start < _AFTER_DOT and not pyfuse3.readdir_reply(token, b".", dot, _AFTER_DOT):
            return False
        dot.st_ino = await self._call(self._fs.parent, inode)
        return pyfuse3.readdir_reply(token, b"..", dot, _AFTER_DOTDOT)

    @operation
    async def releasedir(self, fh: int) -> None:
        """Lookup counts: no change."""

    @operation
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Lookup counts: no change."""
        await self._wait(self._fs.fsync, fh, flags=DATASYNC if datasync else 0)

    # -- extended attributes -------------------------------------------------------------------

    @quick
    def getxattr(self, now: int, inode: Inode, name: bytes, ctx: RequestContext) -> bytes:
        """Lookup counts: no change. Two names are virtual: the state of the mount, and where to
        find the session behind it."""
        if name == QUERY_XATTR:
            needs_wait(now)
            return self._query()
        if name == IL_XATTR and self._session is not None:
            return self._session.il
        return self._fs.getxattr(inode, name, now)

    @quick
    def setxattr(
        self, now: int, inode: Inode, name: bytes, value: bytes, ctx: RequestContext
    ) -> None:
        """Lookup counts: no change. pyfuse3 has checked XATTR_CREATE and XATTR_REPLACE; the kernel
        holds the inode's lock meanwhile."""
        if name.startswith(RESERVED_XATTRS):
            raise FUSEError(errno.EPERM)
        self._fs.setxattr(inode, name, value, now)

    @quick
    def listxattr(self, now: int, inode: Inode, ctx: RequestContext) -> Sequence[bytes]:
        """Lookup counts: no change."""
        return self._fs.listxattr(inode, now)

    @quick
    def removexattr(self, now: int, inode: Inode, name: bytes, ctx: RequestContext) -> None:
        """Lookup counts: no change. An ACL that is not there can be removed as well: the kernel
        makes this of an ACL without entries, which other file systems take."""
        if name.startswith(RESERVED_XATTRS):
            raise FUSEError(errno.EPERM)
        try:
            self._fs.removexattr(inode, name, now)
        except OSError as err:
            if err.errno != errno.ENODATA or name not in ACL_XATTRS:
                raise
