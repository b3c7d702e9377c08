# SPDX-License-Identifier: Apache-2.0
"""docs/SEMANTICS.md, heading by heading: each promise is a test of the same name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PROGRAM, Home, Mount, make_container, wait_for_end

from dfusepy import engine

SEMANTICS = Path(__file__).parents[2] / "docs" / "SEMANTICS.md"
BLOCK = 4096


def test_every_heading_has_a_test() -> None:
    headings = re.findall(r"^### (.+)$", SEMANTICS.read_text(), re.MULTILINE)
    names = ["test_" + re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") for text in headings]
    assert len(headings) > 20
    assert [name for name in names if name not in globals()] == []


@pytest.fixture
def mnt(home: Home) -> Mount:
    """A container mounted on a session with its pool's service."""
    mount = make_container(home, "256M")
    mount.mount()
    return mount


@contextlib.contextmanager
def session(mnt: Mount) -> Iterator[engine.FileSystem]:
    """The mounted file system in a session of this process's own."""
    [record] = mnt.home.services()
    with (
        engine.Pool.open(record.pool, socket=record.socket) as pool,
        pool.container(mnt.name.partition("/")[2]) as container,
        container.filesystem() as fs,
    ):
        yield fs


@pytest.fixture
def fs(mnt: Mount) -> Iterator[engine.FileSystem]:
    with session(mnt) as opened:
        yield opened


def inode(path: Path) -> engine.Inode:
    return engine.Inode(path.stat().st_ino)


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A program of its own; its output is read line by line."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


# -- among programs on the mount -----------------------------------------------------------------


def test_a_read_sees_what_was_written_before_it(mnt: Mount) -> None:
    path = mnt.path / "file"
    path.write_bytes(b"")
    with open(path, "r+b", buffering=0) as one, open(path, "rb", buffering=0) as other:
        for number in range(100):
            one.seek(number * 1000)
            one.write(b"%04d" % number * 250)
            assert other.read(1000) == b"%04d" % number * 250
        done = subprocess.run(["cat", path], capture_output=True, check=True)
    assert done.stdout == b"".join(b"%04d" % number * 250 for number in range(100))


def test_names_change_at_once(mnt: Mount) -> None:
    stop = threading.Event()
    missing: list[int] = []
    (mnt.path / "a").write_text("0")

    def look() -> None:
        while not stop.is_set():
            if not (mnt.path / "a").exists():
                missing.append(1)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(300):
        (mnt.path / "new").write_text(str(number))
        os.rename(mnt.path / "new", mnt.path / "a")
        assert not (mnt.path / "new").exists()
        assert (mnt.path / "a").read_text() == str(number)
    stop.set()
    thread.join()
    assert missing == []


def test_locks_hold_among_all_programs(mnt: Mount) -> None:
    path = mnt.path / "lock"
    path.touch()
    code = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX, 10)
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder, open(path, "r+b") as file:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for lock in (fcntl.flock, fcntl.lockf):
            with pytest.raises(BlockingIOError):
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        holder.wait()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# -- between the mount and sessions --------------------------------------------------------------


