# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the mount at random moments: the pool opens by itself, `container check` finds
nothing, and the four promises of crash_model.py hold.

DFUSEPY_CRASH_ROUNDS sets how often (50), DFUSEPY_SEED replays a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from crash_model import MOUNT_IS_GONE, Workload, check, observe
from harness import Mount

ROUNDS = int(os.environ.get("DFUSEPY_CRASH_ROUNDS", "50"))
# The commit interval is 1 s; the rest is for a slow, shared machine.
GRACE_S = 3.0


@pytest.fixture
def seed() -> int:
    value = int(os.environ.get("DFUSEPY_SEED") or time.time_ns() % 2**32)
    print(f"DFUSEPY_SEED={value}")
    return value


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


@contextlib.contextmanager
def killed_after(mnt: Mount, delay_s: float):
    """Kills the mount's process `delay_s` from now; yields a list that then holds the moment."""
    moment: list[float] = []

    def kill() -> None:
        moment.append(time.monotonic())
        mnt.crash()

    timer = threading.Timer(delay_s, kill)
    timer.start()
    try:
        yield moment
    finally:
        timer.join()


def recover(mnt: Mount) -> None:
    faults = mnt.check()
    assert faults == [], faults
    mnt.mount()


def test_what_a_crash_leaves(mnt: Mount, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(ROUNDS):
        folder = mnt.path / f"round-{number}"
        folder.mkdir()
        sync_folder(mnt.path)
        work = Workload(folder, seed + number)
        with killed_after(
            mnt, rng.uniform(0.02, 1.0) if number % 5 else rng.uniform(3, 5)
        ) as moment:
            work.run()
        recover(mnt)
        try:
            names, data = observe(folder)
            check(work, names, data, moment[0], GRACE_S)
        except AssertionError as exc:
            tail = "\n".join(f"{n}: {op.text}" for n, op in list(enumerate(work.ops))[-30:])
            raise AssertionError(f"round {number}, seed {seed}: {exc}\n{tail}") from exc
        shutil.rmtree(folder)


# Inserts rows until the mount is gone, and tells each one that is committed. In a process of its
# own: SQLite knows files by device and inode, and would take the recovered database for the lost
# one.
INSERT = """
import os, random, sqlite3, sys
path, journal, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None)
db.execute(f"pragma journal_mode={journal}")
# The end of the mount is what a power loss is elsewhere: "full" does not sync the directory after
# the rollback journal has been removed, "extra" does.
db.execute("pragma synchronous=extra")
db.execute("create table if not exists t(k integer primary key, v blob)")
folder = os.open(os.path.dirname(path), os.O_RDONLY)
while True:
    db.execute("insert into t values(?, ?)", (first, random.randbytes(3000)))
    os.fsync(folder)  # SQLite takes a directory that it cannot open for synced
    print(first, flush=True)
    first += 1
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_keeps_every_committed_transaction(mnt: Mount, seed: int, journal: str) -> None:
    rng = random.Random(seed)
    path = mnt.path / "data.db"
    rows = 0
    for _ in range(max(1, ROUNDS // 10)):
        with killed_after(mnt, rng.uniform(0.5, 2)):
            told = subprocess.run(
                [sys.executable, "-c", INSERT, path, journal, str(rows)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert told.returncode != 0
        committed = rows + told.stdout.count("\n")
        recover(mnt)
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
            tables = db.execute("select count(*) from sqlite_master").fetchone()
            found = [k for (k,) in db.execute("select k from t order by k")] if tables[0] else []
        assert found == list(range(len(found))), told.stderr
        # A commit that the crash interrupted may be durable without having been told.
        assert len(found) in (committed, committed + 1), told.stderr
        rows = len(found)


def test_trees_copied_while_killed(mnt: Mount, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(1500):
        (source / f"{number}").write_bytes(rng.randbytes(rng.choice([0, 10, 3000, 5000, 30000])))
    for number in range(max(1, ROUNDS // 10)):
        target = mnt.path / f"copy-{number}"
        with killed_after(mnt, rng.uniform(0.05, 0.8)), contextlib.suppress(shutil.Error, OSError):
            shutil.copytree(source, target)
        recover(mnt)
        # Each file is one moment: copytree writes each with one or more appends.
        for path in target.iterdir() if target.exists() else []:
            data = path.read_bytes()
            assert (source / path.name).read_bytes().startswith(data)
        shutil.rmtree(target, ignore_errors=True)


def test_errors_of_a_dead_mount_are_clear(mnt: Mount) -> None:
    mnt.kill()
    with pytest.raises(OSError) as error:
        (mnt.path / "x").write_bytes(b"")
    assert error.value.errno in MOUNT_IS_GONE
    recover(mnt)
    (mnt.path / "x").write_bytes(b"alive")
