# SPDX-License-Identifier: Apache-2.0
"""The interception library: where it is, how a program gets it, and what it says about itself.

It counts each data call on a mount: bypassed, or left to the kernel for a reason. A live process
shows its counts in a memfd, which /proc leads to; a report is one line of JSON for each program
that ended. docs/interception.md describes both.
"""

from __future__ import annotations

import errno
import importlib.resources
import json
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIBRARY = "libdfusepy_il.so"
REPORT_VARIABLE = "DFUSEPY_IL_REPORT"

_MEMFD = "/memfd:dfusepy-il"
# engine/il/stats.c, struct il_stats: magic; calls, reasons, threads; offsets of the tallies of what
# was left and bypassed; offset and length of the names; reserved; attaches, nanoseconds for them.
_HEAD = struct.Struct("<8s8I2Q")
_MAGIC = b"DFEILST1"
_TALLY = struct.Struct("<2Q")
_MOST_BYTES = 1 << 20


def library_path() -> str | None:
    """The library's file, in an ordinary and in an editable installation; None where the package
    was built without it."""
    found = importlib.resources.files("dfusepy") / LIBRARY
    with ExitStack() as stack:
        try:
            path = stack.enter_context(importlib.resources.as_file(found))
        except FileNotFoundError:
            return None
        return str(path) if path.is_file() else None


