# SPDX-License-Identifier: Apache-2.0
"""A bound for whatever a test does with processes that wait for each other.

When it is reached, it is told what was waited for and what every process is doing, and all are
ended: so whoever waits comes back, and the test fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from harness import Home


@contextlib.contextmanager
def bounded(home: Home, what: str, timeout_s: float) -> Iterator[None]:
    """The block must end in that time. Raises AssertionError."""
    told: list[str] = []

    def expire() -> None:
        pids = everyone(home)
        states = [state_of(pid) for pid in pids]
        told.extend([f"{what}: no end after {timeout_s:g} s", *states, *own_stacks()])
        print("\n".join(told), file=sys.stderr, flush=True)  # should the end not help either
        end(pids)

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if told:
            raise AssertionError("\n".join(told) + home.logs())


def everyone(home: Home) -> list[int]:
    """This process's descendants, and whoever was started with a path of the test's directory:
    mounts and services, which are nobody's children."""
    parents: dict[int, int] = {}
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(path.name)
            parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if os.fsencode(f"{home.path.parent}/") in (path / "cmdline").read_bytes():
                found.add(pid)
    own, young = {os.getpid()}, {os.getpid()}
    while young := {pid for pid, parent in parents.items() if parent in young} - own:
        own |= young
    ancestors, pid = set(), os.getpid()
    while pid := parents.get(pid, 0):
        ancestors.add(pid)
    return sorted((found | own) - ancestors - {os.getpid()})


def state_of(pid: int) -> str:
    """What a process and each of its threads does."""
    folder = Path(f"/proc/{pid}")
    words = _read(folder / "cmdline").replace("\0", " ").strip()[:200]
    lines = [f"process {pid}: {words}"]
    with contextlib.suppress(OSError):
        for task in sorted((folder / "task").iterdir()):
            state = _read(task / "stat").rpartition(")")[2].split()[:1]
            does = " ".join([*state, _read(task / "comm").strip(), _read(task / "wchan").strip()])
            lines.append(f"  {task.name} {does}, system call {_read(task / 'syscall').strip()}")
    return "\n".join(lines)


def own_stacks() -> list[str]:
    """Where the threads of this process are, but the one that asks."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    return [
        f"thread {ident} of the test:\n{''.join(traceback.format_stack(frame)[-8:])}"
        for ident, frame in frames.items()
    ]


def end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as err:
        return f"({err.strerror})"
