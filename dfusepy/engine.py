# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: pools, containers, objects and file systems.

    from dfusepy import engine

    engine.pool_create("/data/demo", "demo", 2 << 30)
    with engine.Pool.open("/data/demo") as pool:
        pool.container_create("home", uid=os.getuid(), gid=os.getgid())
        with pool.container("home") as home, home.filesystem() as fs:
            attr = fs.mknod(engine.ROOT, b"hello", 0o100644, flags=engine.REF)
            fs.write(attr.ino, 0, b"world")
            fs.fsync(attr.ino)
            fs.unref(attr.ino)

Sizes and offsets are bytes, times nanoseconds since the epoch, names bytes. Every handle is a
context manager with `close()`; a closed one raises ValueError, and so does one that a forked child
inherited, unless it is a session's (`dfusepy.connect`), which connects anew. Errors are OSError
with the engine's reason. Any thread may call anything; the GIL is never held while the engine
works. Engine records go to the logger "dfusepy.engine".
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Self

from dfusepy.engine_base import Handle, check, cstr, ffi, lib, record, start_log
from dfusepy.engine_fs import FileSystem, Pin
from dfusepy.engine_objects import Container, Transaction
from dfusepy.engine_types import (
    APPEND,
    DATASYNC,
    EXCHANGE,
    INVAL_ATTR,
    INVAL_ENTRY,
    INVAL_PAGES,
    NOREPLACE,
    NOWAIT,
    PLUS,
    REF,
    ROOT,
    XATTR_CREATE,
    XATTR_REPLACE,
    Attr,
    ContainerInfo,
    DirEntry,
    FsInfo,
    GuardFailed,
    Inode,
    Invalidation,
    KeyValue,
    ObjectId,
    PoolInfo,
    PoolRecord,
    ServiceInfo,
    SnapshotInfo,
    StatFs,
    WouldBlock,
)

__all__ = [
    "APPEND",
    "DATASYNC",
    "EXCHANGE",
    "INVAL_ATTR",
    "INVAL_ENTRY",
    "INVAL_PAGES",
    "NOREPLACE",
    "NOWAIT",
    "PLUS",
    "REF",
    "ROOT",
    "XATTR_CREATE",
    "XATTR_REPLACE",
    "Attr",
    "Container",
    "ContainerInfo",
    "DirEntry",
    "FileSystem",
    "FsInfo",
    "GuardFailed",
    "Inode",
    "Invalidation",
    "KeyValue",
    "ObjectId",
    "Pin",
    "Pool",
    "PoolInfo",
    "PoolRecord",
    "ServiceInfo",
    "SnapshotInfo",
    "StatFs",
    "Transaction",
    "WouldBlock",
    "pool_create",
    "pool_destroy",
    "pool_peek",
    "service_run",
    "version",
]

Path = str | os.PathLike[str]


def version() -> str:
    """Version of the engine."""
    raw: bytes = ffi.string(lib.dfe_version())
    return raw.decode()


def pool_create(
    path: Path, label: str, size: int, device: str | None = None, journal: int = 0
) -> None:
    """Makes a pool: a directory with an index, and a device.

    size: bytes of the device; 0 with a device of its own takes all of it.
    device: URI (`file:PATH`, `mem:NAME`, `null:`) or a path; None: the file `data` in the pool.
    journal: bytes; 0: chosen from the size.

    Raises OSError: EEXIST (something is there), EINVAL (label, size), ENOSPC, EMEDIUMTYPE (the
    device holds another pool), EBUSY. Nothing is left behind then.
    """
    start_log()
    c_path, c_label = ffi.from_buffer(cstr(path) + b"\0"), ffi.from_buffer(cstr(label) + b"\0")
    c_device = ffi.NULL if device is None else ffi.from_buffer(cstr(device) + b"\0")
    opts = ffi.new("struct dfe_pool_create_opts *")
    opts.size = ffi.sizeof("struct dfe_pool_create_opts")
    opts.path, opts.label, opts.device = c_path, c_label, c_device
    opts.size_bytes, opts.journal_bytes = size, journal
    check(lib.dfe_pool_create(opts))


def pool_destroy(path: Path, force: bool = False) -> None:
    """Removes a pool and all its data. Raises OSError: ENOENT, EBUSY (open somewhere), EUCLEAN (it
    cannot be opened: `force` destroys it all the same)."""
    start_log()
    check(lib.dfe_pool_destroy(cstr(path), bool(force)))


def pool_peek(path: Path) -> PoolRecord:
    """Label, UUID and device of a pool, without opening it; it may be open elsewhere."""
    info = ffi.new("struct dfe_pool_info *")
    check(lib.dfe_pool_peek(cstr(path), info))
    return record(PoolRecord, info)


def service_run(
    path: Path,
    *,
    socket: Path | None = None,
    listen_fd: int = -1,
    ready_fd: int = -1,
    arena: int = 0,
    dirty: int = 0,
    idle_ms: int = 0,
) -> None:
    """Serves a pool to other processes until it is idle or SIGTERM or SIGINT come; records go to
    standard error. For a process that has one thread and does nothing else: it forks.

    socket: to make and listen on; or listen_fd: a socket that listens already.
    ready_fd: gets one line: "ok", or an errno and why.
    idle_ms: how long it waits for the next session; 0: a minute; 2**32 - 1: for ever.

    Raises OSError as Pool.open does.
    """
    c_path = ffi.from_buffer(cstr(path) + b"\0")
    c_socket = ffi.NULL if socket is None else ffi.from_buffer(cstr(socket) + b"\0")
    opts = ffi.new("struct dfe_service_opts *")
    opts.size = ffi.sizeof("struct dfe_service_opts")
    opts.path, opts.socket, opts.listen_fd, opts.ready_fd = c_path, c_socket, listen_fd, ready_fd
    opts.arena_bytes, opts.dirty_bytes, opts.idle_ms = arena, dirty, idle_ms
    check(lib.dfe_service_run(opts))