def test_what_a_session_writes_is_in_the_mount_s_next_read(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path = mnt.path / "file"
    path.write_bytes(bytes(64 * BLOCK))
    ino = inode(path)
    rng = random.Random(1)
    with open(path, "rb", buffering=0) as reader:
        for number in range(200):
            assert len(os.pread(reader.fileno(), 64 * BLOCK, 0)) == 64 * BLOCK  # cached now
            at = rng.randrange(64 * BLOCK - 100)
            fs.write(ino, at, b"%0100d" % number)
            assert os.pread(reader.fileno(), 100, at) == b"%0100d" % number
    # A file that was just written can be run and imported.
    script = mnt.path / "script"
    script.write_text("#!/bin/sh\necho old\n")
    script.chmod(0o755)
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"old\n"
    fs.write(inode(script), 0, b"#!/bin/sh\necho new\n")
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"new\n"


def test_a_size_that_a_session_changes_is_in_the_next_stat(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path = mnt.path / "file"
    path.write_bytes(b"12345")
    ino = inode(path)
    assert path.stat().st_size == 5
    for size in (100, 50_000, 7, 0, 1):
        before = path.stat().st_mtime_ns
        fs.setattr(ino, size=size)
        assert path.stat().st_size == size
        assert path.stat().st_mtime_ns >= before
        fs.write(ino, size, b"more")
        assert path.stat().st_size == size + 4
        assert len(path.read_bytes()) == size + 4
    fs.setattr(ino, mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


# Reads a file to a size, polling its end.
FOLLOWER = """
import os, sys
fd, at = os.open(sys.argv[1], os.O_RDONLY), 0
while at < int(sys.argv[2]):
    got = os.pread(fd, 200, at)
    assert not got.strip(b"x"), (at, got)
    at += len(got)
"""


def test_a_file_that_a_session_lengthens_is_read_to_its_old_or_its_new_end(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path, count = mnt.path / "log", 2000
    path.write_bytes(b"")
    words = [sys.executable, "-c", FOLLOWER, path, str(100 * count)]
    with subprocess.Popen(words) as one, subprocess.Popen(words) as other:
        for number in range(count):
            fs.write(inode(path), 100 * number, b"x" * 100)
            time.sleep(0.001)
        assert one.wait(60) == 0
        assert other.wait(60) == 0


def test_names_that_a_session_changes_are_in_the_next_look_up(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    root = engine.ROOT
    for number in range(30):
        name = f"n{number}"
        assert not (mnt.path / name).exists()  # remembered by the kernel
        made = fs.mknod(root, name.encode(), 0o100644)
        assert (mnt.path / name).stat().st_ino == made.ino
        fs.rename(root, name.encode(), root, b"moved")
        assert not (mnt.path / name).exists()
        assert (mnt.path / "moved").stat().st_ino == made.ino
        fs.unlink(root, b"moved")
        assert not (mnt.path / "moved").exists()
        assert os.listdir(mnt.path) == []
    fs.mkdir(root, b"d", 0o755)
    (mnt.path / "d" / "below").touch()
    assert (mnt.path / "d" / "below").exists()
    fs.unlink(inode(mnt.path / "d"), b"below")
    fs.rmdir(root, b"d")
    assert not (mnt.path / "d").exists()


def test_what_the_mount_writes_is_in_a_session_s_next_read(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path = mnt.path / "file"
    path.write_bytes(b"")
    ino = inode(path)
    with open(path, "r+b", buffering=0) as writer:
        for number in range(200):
            at = number * 777
            os.pwrite(writer.fileno(), b"%0500d" % number, at)
            assert bytes(fs.read(ino, at, 500)) == b"%0500d" % number
            assert fs.getattr(ino).size == at + 500
        os.ftruncate(writer.fileno(), 10)
        assert len(fs.read(ino, 0, 1000)) == 10


APPEND = """
import os, sys
from dfusepy import engine
pool, socket, ino, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with engine.Pool.open(pool, socket=socket) as opened, opened.container("data") as container:
    with container.filesystem() as fs:
        fs.ref(ino)
        for number in range(count):
            fs.write(ino, 0, b"session %08d\\n" % number, engine.APPEND)
        fs.unref(ino)
"""


def test_appends_of_all_faces_keep_each_other_s_bytes(mnt: Mount) -> None:
    path = mnt.path / "log"
    path.write_bytes(b"")
    [record] = mnt.home.services()
    count = 500
    appender = child(APPEND, record.pool, record.socket, inode(path), count)
    with appender as other, open(path, "ab", buffering=0) as file:
        for number in range(count):
            file.write(b"mount   %08d\n" % number)
    assert other.returncode == 0
    lines = path.read_bytes().splitlines()
    for who in (b"session", b"mount  "):
        mine = [line for line in lines if line.startswith(who)]
        assert mine == [b"%s %08d" % (who, number) for number in range(count)]
    assert len(lines) == 2 * count


def test_one_mount_writes_to_a_container(mnt: Mount, tmp_path: Path) -> None:
    other = Mount(mnt.home, mnt.name, tmp_path / "other")
    other.path.mkdir()
    said = mnt.home.refuse("mount", mnt.name, other.path)
    assert str(mnt.path) in said
    other.mount("--read-only")
    (mnt.path / "file").write_bytes(b"seen")
    assert (other.path / "file").read_bytes() == b"seen"
    (mnt.path / "file").write_bytes(b"seen again")
    assert (other.path / "file").read_bytes() == b"seen again"
    mnt.home.run("container", "create", "demo/second")
    second = Mount(mnt.home, "demo/second", tmp_path / "second")
    second.path.mkdir()
    second.mount()
    (second.path / "own").touch()
    assert sorted(os.listdir(mnt.path)) == ["file"]
    for mount in (other, second):
        mount.umount()


def test_a_file_unlinked_by_a_session_lives_as_long_as_it_is_used(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path = mnt.path / "file"
    path.write_bytes(b"alive")
    ino = inode(path)
    with open(path, "r+b", buffering=0) as file:
        fs.unlink(engine.ROOT, b"file")
        assert not path.exists()
        assert os.pread(file.fileno(), 10, 0) == b"alive"
        os.pwrite(file.fileno(), b"still ", 0)
        assert os.fstat(file.fileno()).st_nlink == 0
        fs.ref(ino)
    assert bytes(fs.read(ino, 0, 10)) == b"still "
    fs.unref(ino)
    assert gone(fs, ino)


def gone(fs: engine.FileSystem, ino: engine.Inode) -> bool:
    """Whether an inode is removed within a while: the kernel lets go of it a little later."""
    for _ in range(200):
        try:
            fs.read(ino, 0, 1)
        except OSError as err:
            return err.errno == errno.ESTALE
        time.sleep(0.01)
    return False


# -- mapped files --------------------------------------------------------------------------------


@contextlib.contextmanager
def mapped(path: Path, size: int) -> Iterator[mmap.mmap]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as view:
        yield view


def test_a_store_to_a_map_is_in_a_session_s_read_after_msync(
    mnt: Mount, fs: engine.FileSystem
) -> None:
    path = mnt.path / "file"
    path.write_bytes(bytes(4 * BLOCK))
    with mapped(path, 4 * BLOCK) as view:
        for number in range(20):
            view[number * 700 : number * 700 + 4] = b"%04d" % number
            view.flush()
            assert bytes(fs.read(inode(path), number * 700, 4)) == b"%04d" % number


def test_a_session_s_write_is_in_a_map_s_next_load(mnt: Mount, fs: engine.FileSystem) -> None:
    path = mnt.path / "file"
    path.write_bytes(bytes(4 * BLOCK))
    with mapped(path, 4 * BLOCK) as view:
        for number in range(50):
            at = number * 300
            assert view[at : at + 4] == bytes(4)
            fs.write(inode(path), at, b"%04d" % number)
            assert view[at : at + 4] == b"%04d" % number
        view[0:4] = b"DIRT"  # written back before the change, not after it
        fs.write(inode(path), 2 * BLOCK, b"clean")
        assert view[0:4] == b"DIRT"
        assert bytes(fs.read(inode(path), 0, 4)) == b"DIRT"


def test_a_page_belongs_to_its_last_writer(mnt: Mount, fs: engine.FileSystem) -> None:
    path = mnt.path / "file"
    path.write_bytes(bytes(BLOCK))
    with mapped(path, BLOCK) as view:
        view[0:BLOCK] = b"m" * BLOCK
        fs.write(inode(path), 0, b"s" * BLOCK)
        assert view[0:BLOCK] == b"s" * BLOCK
        view[0:BLOCK] = b"M" * BLOCK
        view.flush()
        assert bytes(fs.read(inode(path), 0, BLOCK)) == b"M" * BLOCK


# -- interception --------------------------------------------------------------------------------


def test_interception_changes_nothing_but_the_speed(mnt: Mount) -> None:
    done = mnt.home.run("run", "--", "true", status=None)
    if done.returncode != 0:
        pytest.skip(f"no interception here: {done.stderr.strip()}")
    code = """
import os, sys
path = sys.argv[1]
with open(path, "wb") as file:
    for number in range(200):
        file.write(b"%07d\\n" % number * 512)
with open(path, "ab") as file:
    file.write(b"end")
with open(path, "rb") as file:
    print(sum(map(len, iter(lambda: file.read(4096), b""))), os.fstat(file.fileno()).st_size)
"""
    outputs, trees = [], []
    for name, words in (("plain", []), ("hooked", [PROGRAM, "run", "--"])):
        path = mnt.path / name
        command = [*words, sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        outputs.append((done.returncode, done.stdout, done.stderr))
        trees.append(path.read_bytes())
    assert outputs[0] == outputs[1]
    assert trees[0] == trees[1]


# -- when something dies -------------------------------------------------------------------------

WRITE = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
number = 0
while True:
    os.pwrite(fd, b"%08d" % number * 512, number % 1000 * 4096)
    print(number, flush=True)
    number += 1
"""
SESSION_WRITE = """
import sys
from dfusepy import engine
pool, socket = sys.argv[1:]
with engine.Pool.open(pool, socket=socket) as opened, opened.container("data") as container:
    with container.filesystem() as fs:
        ino = fs.mknod(engine.ROOT, b"session", 0o100644, flags=engine.REF).ino
        number = 0
        while True:
            fs.write(ino, number % 1000 * 4096, b"%08d" % number * 512)
            print(number, flush=True)
            number += 1
"""


def last_told(program: subprocess.Popen[str], count: int) -> int:
    """Lets a writer tell `count` writes, kills it, and returns the last number that it told."""
    assert program.stdout is not None
    for _ in range(count):
        assert program.stdout.readline()
    program.kill()
    rest = program.stdout.read().split("\n")
    program.wait()
    told = [int(line) for line in rest[:-1] if line]
    return told[-1] if told else count - 1


def holds(data: bytes, last: int) -> bool:
    """Whether each block has the newest number that was told, or one later."""
    for slot in range(min(last + 1, 1000)):
        newest = last - (last - slot) % 1000
        found = data[slot * BLOCK : slot * BLOCK + BLOCK]
        if found not in (b"%08d" % newest * 512, b"%08d" % (newest + 1000) * 512):
            return False
    return True


def test_a_killed_program_loses_nothing_that_it_wrote(mnt: Mount) -> None:
    last = last_told(child(WRITE, mnt.path / "mount"), 1500)
    assert holds((mnt.path / "mount").read_bytes(), last)
    [record] = mnt.home.services()
    last = last_told(child(SESSION_WRITE, record.pool, record.socket), 1500)
    assert holds((mnt.path / "session").read_bytes(), last)
    served = mnt.query()["service"]
    for _ in range(50):
        if int(str(served["sessions"])) <= 1:
            break
        time.sleep(0.02)
        served = mnt.query()["service"]
    assert served["sessions"] == 1
    assert served["loans"] == 0


def test_a_killed_mount_loses_nothing_that_was_accepted(mnt: Mount) -> None:
    with child(WRITE, mnt.path / "file") as writer:
        assert writer.stdout is not None
        for _ in range(500):
            assert writer.stdout.readline()
        mnt.kill()
        told = [499, *map(int, writer.stdout.read().split())]
    with pytest.raises(OSError) as caught:
        os.statvfs(mnt.path)
    assert caught.value.errno == errno.ENOTCONN
    mnt.mount()
    assert holds((mnt.path / "file").read_bytes(), told[-1])


def test_a_killed_worker_loses_nothing_that_was_accepted(mnt: Mount) -> None:
    [record] = mnt.home.services()
    orphan = os.open(mnt.path / "orphan", os.O_CREAT | os.O_RDWR)
    os.write(orphan, b"unlinked, and in use")
    (mnt.path / "orphan").unlink()
    writers = [
        child(WRITE, mnt.path / "mount"),
        child(SESSION_WRITE, record.pool, record.socket),
    ]
    time.sleep(0.5)
    for _ in range(3):
        mnt.kill_worker()
        (mnt.path / f"made{_}").write_bytes(b"by the next one")
        time.sleep(0.5)
    for writer, name in zip(writers, ("mount", "session"), strict=True):
        assert writer.poll() is None
        last = last_told(writer, 1)
        assert holds((mnt.path / name).read_bytes(), last)
    assert os.pread(orphan, 100, 0) == b"unlinked, and in use"
    os.close(orphan)
    assert mnt.query()["service"]["restarts"] == 3
    assert sorted(os.listdir(mnt.path)) == ["made0", "made1", "made2", "mount", "session"]
    mnt.umount()
    assert mnt.check() == []


def test_a_killed_supervisor_leaves_a_whole_pool(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"accepted" * 10_000)
    [record] = mnt.home.services()
    worker, pid = mnt.worker_pid, mnt.pid
    assert (mnt.path / "file").read_bytes()[:8] == b"accepted"
    os.kill(record.pid, signal.SIGKILL)
    assert wait_for_end(worker, 30)
    assert wait_for_end(pid, 30), "the mount goes on without a session"
    with pytest.raises(OSError):
        (mnt.path / "file").read_bytes()
    mnt.mount()
    assert (mnt.path / "file").read_bytes() == b"accepted" * 10_000
    mnt.umount()
    assert mnt.check() == []


def test_a_crash_of_the_host_leaves_a_prefix(mnt: Mount) -> None:
    for number in range(300):
        (mnt.path / f"{number:03}").write_bytes(b"%d" % number * 1000)
    folder = os.open(mnt.path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    for number in range(300, 600):
        (mnt.path / f"{number:03}").write_bytes(b"%d" % number * 1000)
    mnt.crash()
    mnt.mount()
    names = sorted(os.listdir(mnt.path))
    assert len(names) >= 300
    assert names == [f"{number:03}" for number in range(len(names))]
    for number in range(len(names)):
        data = (mnt.path / f"{number:03}").read_bytes()
        assert (b"%d" % number * 1000).startswith(data)
    mnt.umount()
    assert mnt.check() == []


def test_fsync_makes_durable(mnt: Mount, fs: engine.FileSystem) -> None:
    (mnt.path / "d").mkdir()
    with open(mnt.path / "d" / "by the mount", "wb") as file:
        file.write(b"durable" * 1000)
        file.flush()
        os.fsync(file.fileno())
    attr = fs.mknod(inode(mnt.path / "d"), b"by a session", 0o100644, flags=engine.REF)
    fs.write(attr.ino, 0, b"durable too" * 1000)
    fs.fsync(attr.ino)
    mnt.crash()
    mnt.mount()
    assert (mnt.path / "d" / "by the mount").read_bytes() == b"durable" * 1000
    assert (mnt.path / "d" / "by a session").read_bytes() == b"durable too" * 1000


@pytest.mark.root
def test_a_write_error_is_told_by_fsync(mnt: Mount) -> None:
    (mnt.path / "before").write_bytes(b"safe")
    os.sync()
    # Every write of the worker into the device then fails with EFBIG.
    resource.prlimit(mnt.worker_pid, resource.RLIMIT_FSIZE, (4096, 4096))
    with open(mnt.path / "lost", "wb") as file:
        file.write(b"x" * 300_000)
        file.flush()
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                os.fsync(file.fileno())
            assert caught.value.errno in (errno.EIO, errno.EFBIG, errno.EROFS)
    assert (mnt.path / "before").read_bytes() == b"safe"
