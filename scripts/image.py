# SPDX-License-Identifier: Apache-2.0
"""The store level of scripts/readimage: device, journal and index of a pool, after FORMAT.md alone.

LMDB's pages are read directly rather than through mdb_dump: a damaged page is then a fault in the
report, not the end of it.
"""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 4096
FORMAT = 1
SEGMENT_BLOCKS = 32768
META, CONT, SNAP, PROP, SEG, WORK, KV, EXT, SKV, SEXT = 1, 2, 3, 4, 5, 6, 16, 17, 18, 19
NOW = (1 << 64) - 1


class Unreadable(Exception):
    """The pool, or a part without which nothing can be said."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(*parts: bytes) -> int:
    crc = 0xFFFFFFFF
    for part in parts:
        for byte in part:
            crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def u64(data: bytes, at: int = 0) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def be(data: bytes) -> int:
    return int.from_bytes(data, "big")


def text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "surrogateescape")


# -- pool directory and superblock -----------------------------------------------------------------


def read_record(pool: Path) -> dict[str, str]:
    lines = (pool / "pool").read_text("utf-8", "surrogateescape").splitlines()
    if len(lines) != 5 or lines[0] != "dfusepy pool":
        raise Unreadable("pool record: damaged")
    record = dict(line.split("=", 1) for line in lines[1:] if "=" in line)
    if set(record) != {"format", "uuid", "label", "device"}:
        raise Unreadable("pool record: damaged")
    if int(record["format"]) > FORMAT:
        raise Unreadable("pool record: written by a newer version")
    return record


def open_device(pool: Path, device: str) -> int:
    path = str(pool / "data") if device == "data" else device.removeprefix("file:")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class Super(NamedTuple):
    uuid: str
    generation: int
    size_blk: int
    journal_blk: int
    journal_len_blk: int
    data_blk: int
    data_len_blk: int
    least_checkpoint: int


def parse_super(block: bytes, copy: int) -> Super | None:
    if len(block) != BLOCK or block[:8] != b"DFPOOL01":
        return None
    if crc32c(block[:4092]) != struct.unpack_from("<I", block, 4092)[0]:
        return None
    form, where = struct.unpack_from("<II", block, 8)
    if form > FORMAT:
        raise Unreadable("superblock: written by a newer version")
    if where != copy:
        return None
    return Super(str(uuid.UUID(bytes=block[16:32])), *struct.unpack_from("<8Q", block, 32)[:7])


def read_super(fd: int, faults: list[str]) -> Super | None:
    copies = [parse_super(os.pread(fd, BLOCK, copy * BLOCK), copy) for copy in (0, 1)]
    faults += [f"superblock: copy {i} is damaged" for i in (0, 1) if copies[i] is None]
    good = [copy for copy in copies if copy is not None]
    return max(good, key=lambda s: s.generation) if good else None


# -- the index: LMDB's pages -----------------------------------------------------------------------


class Index:
    """All entries of data.mdb in order, page by page; what is damaged is told and passed over."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.faults = faults
        self.data = path.read_bytes()
        self.page = int.from_bytes(self.data[40:44], "little")
        if self.page not in (1 << n for n in range(9, 17)):
            raise Unreadable("index: impossible page size")
        metas = [self._meta(n * self.page) for n in (0, 1)]
        newest = max((meta for meta in metas if meta), default=None)
        if newest is None:
            raise Unreadable("index: both meta pages are damaged")
        self.root = newest[1]
        self.seen: set[int] = set()

    def _meta(self, at: int) -> tuple[int, int] | None:
        page = self.data[at : at + 152]
        if len(page) < 152 or struct.unpack_from("<II", page, 16) != (0xBEEFC0DE, 1):
            self.faults.append(f"index: meta page at {at} is damaged")
            return None
        return u64(page, 144), u64(page, 128)  # transaction, root

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        if self.root != NOW:
            yield from self._walk(self.root)

    def _walk(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        at = number * self.page
        page = self.data[at : at + self.page]
        if len(page) < self.page or u64(page) != number or number in self.seen:
            self.faults.append(f"index: page {number} is damaged or missing")
            return
        self.seen.add(number)
        flags, lower = struct.unpack_from("<HH", page, 10)
        if flags not in (1, 2) or not 16 <= lower <= self.page:
            self.faults.append(f"index: page {number} is damaged")
            return
        for slot in range(16, lower - 1, 2):
            node = int.from_bytes(page[slot : slot + 2], "little")
            if node + 8 > self.page:
                self.faults.append(f"index: page {number}: node beyond its end")
                continue
            lo, hi, node_flags, ksize = struct.unpack_from("<4H", page, node)
            if flags == 1:
                yield from self._walk(lo | hi << 16 | node_flags << 32)
            else:
                key = page[node + 8 : node + 8 + ksize]
                rest = page[node + 8 + ksize :]
                yield key, self._value(rest, lo | hi << 16, node_flags)

    def _value(self, rest: bytes, size: int, flags: int) -> bytes:
        if not flags & 1:
            return rest[:size]
        at = u64(rest) * self.page + 16
        return self.data[at : at + size]


def load_index(path: Path, faults: list[str]) -> dict[bytes, bytes]:
    """Key: payload and birth, of the entries whose checksum is right."""
    entries: dict[bytes, bytes] = {}
    last = b""
    for key, value in Index(path, faults):
        if len(value) < 12 or crc32c(key, value[:-4]) != int.from_bytes(value[-4:], "little"):
            faults.append(f"index: entry {key.hex()}: checksum")
        elif key <= last:
            faults.append(f"index: entry {key.hex()}: out of order")
        else:
            entries[key] = value[:-4]
            last = key
    return entries


# -- the journal -----------------------------------------------------------------------------------


@dataclass
class Batch:
    pos: int
    seq: int
    expect: int
    flushed: int
    end: int
    records: list[bytes]


@dataclass
class Journal:
    fd: int
    at: int
    ring: int
    uuid: bytes
    limit: int = 0

    def read(self, pos: int, size: int) -> bytes:
        place = pos % self.ring
        first = min(size, self.ring - place)
        data = os.pread(self.fd, first, self.at + place)
        return data + (os.pread(self.fd, size - first, self.at) if size > first else b"")

    def batch(self, pos: int) -> Batch | None:
        if pos >= self.limit:
            return None
        head = self.read(pos, BLOCK)
        if len(head) < BLOCK or head[:8] != b"DDFJRNL1" or head[8:24] != self.uuid:
            return None
        seq, expect, where, flushed = struct.unpack_from("<4Q", head, 24)
        blocks, payload, count, crc = struct.unpack_from("<4I", head, 56)
        if where != pos or flushed > pos or not 0 < blocks * BLOCK <= self.limit - pos:
            return None
        if blocks > (6 << 20) // BLOCK + 2 or (72 + payload + BLOCK - 1) // BLOCK != blocks:
            return None
        data = self.read(pos, blocks * BLOCK)
        if crc32c(data[:68], data[72 : 72 + payload]) != crc:
            return None
        records = frames(data[72 : 72 + payload])
        if records is None or len(records) != count or not records:
            return None
        return Batch(pos, seq, expect, flushed, pos + blocks * BLOCK, records)

    def run(self, tail: int, seq: int) -> list[Batch]:
        self.limit = tail + self.ring
        run = []
        while (batch := self.batch(tail)) and batch.expect == seq:
            run.append(batch)
            tail, seq = batch.end, batch.seq + 1
        return run

    def attested_beyond(self, end: int) -> bool:
        """Does a valid batch after the run's end say that more than the run was durable?"""
        for pos in range(end, self.limit, BLOCK):
            head = self.read(pos, 56)
            if head[:8] == b"DDFJRNL1" and u64(head, 48) > end and self.batch(pos):
                return True
        return False


def frames(payload: bytes) -> list[bytes] | None:
    records, at = [], 0
    while at + 4 <= len(payload):
        size = int.from_bytes(payload[at : at + 4], "little")
        framed = (4 + size + 7) // 8 * 8
        if at + framed > len(payload):
            return None
        records.append(payload[at + 4 : at + 4 + size])
        at += framed
    return records if at == len(payload) else None


Op = tuple[int, bytes, bytes, int, int]  # kind, key, value or data, first block, blocks


def operations(record: bytes) -> tuple[int, list[Op]]:
    """(epoch, operations); Unreadable where the record is malformed."""
    ops: list[Op] = []
    try:
        count, _, epoch = struct.unpack_from("<IIQ", record)
        at = 16
        for _ in range(count):
            kind = record[at]
            if kind in (1, 2):
                klen, vlen = struct.unpack_from("<HI", record, at + 2)
                key = record[at + 8 : at + 8 + klen]
                value = record[at + 8 + klen : at + 8 + klen + vlen]
                ops.append((kind, key, value, 0, 0))
                at += 8 + klen + vlen
            elif kind in (3, 4, 5):
                blocks, first = struct.unpack_from("<IQ", record, at + 4)
                size = blocks * BLOCK if kind == 5 else 0
                ops.append((kind, b"", record[at + 16 : at + 16 + size], first, blocks))
                at += 16 + size
            else:
                raise Unreadable("journal: unknown operation")
    except (struct.error, IndexError):
        raise Unreadable("journal: malformed record") from None
    if at != len(record):
        raise Unreadable("journal: malformed record")
    return epoch, ops


# -- extents ---------------------------------------------------------------------------------------


class Extent(NamedTuple):
    off_blk: int
    blk: int
    n: int  # blocks; bytes where it is inline
    inline: bool
    body: bytes
    birth: int


def parse_extent(off_blk: int, value: bytes) -> Extent | None:
    if len(value) < 24:
        return None
    blk, n, kind = struct.unpack_from("<QIB", value)
    body = value[16:-8]
    inline = kind == 2
    if kind not in (1, 2) or n == 0 or len(body) != (n if inline else 4 * n):
        return None
    return Extent(off_blk, blk, n, inline, body, u64(value[-8:]))


@dataclass
class Pool:
    path: Path
    faults: list[str] = field(default_factory=list)
    record: dict[str, str] = field(default_factory=dict)
    entries: dict[bytes, bytes] = field(default_factory=dict)
    carried: dict[int, bytes] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    checkpoint: dict[str, Any] = field(default_factory=dict)
    journal: dict[str, Any] = field(default_factory=dict)
    fd: int = -1
    superblock: Super | None = None

    def open(self) -> None:
        self.record = read_record(self.path)
        self.fd = open_device(self.path, self.record["device"])
        self.superblock = read_super(self.fd, self.faults)
        self.entries = load_index(self.path / "index" / "data.mdb", self.faults)
        self.load_checkpoint()
        if self.superblock and self.superblock.uuid != self.record["uuid"]:
            raise Unreadable(f"the device belongs to pool {self.superblock.uuid}")
        self.load_segments()
        self.replay()

    def load_checkpoint(self) -> None:
        value = self.entries.get(bytes([META]) + b"checkpoint")
        if value is None or len(value) != 96 + 8:
            raise Unreadable("index: no valid checkpoint record")
        names = ("number", "journal_pos", "journal_seq", "epoch")
        self.checkpoint = dict(zip(names, struct.unpack_from("<4Q", value), strict=True))
        geometry = struct.unpack_from("<5Q", value, 56)
        own = str(uuid.UUID(bytes=value[40:56]))
        if self.superblock is None:
            self.superblock = Super._make((own, 0, *geometry, self.checkpoint["number"]))
        elif self.superblock[2:7] != geometry:
            self.faults.append("index and superblock disagree about the device")
        if self.checkpoint["number"] < self.superblock.least_checkpoint:
            self.faults.append("the index is older than the device")

    def load_segments(self) -> None:
        assert self.superblock
        for key, value in self.entries.items():
            if key[0] != SEG:
                continue
            base = self.superblock.data_blk + be(key[1:5]) * SEGMENT_BLOCKS
            for at, byte in enumerate(value[:-8]):
                self.used.update(base + 8 * at + bit for bit in range(8) if byte >> bit & 1)

    def blocks(self, blk: int, n: int) -> list[bytes]:
        """Content of blocks, with what the journal carries for them; short at the device's end."""
        data = os.pread(self.fd, n * BLOCK, blk * BLOCK)
        return [self.carried.get(blk + i, data[i * BLOCK : (i + 1) * BLOCK]) for i in range(n)]

    def data_ok(self, extent: Extent) -> bool:
        if extent.inline:
            return True
        sums = struct.unpack(f"<{extent.n}I", extent.body)
        return list(sums) == [crc32c(block) for block in self.blocks(extent.blk, extent.n)]

    def replay(self) -> None:
        sb = self.superblock
        assert sb
        journal = Journal(
            self.fd,
            sb.journal_blk * BLOCK,
            sb.journal_len_blk * BLOCK,
            uuid.UUID(self.record["uuid"]).bytes,
        )
        tail = self.checkpoint["journal_pos"]
        run = journal.run(tail, self.checkpoint["journal_seq"])
        end = run[-1].end if run else tail
        flushed = max((batch.flushed for batch in run), default=0)
        if journal.attested_beyond(end):
            self.faults.append(f"journal: damaged at {end}: a later batch says it was durable")
        epoch, records = self.checkpoint["epoch"], 0
        for record, below in ((r, b.end <= flushed) for b in run for r in b.records):
            number, ops = operations(record)
            if number != epoch + 1:
                self.faults.append(f"journal: epoch {number} follows {epoch}")
                break
            if not below and not self.record_whole(number, ops):
                break
            self.apply(ops)
            epoch, records = number, records + 1
        self.journal = {"tail": tail, "end": end, "flushed": flushed, "batches": len(run)}
        self.journal |= {"records": records, "epoch": epoch}

    def record_whole(self, epoch: int, ops: list[Op]) -> bool:
        """Is the data of the extents that the record makes there?"""
        before = dict(self.carried)
        self.carry(ops)
        for kind, key, value, _, _ in ops:
            if kind == 1 and key[0] == EXT:
                extent = parse_extent(be(key[21:29]), value)
                if extent is None or (extent.birth == epoch and not self.data_ok(extent)):
                    self.carried = before
                    return False
        return True

    def carry(self, ops: list[Op]) -> None:
        for kind, _, data, first, count in ops:
            for i in range(count if kind == 5 else 0):
                self.carried[first + i] = data[i * BLOCK : (i + 1) * BLOCK]

    def apply(self, ops: list[Op]) -> None:
        self.carry(ops)
        for kind, key, value, first, count in ops:
            if kind == 1:
                self.entries[key] = value
            elif kind == 2:
                self.entries.pop(key, None)
            elif kind == 3:
                self.used.update(range(first, first + count))
            elif kind == 4:
                self.used.difference_update(range(first, first + count))

    def check_space(self, data: bool) -> None:
        """Every block of every extent is in use once, and no other is."""
        sb = self.superblock
        assert sb
        owned: set[int] = set()
        for key, value in self.entries.items():
            if key[0] not in (EXT, SEXT):
                continue
            extent = parse_extent(be(key[21:29]), value)
            if extent is None:
                self.faults.append(f"extent {key.hex()}: malformed")
                continue
            if extent.inline:
                continue
            mine = set(range(extent.blk, extent.blk + extent.n))
            if extent.blk < sb.data_blk or max(mine) >= sb.data_blk + sb.data_len_blk:
                self.faults.append(f"extent {key.hex()}: outside the device")
            elif owned & mine:
                self.faults.append(f"extent {key.hex()}: shares blocks with another")
            elif data and not self.data_ok(extent):
                self.faults.append(f"extent {key.hex()}: data checksum, block {extent.blk} on")
            owned |= mine
        if owned - self.used:
            self.faults.append(f"{len(owned - self.used)} blocks of extents are marked free")
        if self.used - owned:
            self.faults.append(f"{len(self.used - owned)} blocks in use belong to no extent")