class Pool(Handle):
    """An open pool. One process at a time has a pool open: a service, whose sessions are used by
    any number of processes, or who opens it without one.

    A session may be pickled, and used by a forked child: both connect for themselves.
    """

    _what = "pool"

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        # How to open it again elsewhere; None: an engine in this process, or a mount's session.
        self._origin: tuple[Callable[..., Pool], tuple[str, ...]] | None = None

    @property
    def _reopens(self) -> bool:
        return self._origin is not None

    def _reopen(self) -> Any:
        if self._origin is None:
            return None
        call, arguments = self._origin
        return call(*arguments)._release()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._origin is None:
            raise TypeError("a pool that is open in this process cannot be pickled")
        return self._origin

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        arena: int = 0,
        dirty: int = 0,
        commit_interval_ms: int = 0,
        read_only: bool = False,
        hugepages: bool = True,
        socket: Path | None = None,
        mount: bool = False,
    ) -> Self:
        """Opens a pool and recovers it where that is needed.

        arena: bound of the cache's memory, bytes; 0: a quarter of the memory, 64 MiB to 4 GiB.
        dirty: bound of unwritten data, bytes; 0: a quarter of the arena.
        commit_interval_ms: the oldest that unwritten data gets; 0: 1000.

        socket: of the pool's service: a session with it in place of an engine in this process; the
        memory is the service's then. `dfusepy.connect` finds the socket by itself.
        mount: the session is a mount's, which answers FileSystem.inval_next.

        A damaged pool opens read-only where anything is readable; `query().damage` says why.
        Raises OSError: ENOENT, EBUSY (open elsewhere), EPROTONOSUPPORT (newer format), EMEDIUMTYPE
        (the device belongs to another pool), ESTALE (the index is older than its device), EUCLEAN;
        of a session ECONNREFUSED (no service), EACCES (the pool is another user's).
        """
        start_log()
        c_path = ffi.from_buffer(cstr(path) + b"\0")
        c_socket = ffi.NULL if socket is None else ffi.from_buffer(cstr(socket) + b"\0")
        opts = ffi.new("struct dfe_pool_open_opts *")
        opts.size = ffi.sizeof("struct dfe_pool_open_opts")
        opts.path = c_path
        opts.arena_bytes, opts.dirty_bytes = arena, dirty
        opts.commit_interval_ms = commit_interval_ms
        opts.read_only, opts.no_hugepages = bool(read_only), not hugepages
        opts.socket, opts.mount = c_socket, bool(mount)
        out = ffi.new("struct dfe_pool **")
        check(lib.dfe_pool_open(opts, out))
        pool = cls(out[0])
        if socket is not None and not mount:
            again = functools.partial(cls.open, socket=os.fspath(socket))
            pool._origin = again, (os.fspath(path),)
        return pool

    def _close(self, handle: Any) -> int:
        result: int = lib.dfe_pool_close(handle)
        return result

    def query(self) -> PoolInfo:
        info = ffi.new("struct dfe_pool_info *")
        check(lib.dfe_pool_query(self._h, info))
        return record(PoolInfo, info)

    def service(self) -> ServiceInfo:
        """State of the service behind this session. Raises OSError ENOTSUP where the pool is open
        in this process."""
        info = ffi.new("struct dfe_service_info *")
        check(lib.dfe_service_query(self._h, info))
        return record(ServiceInfo, info)

    def sync(self) -> None:
        """Publishes all accepted data; everything done before the call is durable after it."""
        check(lib.dfe_pool_sync(self._h))

    def checkpoint(self) -> None:
        """Moves the journal's changes into the index now."""
        check(lib.dfe_pool_checkpoint(self._h))

    def drop_caches(self) -> None:
        """Drops clean cached data, so that reads come from the device."""
        check(lib.dfe_pool_drop_caches(self._h))

    def container_create(
        self,
        label: str,
        posix: bool = True,
        uid: int = 0,
        gid: int = 0,
        umask: int = 0,
        mode: int = 0o755,
    ) -> None:
        """Makes a container; `posix`: with an empty file system in it, whose root directory has
        this owner and mode. Raises OSError: EEXIST, EINVAL (label)."""
        cred = ffi.new("struct dfe_cred *", (uid, gid, umask))
        check(lib.dfe_cont_create(self._h, cstr(label), bool(posix), cred, mode))

    def container_destroy(self, label: str) -> None:
        """Removes a container and its snapshots. Raises OSError: ENOENT, EBUSY (open)."""
        check(lib.dfe_cont_destroy(self._h, cstr(label)))

    def containers(self) -> list[ContainerInfo]:
        """All containers, in the order of their labels."""
        room = 64
        while True:
            page = ffi.new("struct dfe_cont_info[]", room)
            found = check(lib.dfe_cont_list(self._h, page, room))
            if found <= room:
                infos = [record(ContainerInfo, page[i]) for i in range(found)]
                return sorted(infos, key=lambda info: info.label)
            room = found + 16

    def container(self, label: str, snapshot: str | None = None) -> Container:
        """Opens a container; with `snapshot`, read-only as it was then. Raises OSError: ENOENT."""
        out = ffi.new("struct dfe_cont **")
        name = ffi.NULL if snapshot is None else cstr(snapshot)
        check(lib.dfe_cont_open(self._h, cstr(label), name, out))
        return Container(out[0], self, label, snapshot)
