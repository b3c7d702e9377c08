# SPDX-License-Identifier: Apache-2.0
"""Containers, their snapshots, key-value and array objects, and transactions."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dfusepy.engine_base import Handle, alloc, check, cstr, ffi, lib, record, text
from dfusepy.engine_fs import FileSystem
from dfusepy.engine_types import ContainerInfo, GuardFailed, KeyValue, ObjectId, SnapshotInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer

VALUE_BYTES = 65_600  # the longest value of a key (engine/obj/obj.h)
KEY_BYTES = 511  # the longest key, dkey and akey encoded (DFE_KEY_BYTES)
REPORT_BYTES = 1 << 20
SCAN_PAGE_BYTES = 4 * VALUE_BYTES  # holds at least three records

Progress = Callable[[int, int], None]

_SCAN_RECORD = struct.Struct("=HHI")  # dkey, akey and value lengths, bytes


def _oid(oid: ObjectId) -> Any:
    hi, lo = oid
    return ffi.new("struct dfe_oid *", (hi, lo))


def _key(dkey: bytes, akey: bytes) -> tuple[Any, Any, Any]:
    """A dfe_key, and what must stay alive as long as it."""
    if len(dkey) + len(akey) > KEY_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"a key has at most {KEY_BYTES} bytes")
    dkey_buf, akey_buf = ffi.from_buffer(dkey), ffi.from_buffer(akey)
    key = ffi.new("struct dfe_key *", (dkey_buf, akey_buf, len(dkey), len(akey)))
    return key, dkey_buf, akey_buf


class Container(Handle):
    """An open container. Writing raises OSError EROFS at a snapshot or in a read-only pool.

    Objects are named by ObjectId. Each may have keys, which are ordered by (dkey, akey), and array
    bytes. A container that holds a file system keeps its own objects there: use other ids with
    care, or a container made with `posix=False`.
    """

    _what = "container"

    def __init__(self, handle: Any, pool: Handle, label: str, snapshot: str | None) -> None:
        super().__init__(handle, pool)
        self._name = label, snapshot

    @property
    def _reopens(self) -> bool:
        pool: Any = self._parent
        return bool(pool._reopens)

    def _reopen(self) -> Any:
        pool: Any = self._parent
        return pool.container(*self._name)._release() if pool._reopens else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._parent).container, (self._parent, *self._name)  # type: ignore[union-attr]

    def _close(self, handle: Any) -> int:
        result: int = lib.dfe_cont_close(handle)
        return result

    def query(self) -> ContainerInfo:
        info = ffi.new("struct dfe_cont_info *")
        check(lib.dfe_cont_query(self._h, info))
        return record(ContainerInfo, info)

    def get_prop(self, name: str) -> str | None:
        """A property's value, None where it was never set."""
        value = ffi.new("char[]", 4096)
        result = lib.dfe_cont_prop_get(self._h, cstr(name), value, len(value))
        if result == -errno.ENOENT:
            return None
        check(result)
        return text(value)

    def set_prop(self, name: str, value: str) -> None:
        """Sets a property; durable on return."""
        check(lib.dfe_cont_prop_set(self._h, cstr(name), cstr(value)))

    # -- snapshots

    def snapshot_create(self, name: str) -> int:
        """Publishes what is dirty, then keeps this state under a name. Returns its epoch. Raises
        OSError: EEXIST, EINVAL (name)."""
        epoch = ffi.new("uint64_t *")
        check(lib.dfe_snap_create(self._h, cstr(name), epoch))
        return int(epoch[0])

    def snapshot_destroy(self, name: str) -> None:
        """Frees what only this snapshot could see. Raises OSError: ENOENT, EBUSY (open)."""
        check(lib.dfe_snap_destroy(self._h, cstr(name)))

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots, oldest first."""
        room = 64
        while True:
            page = ffi.new("struct dfe_snap_info[]", room)
            found = check(lib.dfe_snap_list(self._h, page, room))
            if found <= room:
                infos = [record(SnapshotInfo, page[i]) for i in range(found)]
                return sorted(infos, key=lambda info: info.epoch)
            room = found + 16

    # -- check

    def check(self, data: bool = False, progress: Progress | None = None) -> list[str]:
        """Walks everything and returns the faults found, one text each; [] when all is well.

        data: read and verify the checksums of all data too.
        progress: called as progress(done, total) on this thread now and then; what it raises comes
        out of this call after the check has ended.
        """
        report = ffi.new("char[]", REPORT_BYTES)
        meter = _Meter(progress)
        call = lib.dfusepy_progress if progress is not None else ffi.NULL
        handle = ffi.new_handle(meter)
        faults = check(lib.dfe_cont_check(self._h, bool(data), report, REPORT_BYTES, call, handle))
        if meter.error is not None:
            raise meter.error
        lines = text(report).splitlines()
        if faults > len(lines):
            lines.append(f"and {faults - len(lines)} more")
        return lines

    # -- key-value objects

    def kv_get(self, oid: ObjectId, dkey: bytes, akey: bytes = b"") -> bytes | None:
        """The value of a key, None where there is none."""
        key = _key(dkey, akey)
        value, length = alloc(VALUE_BYTES), ffi.new("size_t *")
        result = lib.dfe_kv_get(self._h, _oid(oid), key[0], value, VALUE_BYTES, length)
        if result == -errno.ENOENT:
            return None
        check(result)
        return bytes(ffi.buffer(value, length[0]))

    def kv_put(
        self, oid: ObjectId, dkey: bytes, value: Buffer, akey: bytes = b"", sync: bool = False
    ) -> None:
        """Sets a key in a transaction of its own; `sync`: durable on return."""
        with self.transaction(oid) as tx:
            tx.put(oid, dkey, value, akey)
            tx.commit(sync)

    def kv_delete(self, oid: ObjectId, dkey: bytes, akey: bytes = b"", sync: bool = False) -> None:
        """Removes a key, if it is there, in a transaction of its own."""
        with self.transaction(oid) as tx:
            tx.delete(oid, dkey, akey)
            tx.commit(sync)

    def scan(self, oid: ObjectId, dkey: bytes = b"", akey: bytes = b"") -> Iterator[KeyValue]:
        """The keys at or after (dkey, akey), in order. A key that exists during the whole scan is
        seen exactly once; one that comes or goes meanwhile, at most once."""
        page = alloc(SCAN_PAGE_BYTES)
        start: tuple[bytes, bytes] | None = (dkey, akey) if dkey or akey else None
        last: tuple[bytes, bytes] | None = None
        while True:
            key = _key(*start) if start else (ffi.NULL,)
            used = check(lib.dfe_kv_scan(self._h, _oid(oid), key[0], page, SCAN_PAGE_BYTES))
            records = _scan_records(bytes(ffi.buffer(page, used)))
            # The engine starts *at* the key: the first record of a later page was seen already.
            fresh = [r for r in records if (r.dkey, r.akey) != last]
            if not fresh:
                return
            yield from fresh
            start = last = (fresh[-1].dkey, fresh[-1].akey)

    # -- array objects

    def array_read(self, oid: ObjectId, off: int, into: Buffer) -> int:
        """Fills a writable buffer with the array's bytes from `off`; holes read as zeros. Returns
        the number of bytes. Raises OSError EUCLEAN where a checksum does not match."""
        dst = ffi.from_buffer("char[]", into, require_writable=True)
        return check(lib.dfe_array_read(self._h, _oid(oid), off, dst, len(dst)))

    def array_write(self, oid: ObjectId, off: int, data: Buffer, sync: bool = False) -> int:
        """Writes at any offset, in one transaction up to 4 MiB; `sync`: durable on return. Returns
        the number of bytes."""
        src = ffi.from_buffer("char[]", data)
        return check(lib.dfe_array_write(self._h, _oid(oid), off, src, len(src), bool(sync)))

    def array_punch(self, oid: ObjectId, off: int, length: int) -> None:
        """Makes a range read as zeros; its whole blocks become a hole."""
        check(lib.dfe_array_punch(self._h, _oid(oid), off, length))

    def array_next_data(self, oid: ObjectId, off: int) -> int | None:
        """The first offset at or after `off` that holds data, in blocks of 4 KiB; None: none."""
        return self._array_next(oid, off, 0)

    def array_next_hole(self, oid: ObjectId, off: int) -> int | None:
        """The first offset at or after `off` that is a hole, in blocks of 4 KiB."""
        return self._array_next(oid, off, 1)

    def _array_next(self, oid: ObjectId, off: int, what: int) -> int | None:
        out = ffi.new("uint64_t *")
        result = lib.dfe_array_next(self._h, _oid(oid), off, what, out)
        if result == -errno.ENXIO:
            return None
        check(result)
        return int(out[0])

    # -- what is opened through a container

    def transaction(self, home: ObjectId) -> Transaction:
        """Starts a transaction whose guards concern the object `home`."""
        out = ffi.new("struct dfe_tx **")
        check(lib.dfe_tx_begin(self._h, _oid(home), out))
        return Transaction(out[0], self)

    def filesystem(self) -> FileSystem:
        """Opens the file system in this container; one at a time. Raises OSError: ENODATA (there is
        none), EBUSY."""
        out = ffi.new("struct dfe_fs **")
        check(lib.dfe_fs_open(self._h, out))
        return FileSystem(out[0], self)


def _scan_records(page: bytes) -> list[KeyValue]:
    records = []
    at = 0
    while at < len(page):
        dkey_len, akey_len, value_len = _SCAN_RECORD.unpack_from(page, at)
        dkey_at = at + _SCAN_RECORD.size
        akey_at = dkey_at + dkey_len
        value_at = akey_at + akey_len
        at = value_at + value_len
        records.append(KeyValue(page[dkey_at:akey_at], page[akey_at:value_at], page[value_at:at]))
    return records


class _Meter:
    """Carries a progress function through C, and an exception back."""

    def __init__(self, fn: Progress | None) -> None:
        self.fn = fn
        self.error: BaseException | None = None


@ffi.def_extern()  # type: ignore[untyped-decorator]
def dfusepy_progress(done: int, total: int, arg: Any) -> None:
    meter: _Meter = ffi.from_handle(arg)
    if meter.fn is None or meter.error is not None:
        return
    try:
        meter.fn(done, total)
    except BaseException as error:  # nothing may unwind through C
        meter.error = error


class Transaction(Handle):
    """Changes that happen all together or not at all. Used by one thread.

    As a context manager it commits at the end, unless an exception came out of the block or it was
    committed or closed inside. At most 4 MiB or 10,000 operations: more raises OSError E2BIG.
    """

    _what = "transaction"

    def _close(self, handle: Any) -> int:
        lib.dfe_tx_abort(handle)
        return 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and not self.closed:
            self.commit()
        self.close()

    def commit(self, sync: bool = False) -> int:
        """Ends the transaction; `sync`: durable on return, with all that was committed before.
        Returns its epoch. Raises GuardFailed where a guard does not hold: nothing has changed."""
        epoch = ffi.new("uint64_t *")
        handle = self._h
        del self._h  # ended, whatever comes
        if self._parent is not None:
            self._parent._children.discard(self)
        result = lib.dfe_tx_commit(handle, bool(sync), epoch)
        if result == -errno.EAGAIN:
            raise GuardFailed(errno.EAGAIN, "a guard of the transaction did not hold")
        check(result)
        return int(epoch[0])

    def guard_absent(self, dkey: bytes, akey: bytes = b"") -> None:
        """Commit only if home has no such key."""
        check(lib.dfe_tx_guard_absent(self._h, _key(dkey, akey)[0]))

    def guard_equal(self, dkey: bytes, value: Buffer, akey: bytes = b"") -> None:
        """Commit only if home has this key with this value."""
        src = ffi.from_buffer("char[]", value)
        check(lib.dfe_tx_guard_equal(self._h, _key(dkey, akey)[0], src, len(src)))

    def guard_exists(self) -> None:
        """Commit only if home has any key or data."""
        check(lib.dfe_tx_guard_exists(self._h))

    def put(self, oid: ObjectId, dkey: bytes, value: Buffer, akey: bytes = b"") -> None:
        """Sets a key; the value has at most 65,600 bytes."""
        src = ffi.from_buffer("char[]", value)
        check(lib.dfe_tx_put(self._h, _oid(oid), _key(dkey, akey)[0], src, len(src)))

    def delete(self, oid: ObjectId, dkey: bytes, akey: bytes = b"") -> None:
        """Removes a key, if it is there."""
        check(lib.dfe_tx_del(self._h, _oid(oid), _key(dkey, akey)[0]))

    def punch_dkey(self, oid: ObjectId, dkey: bytes) -> None:
        """Removes all keys of one dkey."""
        key = _key(dkey, b"")
        check(lib.dfe_tx_punch_dkey(self._h, _oid(oid), key[1], len(dkey)))

    def punch_object(self, oid: ObjectId) -> None:
        """Removes the object: its keys and its array."""
        check(lib.dfe_tx_punch_object(self._h, _oid(oid)))

    def add(self, oid: ObjectId, dkey: bytes, delta: int, akey: bytes = b"") -> None:
        """Adds to a counter: 64 bits, little-endian; an absent key counts as 0."""
        check(lib.dfe_tx_add(self._h, _oid(oid), _key(dkey, akey)[0], delta))

    def max(self, oid: ObjectId, dkey: bytes, value: int, akey: bytes = b"") -> None:
        """Raises a counter to at least this value."""
        check(lib.dfe_tx_max(self._h, _oid(oid), _key(dkey, akey)[0], value))

    def write(self, oid: ObjectId, off: int, data: Buffer) -> None:
        """Writes whole blocks of an array: offset and length are multiples of 4096 bytes."""
        src = ffi.from_buffer("char[]", data)
        check(lib.dfe_tx_write(self._h, _oid(oid), off, src, len(src)))
