# SPDX-License-Identifier: Apache-2.0
"""Sessions in Python: connect, several processes, forks, pickles, views, a worker that dies."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dfusepy
from dfusepy import engine, service
from dfusepy.engine import ROOT, Inode

MIB = 1 << 20
FORKS = pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pool with the container `files`; its service ends with the test."""
    monkeypatch.setenv("DFUSEPY_HOME", str(tmp_path / "home"))
    path = tmp_path / "store"
    engine.pool_create(path, "store", 128 * MIB)
    service.ensure(path, arena=64 * MIB)
    with dfusepy.connect(path) as pool:
        pool.container_create("files")
    yield path
    service.stop(path)


@pytest.fixture
def session(store: Path) -> Iterator[engine.Pool]:
    with dfusepy.connect(store) as pool:
        yield pool


@pytest.fixture
def files(session: engine.Pool) -> Iterator[engine.FileSystem]:
    with session.container("files") as container, container.filesystem() as fs:
        yield fs


def make(fs: engine.FileSystem, name: bytes, data: bytes) -> Inode:
    ino = fs.mknod(ROOT, name, 0o100644, flags=engine.REF).ino
    fs.write(ino, 0, data)
    return ino


def in_child(work: Callable[[], bool]) -> None:
    """Runs `work` in a forked child; it must return True."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_connect_by_label_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service starts by itself; who asks second finds it."""
    monkeypatch.setenv("DFUSEPY_HOME", str(tmp_path))
    path = tmp_path / "pools" / "demo"
    path.parent.mkdir()
    engine.pool_create(path, "demo", 64 * MIB)
    try:
        with dfusepy.connect("demo") as one, dfusepy.connect(path) as two:
            assert one.query().uuid == two.query().uuid
            assert one.service().worker_pid == two.service().worker_pid != os.getpid()
            assert one.service().sessions == 2
            with pytest.raises(OSError) as caught:
                engine.Pool.open(path)
            assert caught.value.errno == errno.EBUSY
    finally:
        service.stop(path)
    with pytest.raises(LookupError):
        dfusepy.connect("nothing")
    with pytest.raises(OSError) as caught:
        engine.Pool.open(path, socket=tmp_path / "no.sock")
    assert caught.value.errno in (errno.ENOENT, errno.ECONNREFUSED)
    assert "no.sock" in str(caught.value)


def test_what_one_session_writes_another_reads(store: Path, files: engine.FileSystem) -> None:
    ino = make(files, b"shared", b"one")
    with (
        dfusepy.connect(store) as pool,
        pool.container("files") as container,
        container.filesystem() as other,
    ):
        assert other.lookup(ROOT, b"shared").ino == ino
        for n in range(20):
            files.write(ino, 0, b"%03d" % n)
            assert other.read(ino, 0, 10) == b"%03d" % n


def test_reads_are_views_of_the_engines_memory(
    session: engine.Pool, files: engine.FileSystem
) -> None:
    ino = make(files, b"data", b"a" * 65_536)
    view = files.read(ino, 0, 65_536)
    assert isinstance(view, memoryview)
    assert view.readonly
    assert session.service().loans == 1
    assert session.service().loan_bytes == 65_536
    files.write(ino, 0, b"b" * 65_536)
    assert bytes(view) == b"a" * 65_536
    part = view[10:20]
    with pytest.raises(OSError) as caught:
        files.close()
    assert caught.value.errno == errno.EBUSY
    del view
    assert bytes(part) == b"a" * 10
    assert session.service().loans == 1
    del part
    gc.collect()
    assert session.service().loans == 0
    files.unref(ino)


def test_numpy_takes_a_view_without_a_copy(session: engine.Pool, files: engine.FileSystem) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    ino = make(files, b"numbers", numpy.arange(16_384, dtype="<i4").tobytes())
    array = numpy.frombuffer(files.read(ino, 0, 65_536), dtype="<i4")
    assert array.sum() == 16_383 * 16_384 // 2
    assert not array.flags.writeable
    assert session.service().loans == 1
    with pytest.raises(ValueError):
        array[0] = 1
    del array
    gc.collect()
    assert session.service().loans == 0


def test_torch_takes_a_view_without_a_copy(session: engine.Pool, files: engine.FileSystem) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ino = make(files, b"tensor", bytes(65_536))
    tensor = torch.frombuffer(files.read(ino, 0, 65_536), dtype=torch.uint8)
    assert int(tensor.sum()) == 0
    assert session.service().loans == 1


