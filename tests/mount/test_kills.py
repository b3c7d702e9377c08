# SPDX-License-Identifier: Apache-2.0
"""kill -9 of clients and of the service's worker, at random moments, under load.

DFUSEPY_SEED replays a run; scripts/soak makes long ones.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import bounded
from harness import PROGRAM, Mount
from kill_rounds import STEP_S, ClientKills, fio_while_killed, session_of, storms_while_killed

from dfusepy import engine

CLIENTS = 300
WORKERS = 15

pytestmark = pytest.mark.slow


def finish(mount: Mount) -> None:
    with bounded(mount.home, "the mount's end and the check", STEP_S):
        mount.umount()
        assert mount.check() == []


def test_killed_clients_leave_nothing(served: Mount, seed: int, tmp_path: Path) -> None:
    print(ClientKills(served, tmp_path, seed).run(CLIENTS))
    finish(served)


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
@pytest.mark.parametrize("hooked", [False, True], ids=["mount", "interception"])
def test_killed_workers_cost_no_byte(served: Mount, seed: int, hooked: bool) -> None:
    print(fio_while_killed(served, seed, WORKERS, hooked))
    finish(served)


def test_killed_workers_cost_no_name(served: Mount, seed: int) -> None:
    print(storms_while_killed(served, seed, WORKERS))
    finish(served)


# Reads by a lease, without a message, and tells what it sees and how often it has looked.
READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
seen = memoryview(mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 16)).cast("Q")
for _ in range(100):
    os.pread(fd, 65536, 0)
while True:
    seen[1] = int.from_bytes(os.pread(fd, 8, 0), "little")
    seen[0] += 1
"""


def looks(reader: subprocess.Popen[bytes], seen: memoryview, count: int) -> None:
    """Waits for so many looks from now on."""
    wanted = seen[0] + count
    while seen[0] < wanted:
        assert reader.poll() is None, "the reader has ended"
        time.sleep(0.0005)


def test_readers_see_what_the_next_worker_changes(served: Mount, tmp_path: Path) -> None:
    path, shown = served.path / "value", tmp_path / "seen"
    path.write_bytes(bytes(65536))
    shown.write_bytes(bytes(16))
    with shown.open("r+b") as file:
        seen = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
    reader = subprocess.Popen([PROGRAM, "run", "--", sys.executable, "-c", READER, path, shown])
    try:
        with (
            bounded(served.home, "what a reader sees", STEP_S),
            session_of(served.home) as session,
            session.container("data") as cont,
            cont.filesystem() as fs,
        ):
            looks(reader, seen, 100)
            for value in range(1, 9):
                if value % 2:
                    os.kill(session.service().worker_pid, signal.SIGKILL)
                fs.write(engine.Inode(path.stat().st_ino), 0, value.to_bytes(8, "little"))
                looks(reader, seen, 2)  # the first one may have begun before
                assert seen[1] == value
    finally:
        reader.kill()
        reader.wait()