def environment(
    library: str, report: str | None, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """`base` with what makes programs load the library, and write `report` (an absolute path)."""
    others = [word for word in base.get("LD_PRELOAD", "").split(":") if word and word != library]
    env = {**base, "LD_PRELOAD": ":".join([library, *others])}
    if report is not None:
        env[REPORT_VARIABLE] = report
    return env


# Why a call was left to the kernel: engine/il/reasons.def in words.
REASONS: Mapping[str, str] = {
    "threshold": "short of 32 calls and 256 KiB on this mount: not worth a session yet",
    "attaching": "another thread was opening the session",
    "no_service": "the service could not be reached; tried again after 10 s",
    "snapshot": "the mount shows a snapshot, which the kernel's caches serve for good",
    "shared": "implicit offset, and others may share the description (inherited, received, forked)",
    "flags": "opened with O_SYNC or O_DSYNC",
    "rwf": "RWF_ flags were given",
    "arguments": "nothing to move, or arguments that only the kernel may judge",
    "access": "the descriptor is not open for this",
    "rights": "the engine refused the inode, and the descriptor did not prove otherwise",
    "mapped": "this process has, or had, a shared writable map of the file",
    "nested": "called by a signal handler in the middle of a bypassed call",
    "left": "a handler left a bypassed call by longjmp: this thread uses the kernel since",
    "limit": "RLIMIT_FSIZE is set, and the write may pass it",
    "large": "longer than the push buffer, or of many pieces, in append mode",
    "engine": "the engine answered with an error; the kernel's answer counts",
    "lost": "the session with the service has ended, and the mount's with it",
    "full": "a table of the library was full",
    "unknown": "the descriptor changed while it was looked at",
}


# -- what the library counted ------------------------------------------------------------------


@dataclass
class Tally:
    """Data calls, and the bytes that they moved (or asked for, where the kernel did them)."""

    calls: int = 0
    bytes: int = 0

    def add(self, other: Tally) -> None:
        self.calls += other.calls
        self.bytes += other.bytes


@dataclass
class Account:
    """What one program did on mounts, or several together."""

    pid: int = 0
    exe: str = ""
    end: str = ""  # how it ended: "" while it lives
    attached: int = 0  # sessions it opened
    attach_us: int = 0
    bypassed: dict[str, Tally] = field(default_factory=dict)  # by call
    left: dict[str, dict[str, Tally]] = field(default_factory=dict)  # by call, then reason
    short: Tally = field(default_factory=Tally)  # on file systems nobody had to look at

    def add(self, other: Account) -> None:
        self.attached += other.attached
        self.attach_us += other.attach_us
        for call, tally in other.bypassed.items():
            self.bypassed.setdefault(call, Tally()).add(tally)
        for call, reasons in other.left.items():
            for reason, tally in reasons.items():
                self.left.setdefault(call, {}).setdefault(reason, Tally()).add(tally)
        self.short.add(other.short)

    @property
    def bypassed_bytes(self) -> int:
        return sum(tally.bytes for tally in self.bypassed.values())

    @property
    def left_bytes(self) -> int:
        return sum(t.bytes for reasons in self.left.values() for t in reasons.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def total(accounts: Iterable[Account]) -> Account:
    whole = Account()
    for account in accounts:
        whole.add(account)
    return whole


def _tallies(found: Mapping[str, Mapping[str, int]]) -> dict[str, Tally]:
    return {name: Tally(int(t["calls"]), int(t["bytes"])) for name, t in found.items()}


def read_report(path: str | os.PathLike[str]) -> list[Account]:
    """The accounts of a report, in the order in which the programs ended. Raises OSError, and
    ValueError for what is no report."""
    accounts = []
    for number, line in enumerate(Path(path).read_text(errors="replace").splitlines(), 1):
        try:
            found = json.loads(line)
            account = Account(
                pid=int(found["pid"]),
                exe=str(found["exe"]).encode("latin-1").decode("utf-8", "replace"),
                end=str(found["end"]),
                attached=int(found["attached"]),
                attach_us=int(found["attach_us"]),
                bypassed=_tallies(found["bypassed"]),
                left={call: _tallies(reasons) for call, reasons in found["left"].items()},
                short=_tallies(found["short"])["undecided"],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as err:
            raise ValueError(f"line {number} is not the library's: {err}") from None
        accounts.append(account)
    return accounts


def _memfd_of(pid: int) -> bytes | None:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}").startswith(_MEMFD):
                with open(f"{folder}/{name}", "rb") as file:
                    return file.read(_MOST_BYTES)
        except FileNotFoundError:
            continue  # closed meanwhile
    return None


def _parse(data: bytes) -> Account:
    """The counts, with the names that lie beside them. Raises ValueError."""
    try:
        head = _HEAD.unpack_from(data)
        magic, calls, reasons, threads, left_at, bypass_at, names_at, names_len = head[:8]
        if magic != _MAGIC:
            raise ValueError("another version of the library")
        lines = data[names_at : names_at + names_len].decode().splitlines()
        account = Account(attached=head[9], attach_us=head[10] // 1000)
        for i, call in enumerate(lines[:calls]):
            for j, code in enumerate(lines[calls:], 1):
                tally = Tally(*_TALLY.unpack_from(data, left_at + 16 * (i * reasons + j)))
                if tally.calls:
                    account.left.setdefault(call, {})[code] = tally
            for thread in range(threads):
                tally = Tally(*_TALLY.unpack_from(data, bypass_at + 16 * (thread * calls + i)))
                if tally.calls:
                    account.bypassed.setdefault(call, Tally()).add(tally)
    except (struct.error, UnicodeDecodeError) as err:
        raise ValueError(f"not the library's counts: {err}") from None
    return account


def of_process(pid: int) -> Account:
    """The counts of a live process. Raises OSError: ESRCH (no such process), EACCES (another
    user's), ENODATA (it has no library, or made no data call on a mount yet); ValueError."""
    try:
        loaded = LIBRARY in Path(f"/proc/{pid}/maps").read_text(errors="replace")
        data = _memfd_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise OSError(errno.ESRCH, "there is no such process") from None
    if data is None:
        why = "has not read or written on a mount yet" if loaded else "runs without the library"
        raise OSError(errno.ENODATA, f"the process {why}")
    account = _parse(data)
    account.pid = pid
    account.exe = os.readlink(f"/proc/{pid}/exe")
    return account
