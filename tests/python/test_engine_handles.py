# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: closed handles, forks, threads, wrong arguments, the log."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dfusepy import engine, engine_base
from dfusepy.engine import ROOT

OBJECT = engine.ObjectId(1, 2)
MIB = 1 << 20


def test_closed_handles_say_so(engine_pool: engine.Pool) -> None:
    engine_pool.container_create("c")
    container = engine_pool.container("c")
    fs = container.filesystem()
    tx = container.transaction(OBJECT)
    fs.close()
    with pytest.raises(ValueError, match=r"^file system is closed$"):
        fs.getattr(ROOT)
    fs.close()

    engine_pool.close()
    assert container.closed
    assert tx.closed
    for call, what in (
        (engine_pool.query, "pool"),
        (container.query, "container"),
        (container.filesystem, "container"),
        (tx.commit, "transaction"),
        (tx.guard_exists, "transaction"),
    ):
        with pytest.raises(ValueError, match=rf"^{what} is closed$"):
            call()
    with pytest.raises(ValueError, match="pool is closed"), engine_pool:
        pass
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        engine_pool.colour  # type: ignore[attr-defined]  # noqa: B018


def test_an_unclosed_pool_is_closed_with_a_warning(tmp_path: Path) -> None:
    engine.pool_create(tmp_path / "p", "demo", 64 * MIB)

    def leave_open() -> None:
        pool = engine.Pool.open(tmp_path / "p", arena=64 * MIB, hugepages=False)
        pool.container_create("c", posix=False)
        pool.container("c").kv_put(OBJECT, b"k", b"v")

    leave_open()
    with pytest.warns(ResourceWarning, match="unclosed pool"):
        gc.collect()
    with (
        engine.Pool.open(tmp_path / "p", arena=64 * MIB, hugepages=False) as again,
        again.container("c") as container,
    ):
        assert container.kv_get(OBJECT, b"k") == b"v"