def test_a_view_outlives_the_service(store: Path) -> None:
    pool = dfusepy.connect(store)
    container = pool.container("files")
    fs = container.filesystem()
    view = fs.read(make(fs, b"data", b"a" * 65_536), 0, 65_536)
    service.stop(store)
    with pytest.raises(OSError) as caught:
        fs.getattr(ROOT)
    assert caught.value.errno == errno.EOWNERDEAD
    assert bytes(view) == b"a" * 65_536
    del view
    pool.close()


@FORKS
def test_a_forked_child_connects_for_itself(store: Path, files: engine.FileSystem) -> None:
    ino = make(files, b"data", b"a" * 65_536)
    view = files.read(ino, 0, 65_536)

    def child() -> bool:
        ours = bytes(view) == b"a" * 65_536 and files.read(ino, 0, 1) == b"a"
        files.write(ino, 0, b"child")
        return ours

    in_child(child)
    assert files.read(ino, 0, 5) == b"child"
    assert bytes(view[:5]) == b"aaaaa"


@FORKS
def test_what_cannot_be_inherited_says_so(session: engine.Pool) -> None:
    with session.container("files") as container:
        closed = session.container("files")
        closed.close()
        tx = container.transaction(engine.ObjectId(1, 1))

        def child() -> bool:
            said = []
            for call, text in ((tx.guard_exists, "parent process"), (closed.query, "is closed")):
                try:
                    call()
                except ValueError as error:
                    said.append(text in str(error))
            return said == [True, True]

        in_child(child)
        tx.close()


def test_a_mounts_session_is_not_inherited(store: Path) -> None:
    socket = service.ensure(store)
    with (
        engine.Pool.open(store, socket=socket, mount=True) as pool,
        pool.container("files") as container,
        container.filesystem() as fs,
    ):
        generation = fs.mount()
        assert generation != 0
        with pytest.raises(TypeError):
            pickle.dumps(pool)
        threading.Timer(0.1, fs.inval_stop).start()
        with pytest.raises(OSError) as caught:
            fs.inval_next()
        assert caught.value.errno == errno.ESHUTDOWN


@pytest.mark.parametrize("method", ["spawn", "fork"])
@FORKS
def test_workers_of_a_loader(method: str, files: engine.FileSystem) -> None:
    """As torch's DataLoader hands a dataset to its workers: by pickle or by fork."""
    inodes = [make(files, b"item%d" % n, b"%04d" % n) for n in range(40)]
    with multiprocessing.get_context(method).Pool(2) as workers:
        got = workers.starmap(
            engine.FileSystem.read, [(files, ino, 0, 4) for ino in inodes], chunksize=1
        )
    assert got == [b"%04d" % n for n in range(40)]


def test_threads_share_a_session(files: engine.FileSystem) -> None:
    failures: list[str] = []

    def work(n: int) -> None:
        ino = make(files, b"thread%d" % n, b"")
        for i in range(200):
            files.write(ino, i * 8, b"%04d%04d" % (n, i))
            if files.read(ino, i * 8, 8) != b"%04d%04d" % (n, i):
                failures.append(f"{n} {i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_killed_worker_is_a_delay(session: engine.Pool, files: engine.FileSystem) -> None:
    ino = make(files, b"kept", b"")
    view = files.read(make(files, b"lent", b"a" * 65_536), 0, 65_536)
    for n in range(3):
        files.write(ino, 0, b"%d" % n, engine.APPEND)
        os.kill(session.service().worker_pid, signal.SIGKILL)
        files.write(ino, 0, b"+", engine.APPEND)
        assert bytes(view[-3:]) == b"aaa"
    assert files.read(ino, 0, 100) == b"0+1+2+"
    assert session.service().restarts == 3


def test_a_dead_client_leaves_nothing_behind(store: Path, session: engine.Pool) -> None:
    with session.container("files") as container, container.filesystem() as fs:
        make(fs, b"data", b"a" * 65_536)
    before = session.service()
    child = os.fork()
    if child == 0:
        other = dfusepy.connect(store).container("files").filesystem()
        view = other.read(other.lookup(ROOT, b"data").ino, 0, 65_536)
        os.kill(os.getpid() if len(view) else 0, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while session.service().sessions > before.sessions and time.monotonic() < deadline:
        time.sleep(0.01)
    after = session.service()
    assert (after.sessions, after.loans) == (before.sessions, 0)


def test_bounds_of_a_transaction(session: engine.Pool) -> None:
    session.container_create("objects", posix=False)
    oid = engine.ObjectId(1, 1)
    with session.container("objects") as objects:
        tx = objects.transaction(oid)
        for n in range(4):
            tx.write(oid, n * MIB, bytes(MIB))
        with pytest.raises(OSError) as caught:
            tx.write(oid, 4 * MIB, bytes(MIB))
        assert caught.value.errno == errno.E2BIG
        tx.close()
