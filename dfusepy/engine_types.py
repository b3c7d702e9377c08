# SPDX-License-Identifier: Apache-2.0
"""Plain types of the engine's Python interface: ids, records, flags, errors. No cffi here."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, NewType

Inode = NewType("Inode", int)

ROOT = Inode(1)
"""The root directory of every file system."""


class ObjectId(NamedTuple):
    """128-bit id of an object in a container, as two 64-bit halves."""

    hi: int
    lo: int


class WouldBlock(OSError):
    """A call with NOWAIT would have had to wait; it changed nothing. Repeat it without NOWAIT on a
    thread that may block."""


class GuardFailed(OSError):
    """A guard of a transaction did not hold at its commit (EAGAIN); nothing has changed."""


# Flags of file-system calls (dfe_types.h has the same values).
NOWAIT = 1  # raise WouldBlock instead of blocking
APPEND = 2  # write: at the end of the file
DATASYNC = 4  # fsync: data only
PLUS = 8  # readdir: with attributes
NOREPLACE = 16  # rename
EXCHANGE = 32  # rename
XATTR_CREATE = 64
XATTR_REPLACE = 128
REF = 256  # lookup, create, readdir: take one reference on each inode returned


class Attr(NamedTuple):
    """Attributes of an inode, as stat(2) has them. Times are nanoseconds since the epoch."""

    ino: Inode
    size: int  # bytes
    used: int  # bytes allocated; st_blocks = used // 512
    version: int  # data version: equal versions mean equal data
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    mode: int  # type and permission bits
    nlink: int
    uid: int
    gid: int
    rdev: int
    blksize: int  # preferred I/O size, bytes
    flags: int  # bit 0: see `shared`

    @property
    def shared(self) -> bool:
        """Another process writes to it now: a cache keeps these values for no time at all."""
        return bool(self.flags & 1)


class DirEntry(NamedTuple):
    """One entry of a directory page. Without PLUS only `attr.ino` and the type bits of `attr.mode`
    are filled in. `cookie` is where to go on after this entry."""

    name: bytes
    attr: Attr
    cookie: int


# What an Invalidation concerns (dfe_types.h has the same values).
INVAL_PAGES = 1  # the inode's pages and attributes; dirty pages of maps are written back
INVAL_ATTR = 2  # the inode's attributes
INVAL_ENTRY = 3  # a name in a directory, and that directory's attributes


class Invalidation(NamedTuple):
    """What a mount makes its kernel forget, before and after another process changes it."""

    id: int  # to be told as done
    ino: Inode  # of an entry: its directory
    what: int  # INVAL_*
    name: bytes  # of the entry


class KeyValue(NamedTuple):
    """One key of a key-value object."""

    dkey: bytes
    akey: bytes
    value: bytes


class Record:
    """What the dataclasses below share."""

    def as_dict(self) -> dict[str, Any]:
        """A flat dict of plain values, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclasses.dataclass(frozen=True)
class PoolRecord(Record):
    """What a pool's directory says about it without opening the pool."""

    label: str
    uuid: str
    device: str  # URI


@dataclasses.dataclass(frozen=True)
class PoolInfo(Record):
    """State of an open pool. Names carry their units; counters count since the pool was opened."""

    label: str
    uuid: str
    device: str
    backend: str
    damage: str  # why the pool is read-only; "" when it is whole
    format: int
    read_only: bool
    direct: bool  # the device bypasses the page cache
    registered: bool  # the arena is registered with the device
    size_bytes: int
    data_bytes: int
    free_bytes: int
    reserved_bytes: int
    journal_bytes: int
    journal_used_bytes: int
    index_bytes: int
    overlay_keys: int
    overlay_bytes: int
    epoch: int
    durable_epoch: int
    checkpoints: int
    last_checkpoint_ns: int
    checksum_errors: int
    io_errors: int
    containers: int
    arena_bound_bytes: int
    arena_bytes: int
    arena_huge_bytes: int
    arena_thp_bytes: int
    arena_plain_bytes: int
    slots_bytes: int
    dirty_bytes: int
    dirty_bound_bytes: int
    dirty_age_ms: int
    hits: int
    misses: int
    readahead: int
    evicted: int
    published: int
    writeback_errors: int


@dataclasses.dataclass(frozen=True)
class ContainerInfo(Record):
    label: str
    uuid: str
    number: int  # in its pool, never reused
    created_ns: int
    snapshots: int


@dataclasses.dataclass(frozen=True)
class SnapshotInfo(Record):
    name: str
    epoch: int
    created_ns: int


@dataclasses.dataclass(frozen=True)
class StatFs(Record):
    block_bytes: int
    blocks: int
    blocks_free: int
    files: int
    files_free: int
    name_max: int


@dataclasses.dataclass(frozen=True)
class FsInfo(Record):
    inodes_cached: int
    inode_bytes: int  # memory of the cached inodes and their entries
    dirs_complete: int  # directories wholly in memory
    orphans: int  # unlinked, still in use


@dataclasses.dataclass(frozen=True)
class ServiceInfo(Record):
    """State of the service behind a session. Counters count since its worker was started."""

    supervisor_pid: int
    worker_pid: int
    started_ns: int  # wall clock
    restarts: int  # workers that were lost and replaced
    sessions: int
    channels: int
    mounts: int
    requests: int
    sleeps: int
    loans: int
    loan_bytes: int
    leases: int
    keep_bytes: int
    keep_used_bytes: int
    bad_clients: int  # sessions ended for what they wrote
