# SPDX-License-Identifier: Apache-2.0
"""Random calls by several processes that share descriptors, some intercepted and some not: results,
errors, offsets and files are those of the host's file system.

One process acts at a time. Hypothesis finds the calls and shrinks what fails; DFUSEPY_SEED replays
a run, DFUSEPY_EXAMPLES makes a longer one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from actor import WARM_CALLS
from harness import Home, make_container
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dfusepy import interception

THRESHOLD = 32  # calls until a process opens a session
ACTOR = Path(__file__).resolve().parent / "actor.py"
ANSWER_S = 60
PACKET = 1 << 16
EXAMPLES = int(os.environ.get("DFUSEPY_EXAMPLES", "80"))
SEED = int(os.environ.get("DFUSEPY_SEED") or time.time_ns() % 2**32)
ACTORS = 2  # at the start; forks make more
MOST_ACTORS = 5

pytestmark = pytest.mark.slow


# -- processes and where they act ------------------------------------------------------------------


@dataclass
class Actor:
    """One process of actor.py."""

    channel: socket.socket
    parent: Actor | None = None
    pid: int = 0

    def call(self, *words: object) -> object:
        self.channel.send(pickle.dumps(words))
        return self.answer()[0]

    def answer(self) -> tuple[object, list[int]]:
        packet, fds, _, _ = socket.recv_fds(self.channel, PACKET, 1)
        assert packet, f"actor {self.pid} has ended"
        return pickle.loads(packet), fds

    def fork(self) -> Actor:
        ours, theirs = channel_pair()
        with theirs:
            socket.send_fds(self.channel, [pickle.dumps(("fork",))], [theirs.fileno()])
        pid, _ = self.answer()
        child = Actor(ours, self, int(str(pid)))
        assert child.answer()[0] == "child"
        return child

    def send(self, slot: int, other: Actor, other_slot: int) -> object:
        self.channel.send(pickle.dumps(("send", slot)))
        told, fds = self.answer()
        if not fds:
            return told
        socket.send_fds(other.channel, [pickle.dumps(("receive", other_slot))], fds)
        os.close(fds[0])
        return other.answer()[0]

    def end(self) -> None:
        assert self.call("end") == "end"
        self.channel.close()
        if self.parent:
            assert self.parent.call("reap", self.pid) == 0


def channel_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.settimeout(ANSWER_S)
    pair[1].setblocking(True)
    return pair


def start_actor(preload: str) -> Actor:
    """A process that only forks the actors of examples."""
    ours, theirs = channel_pair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(ACTOR), str(theirs.fileno())],
            env={**os.environ, "LD_PRELOAD": preload},
            pass_fds=[theirs.fileno()],
        )
    return Actor(ours, None, process.pid)


@dataclass
class World:
    """A folder, and the processes that act in it."""

    name: str
    folder: Path
    preloads: list[str]  # of the first actors
    warm: Path | None = None  # a file to read until a process has a session
    nursery: list[Actor] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    account: interception.Account = field(default_factory=interception.Account)

    def start(self) -> None:
        self.nursery = [start_actor(preload) for preload in self.preloads]

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for mother in self.nursery:
            self.add(mother)

    def add(self, mother: Actor) -> None:
        child = mother.fork()
        self.actors.append(child)
        child.call("enter", str(self.folder), self.warm is not None)
        self.heat(child)

    def heat(self, actor: Actor) -> None:
        if self.warm:
            actor.call("warm", str(self.warm))

    def finish(self) -> None:
        while self.actors:
            actor = self.actors.pop()
            with contextlib.suppress(OSError):  # it is not hooked
                self.account.add(interception.of_process(actor.pid))
            actor.end()

    def calls(self) -> tuple[int, int]:
        """Data calls that were bypassed, and those of hooked processes that were not, apart from
        what it takes to get a session."""
        left = sum(
            tally.calls
            for reasons in self.account.left.values()
            for reason, tally in reasons.items()
            if reason != "threshold"
        )
        warm = (WARM_CALLS - THRESHOLD) * self.account.attached
        return sum(tally.calls for tally in self.account.bypassed.values()) - warm, left

    def stop(self) -> None:
        for actor in self.nursery:
            actor.end()
            os.waitpid(actor.pid, 0)

    def play(self, call: tuple[object, ...]) -> object:
        who, name, *words = call
        actor = self.actors[int(str(who)) % len(self.actors)]
        if name == "fork":
            if len(self.actors) < MOST_ACTORS:
                self.add(actor)
            return len(self.actors)
        if name == "send":
            slot, other, other_slot = (int(str(word)) for word in words)
            return actor.send(slot, self.actors[other % len(self.actors)], other_slot)
        if name == "exec":
            preload = self.preloads[int(str(words[0])) % len(self.preloads)]
            told = actor.call("exec", preload)
            self.heat(actor)
            return told
        return actor.call(name, *words)

    def files(self) -> dict[str, tuple[int, int, bytes]]:
        return {
            path.name: (path.stat().st_nlink, path.stat().st_size, path.read_bytes())
            for path in self.folder.iterdir()
        }


# -- calls -----------------------------------------------------------------------------------------

WHO = st.integers(0, MOST_ACTORS - 1)
SLOT = st.integers(0, 3)
TAG = st.integers(0, 999)
NAME = st.sampled_from(["a", "b", "c"])
SIZE = st.sampled_from(
    [0, 1, 7, 100, 4095, 4096, 4097, 10000, 65536, 65537, 300_000, (1 << 20) + 1]
)
OFFSET = st.sampled_from([0, 1, 100, 4095, 4096, 8193, 65536, (1 << 20) - 1, 1 << 20, 3 << 20])
SIZES = st.lists(SIZE, min_size=1, max_size=5)
FLAGS = st.sampled_from(
    [
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR,
        os.O_RDONLY,
        os.O_WRONLY,
        os.O_RDWR | os.O_CREAT | os.O_APPEND,
        os.O_WRONLY | os.O_APPEND,
        os.O_RDWR | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        os.O_RDWR | os.O_SYNC,
        os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME,
        os.O_RDONLY | os.O_DIRECTORY,
        os.O_PATH,
    ]
)
WHENCE = st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, os.SEEK_DATA, os.SEEK_HOLE, 9])


def call(name: str, *words: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(WHO, st.just(name), *words)


MAYBE_OFFSET = st.one_of(st.none(), OFFSET)
DATA = [
    call("read", SLOT, SIZE),
    call("read", SLOT, SIZE),
    call("pread", SLOT, SIZE, OFFSET),
    call("readv", SLOT, SIZES, MAYBE_OFFSET),
    call("write", SLOT, TAG, SIZE),
    call("write", SLOT, TAG, SIZE),
    call("pwrite", SLOT, TAG, SIZE, OFFSET),
    call("writev", SLOT, TAG, SIZES, MAYBE_OFFSET),
    call("lseek", SLOT, st.one_of(OFFSET, st.sampled_from([-1, -100, -5000])), WHENCE),
    call("mapped", SLOT, OFFSET, SIZE),
]
OTHER = [
    call("close", SLOT),
    call("dup", SLOT, SLOT),
    call("dup2", SLOT, SLOT),
    call("ftruncate", SLOT, OFFSET),
    call("fsync", SLOT),
    call("fdatasync", SLOT),
    call("fstat", SLOT),
    call("copy", SLOT, SLOT, SIZE, MAYBE_OFFSET),
    call("sendfile", SLOT, SLOT, SIZE),
    call("store", SLOT, TAG, OFFSET, SIZE),
    call("stat", NAME),
    call("unlink", NAME),
    call("rename", NAME, NAME),
    call("link", NAME, NAME),
    call("truncate", NAME, OFFSET),
    call("offsets"),
]
OPEN = [call("open", SLOT, NAME, FLAGS)]
# What is open in the process is shared from then on, so that these are to be rare.
SHARE = [call("send", SLOT, WHO, SLOT), call("fork"), call("exec", st.integers(0, 1))]
CALL = st.one_of(*DATA * 4, *OPEN * 8, *OTHER, *SHARE)
# Something to work with: files that both have by one description, and by descriptions of their own.
START: list[tuple[object, ...]] = [
    (0, "open", 0, "a", os.O_RDWR | os.O_CREAT),
    (0, "write", 0, 1, 10000),
    (0, "send", 0, 1, 0),
    (1, "open", 1, "b", os.O_RDWR | os.O_CREAT | os.O_APPEND),
    (1, "write", 1, 2, 300_000),
    (0, "open", 1, "a", os.O_RDWR | os.O_APPEND),
    (0, "open", 2, "a", os.O_RDWR),
    (0, "open", 3, "b", os.O_RDWR),
    (1, "open", 2, "b", os.O_RDWR),
    (1, "open", 3, "a", os.O_RDONLY),
]


# -- the test --------------------------------------------------------------------------------------


@pytest.fixture
def library() -> str:
    path = interception.library_path()
    if path is None:
        pytest.skip("the package was built without the interception library")
    return path


@pytest.fixture
def worlds(home: Home, tmp_path: Path, library: str) -> Iterator[list[World]]:
    os.environ["DFUSEPY_HOME"] = str(home.path)
    mount = make_container(home)
    mount.mount()
    warm = mount.path / "warm"
    warm.write_bytes(bytes(10000))
    made = [
        World("host", tmp_path / "host", ["", library]),
        World("mount", mount.path / "plain", ["", ""], warm),
        World("interception", mount.path / "hooked", [library, library], warm),
        World("mixed", mount.path / "mixed", [library, ""], warm),
    ]
    for world in made:
        world.start()
    yield made
    for world in made:
        world.stop()
    mount.umount()
    assert mount.check() == []


def replay(worlds: list[World], calls: list[tuple[object, ...]]) -> None:
    for world in worlds:
        world.begin()
    host, *others = worlds
    try:
        for number, one in enumerate([*START, *calls]):
            expected = host.play(one)
            for world in others:
                got = world.play(one)
                assert got == expected, (
                    f"call {number}, {one}: {got!r} ({world.name}), the host gives {expected!r}"
                )
        expected = host.files()
        for world in others:
            assert world.files() == expected, world.name
    finally:
        for world in worlds:
            world.finish()


def test_calls_of_processes_behave_as_on_the_host(worlds: list[World]) -> None:
    print(f"DFUSEPY_SEED={SEED}")

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(CALL, min_size=15, max_size=60))
    def play(calls: list[tuple[object, ...]]) -> None:
        replay(worlds, calls)

    play()
    for world in worlds:
        bypassed, left = world.calls()
        print(f"{world.name}: {bypassed} calls bypassed, {left} not")
        assert (bypassed > 0) == (world.warm is not None and any(world.preloads))