@pytest.mark.parametrize("engine_pool", ["in-process"], indirect=True)
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_cannot_use_the_pool(
    engine_pool: engine.Pool, fs: engine.FileSystem
) -> None:
    ino = fs.mknod(ROOT, b"file", 0o100644).ino
    fs.write(ino, 0, b"x" * 100_000)
    view = fs.pin(ino, 0, 100_000)
    child = os.fork()
    if child == 0:
        said = []
        for call in (engine_pool.query, fs.sync, lambda: fs.getattr(ino)):
            try:
                call()
            except ValueError as error:
                said.append("opened by the parent process" in str(error))
        view.release()
        fs.close()
        engine_pool.close()
        os._exit(0 if said == [True] * 3 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    view.release()
    assert fs.read(ino, 0, 3) == b"xxx"


def test_the_interpreter_exits_cleanly_with_a_pool_open(tmp_path: Path) -> None:
    """At exit a pool publishes what is dirty, and the log's thread does not disturb."""
    engine.pool_create(tmp_path / "p", "demo", 64 * MIB)
    program = (
        "import sys; from dfusepy import engine\n"
        "pool = engine.Pool.open(sys.argv[1], arena=64 << 20, hugepages=False)\n"
        "pool.container_create('c'); fs = pool.container('c').filesystem()\n"
        "fs.write(fs.mknod(engine.ROOT, b'f', 0o100644).ino, 0, b'dirty')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "p")],
        cwd=tmp_path,  # not the source tree, which has no built module
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    with (
        engine.Pool.open(tmp_path / "p", arena=64 * MIB, hugepages=False) as pool,
        pool.container("c") as container,
        container.filesystem() as fs,
    ):
        assert fs.read(fs.lookup(ROOT, b"f").ino, 0, 10) == b"dirty"


def test_other_threads_run_while_the_engine_works(objects: engine.Container) -> None:
    """No thread is made to give up the GIL here, so the counter moves only if the call does."""
    data = bytes(16 * MIB)
    counter = 0
    moved: list[int] = []

    def work() -> None:
        while not any(moved) and len(moved) < 50:
            before = counter
            objects.array_write(OBJECT, 0, data, sync=True)
            moved.append(counter - before)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            counter += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert any(moved)


def test_threads_share_handles(fs: engine.FileSystem) -> None:
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(100):
                name = b"%d-%d" % (n, i)
                ino = fs.mknod(ROOT, name, 0o100644).ino
                fs.write(ino, 0, name * 10)
                assert fs.lookup(ROOT, name).ino == ino
                assert fs.read(ino, 0, 1000) == name * 10
                assert fs.getattr(ino).size == len(name) * 10
                if i % 2:
                    fs.unlink(ROOT, name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(fs.readdir(ROOT, page_bytes=MIB)) == 200


def test_close_waits_for_calls_in_flight(engine_pool: engine.Pool) -> None:
    engine_pool.container_create("c", posix=False)
    container = engine_pool.container("c")
    ends: list[str] = []
    started = threading.Barrier(3)

    def work() -> None:
        started.wait()
        try:
            while True:
                container.array_write(OBJECT, 0, bytes(MIB))
        except ValueError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    container.close()
    for thread in threads:
        thread.join()
    assert ends == ["container is closed"] * 2


def test_an_exception_in_progress_comes_out(objects: engine.Container) -> None:
    objects.array_write(OBJECT, 0, bytes(MIB))
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("stop")

    with contextlib.suppress(RuntimeError):
        objects.check(data=True, progress=progress)
        assert calls == 0, "the exception was lost"
    assert calls <= 1


WRONG_IN_FS: list[Callable[[engine.FileSystem], object]] = [
    lambda fs: fs.getattr(-1),  # type: ignore[arg-type]
    lambda fs: fs.getattr(2**64),  # type: ignore[arg-type]
    lambda fs: fs.getattr("1"),  # type: ignore[arg-type]
    lambda fs: fs.getattr(None),  # type: ignore[arg-type]
    lambda fs: fs.getattr(1.5),  # type: ignore[arg-type]
    lambda fs: fs.lookup(ROOT, "text"),  # type: ignore[arg-type]
    lambda fs: fs.lookup(ROOT, None),  # type: ignore[arg-type]
    lambda fs: fs.lookup(ROOT, b"x", -1),
    lambda fs: fs.setattr(ROOT, mode="x"),  # type: ignore[arg-type]
    lambda fs: fs.setattr(ROOT, size=-1),
    lambda fs: fs.setattr(ROOT, mtime_ns=2**63),
    lambda fs: fs.mknod(ROOT, b"x", 0o100644, uid=-1),
    lambda fs: fs.mknod(ROOT, b"x", 2**32),
    lambda fs: fs.symlink(ROOT, b"x", "text"),  # type: ignore[arg-type]
    lambda fs: fs.read(ROOT, -1, 10),
    lambda fs: fs.read(ROOT, 0, -1),
    lambda fs: fs.read(ROOT, 0, None),  # type: ignore[arg-type]
    lambda fs: fs.readinto(ROOT, 0, b"read-only"),
    lambda fs: fs.readinto(ROOT, 0, None),  # type: ignore[arg-type]
    lambda fs: fs.write(ROOT, 0, "text"),  # type: ignore[arg-type]
    lambda fs: fs.write(ROOT, 0, 5),  # type: ignore[arg-type]
    lambda fs: fs.write(ROOT, 0, memoryview(b"abcdef")[::2]),
    lambda fs: fs.pin(ROOT, 0, -1),
    lambda fs: fs.readdir(ROOT, -1),
    lambda fs: fs.readdir(ROOT, 0, 0, -5),
    lambda fs: fs.setxattr(ROOT, "user.a", b""),  # type: ignore[arg-type]
    lambda fs: fs.setxattr(ROOT, b"user.a", "text"),  # type: ignore[arg-type]
    lambda fs: fs.unref(ROOT, -1),
]


@pytest.mark.parametrize("number", range(len(WRONG_IN_FS)))
def test_wrong_arguments_of_file_systems(fs: engine.FileSystem, number: int) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError, OSError)):
        WRONG_IN_FS[number](fs)
    assert fs.readdir(ROOT) == []


WRONG_IN_OBJECTS: list[Callable[[engine.Container], object]] = [
    lambda c: c.kv_put((1, -1), b"k", b"v"),  # type: ignore[arg-type]
    lambda c: c.kv_put((1,), b"k", b"v"),  # type: ignore[arg-type]
    lambda c: c.kv_put(7, b"k", b"v"),  # type: ignore[arg-type]
    lambda c: c.kv_put(OBJECT, "k", b"v"),  # type: ignore[arg-type]
    lambda c: c.kv_put(OBJECT, b"k", "v"),  # type: ignore[arg-type]
    lambda c: c.kv_put(OBJECT, b"k", None),  # type: ignore[arg-type]
    lambda c: c.kv_get(OBJECT, None),  # type: ignore[arg-type]
    lambda c: list(c.scan(OBJECT, 5)),  # type: ignore[arg-type]
    lambda c: c.array_write(OBJECT, -1, b"x"),
    lambda c: c.array_read(OBJECT, 0, "text"),  # type: ignore[arg-type]
    lambda c: c.array_punch(OBJECT, 0, -1),
    lambda c: c.transaction(None),  # type: ignore[arg-type]
    lambda c: c.set_prop("a\0b", "v"),
    lambda c: c.set_prop("a", 5),  # type: ignore[arg-type]
    lambda c: c.snapshot_create("a\0b"),
    lambda c: c.snapshot_create(None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(WRONG_IN_OBJECTS)))
def test_wrong_arguments_of_containers(objects: engine.Container, number: int) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError, OSError)):
        WRONG_IN_OBJECTS[number](objects)
    assert list(objects.scan(OBJECT)) == []
    assert objects.snapshots() == []


WRONG_IN_POOLS: list[Callable[[Path], object]] = [
    lambda path: engine.pool_create(path, "x", -1),
    lambda path: engine.pool_create(path, "x", 2**64),
    lambda path: engine.pool_create(path, "x", "big"),  # type: ignore[arg-type]
    lambda path: engine.pool_create(path, "x\0y", 64 * MIB),
    lambda path: engine.pool_create(str(path) + "\0", "x", 64 * MIB),
    lambda path: engine.pool_create(None, "x", 64 * MIB),  # type: ignore[arg-type]
    lambda path: engine.pool_create("", "x", 64 * MIB),
    lambda path: engine.pool_create(path, None, 64 * MIB),  # type: ignore[arg-type]
    lambda path: engine.pool_create(path, "x", 0),
    lambda path: engine.Pool.open(5),  # type: ignore[arg-type]
    lambda path: engine.Pool.open(path, arena=-1),
    lambda path: engine.Pool.open(path, commit_interval_ms=2**32),
    lambda path: engine.pool_peek(""),
]


@pytest.mark.parametrize("number", range(len(WRONG_IN_POOLS)))
def test_wrong_arguments_of_pools(tmp_path: Path, number: int) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, OSError)):
        WRONG_IN_POOLS[number](tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_log_lines_become_records(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"2 extent 7: checksum\n3 caf\xff\nnonsense\n")
    os.close(writer)
    with caplog.at_level(logging.DEBUG, "dfusepy.engine"):
        engine_base._read_log(reader)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "extent 7: checksum"),
        (logging.ERROR, "caf\ufffd"),
        (logging.ERROR, "nonsense"),
    ]
