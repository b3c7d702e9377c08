# SPDX-License-Identifier: Apache-2.0
"""Sessions change files that two mounts have in dirty and in read maps, while the service's worker
is killed again and again: nobody waits for long, no mount is given up, no number is lost.

DFUSEPY_SEED replays a run, DFUSEPY_STORM_S makes it longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cohere_storm import ACTORS, BEGINS, FILES, FOLDER, PAGE, PAGES, THREADS, Told, number
from harness import Home, Mount, make_container
from test_semantics import session

from dfusepy import engine

SECONDS = float(os.environ.get("DFUSEPY_STORM_S") or 10)
KILL_EVERY_S = 3.0
# A worker's death takes half a second, or a few where the machine is busy; a mount that does not
# answer is given up after 10.
LONGEST_S = 9.0

pytestmark = pytest.mark.slow


@dataclass
class Storm:
    """The programs, and what they have told."""

    seed: int
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def start(self, role: str, first: int, *words: object) -> None:
        program = Path(__file__).with_name("cohere_storm.py")
        command = [sys.executable, program, role, self.seed, first, *words]
        self.children.append(
            subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def begin(self) -> None:
        for child in self.children:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == BEGINS, child.args

    def rage(self, seconds: float, kill: Callable[[], None]) -> None:
        """Kills the worker now and then; a program that ends before is found by `end`."""
        rng = random.Random(self.seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not any(c.poll() for c in self.children):
            time.sleep(KILL_EVERY_S * rng.uniform(0.6, 1.4))
            kill()

    def end(self) -> None:
        for child in self.children:
            assert child.stdin is not None
            child.stdin.close()
        for child in self.children:
            assert child.stdout is not None
            text = child.stdout.read()
            assert child.wait(60) == 0, child.args
            self.told += [Told(**one) for one in json.loads(text)]

    def clean(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()

    def summary(self) -> str:
        slow = sorted((wait for told in self.told for wait in told.slow), reverse=True)
        longest = max(told.longest_s for told in self.told)
        changes, looks = (
            sum(getattr(told, key) for told in self.told) for key in ("changes", "looks")
        )
        return f"{changes} changes, longest {longest:.2f} s, {slow=}, {looks=}"


def prepare(home: Home) -> tuple[Mount, Mount]:
    mount = make_container(home, "256M")
    mount.mount()
    (mount.path / FOLDER).mkdir()
    for file in range(FILES):
        (mount.path / FOLDER / str(file)).write_bytes(bytes(PAGES * PAGE))
    reader = Mount(home, mount.name, mount.path.parent / "r")
    reader.path.mkdir()
    reader.mount("--read-only")
    return mount, reader


def start_all(storm: Storm, mount: Mount, reader: Mount) -> None:
    [record] = mount.home.services()
    inodes = [(mount.path / FOLDER / str(file)).stat().st_ino for file in range(FILES)]
    for first in (0, THREADS):
        served = (record.pool, record.socket, mount.path, reader.path, *inodes)
        storm.start("session", first, *served)
    for first in (2 * THREADS, 3 * THREADS):
        storm.start("mapper", first, mount.path, reader.path)
    for path in (mount.path, reader.path):
        storm.start("reader", ACTORS, path)


def last_bytes(storm: Storm, mounts: list[Mount], fs: engine.FileSystem) -> None:
    """What the actors wrote last is there, whoever looks."""
    for told in storm.told:
        for where, wanted in told.last.items():
            file, page = map(int, where.split())
            for mount in mounts:
                with open(mount.path / FOLDER / str(file), "rb") as opened:
                    got = number(os.pread(opened.fileno(), 8, page * PAGE))
                assert got == wanted, (where, mount.path)
            inode = engine.Inode((mounts[0].path / FOLDER / str(file)).stat().st_ino)
            assert number(bytes(fs.read(inode, page * PAGE, 8))) == wanted, where


def test_changes_while_two_mounts_map_and_workers_die(home: Home, seed: int) -> None:
    mount, reader = prepare(home)
    storm = Storm(seed)
    with session(mount) as fs:
        [record] = home.services()
        with engine.Pool.open(record.pool, socket=record.socket) as pool:
            start_all(storm, mount, reader)
            try:
                storm.begin()
                storm.rage(SECONDS, lambda: os.kill(pool.service().worker_pid, signal.SIGKILL))
                storm.end()
            finally:
                storm.clean()
        print(storm.summary())
        assert [wrong for told in storm.told for wrong in told.wrong] == []
        assert "let go" not in home.logs()
        os.sync()
        last_bytes(storm, [mount, reader], fs)
    assert max(told.longest_s for told in storm.told) < LONGEST_S
    reader.umount()
    mount.umount()
    assert mount.check() == []
