# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: pools, containers, properties and snapshots."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dfusepy import engine

SIZE = 64 << 20
OBJECT = engine.ObjectId(1, 2)


def open_pool(path: Path, **options: Any) -> engine.Pool:
    return engine.Pool.open(path, arena=64 << 20, hugepages=False, **options)


def test_life_of_a_pool(tmp_path: Path) -> None:
    path = tmp_path / "p"
    engine.pool_create(path, "demo", SIZE)
    record = engine.pool_peek(path)
    assert record.label == "demo"
    with open_pool(path) as pool:
        info = pool.query()
        assert (info.label, info.uuid) == (record.label, record.uuid)
        assert info.read_only is False
        assert info.damage == ""
        assert info.arena_bound_bytes == 64 << 20
        assert json.loads(json.dumps(info.as_dict()))["label"] == "demo"
        pool.sync()
        pool.checkpoint()
        pool.drop_caches()
    engine.pool_destroy(path)
    assert not path.exists()


def test_content_survives_a_reopen(tmp_path: Path) -> None:
    path = tmp_path / "p"
    engine.pool_create(path, "demo", SIZE)
    with open_pool(path) as pool:
        pool.container_create("c", posix=False)
        with pool.container("c") as container:
            container.kv_put(OBJECT, b"k", b"v")
            container.array_write(OBJECT, 3, b"abc")
            container.set_prop("colour", "blue")
    with open_pool(path, read_only=True) as pool, pool.container("c") as container:
        assert pool.query().read_only is True
        assert container.kv_get(OBJECT, b"k") == b"v"
        data = bytearray(7)
        assert container.array_read(OBJECT, 0, data) == 7
        assert data == b"\0\0\0abc\0"
        assert container.get_prop("colour") == "blue"
        with pytest.raises(OSError) as error:
            container.kv_put(OBJECT, b"k", b"w")
        assert error.value.errno == errno.EROFS


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda path: engine.pool_create(path, "demo", SIZE), errno.EEXIST),
        (lambda path: engine.pool_create(path / "x", "a/b", SIZE), errno.EINVAL),
        (lambda path: engine.pool_create(path / "x", "", SIZE), errno.EINVAL),
        (lambda path: engine.pool_create(path / "no" / "x", "ok", SIZE), errno.ENOENT),
        (lambda path: engine.pool_destroy(path / "x"), errno.ENOENT),
        (lambda path: engine.pool_peek(path / "x"), errno.ENOENT),
        (lambda path: open_pool(path / "x"), errno.ENOENT),
        (lambda path: open_pool(path, dirty=65 << 20), errno.EINVAL),
    ],
)
def test_pool_errors(tmp_path: Path, call: Callable[[Path], object], code: int) -> None:
    path = tmp_path / "p"
    engine.pool_create(path, "demo", SIZE)
    before = sorted(path.iterdir())
    with pytest.raises(OSError) as error:
        call(path)
    assert error.value.errno == code
    assert sorted(path.iterdir()) == before


def test_a_pool_is_open_once(engine_pool: engine.Pool, tmp_path: Path) -> None:
    for call in (open_pool, engine.pool_destroy):
        with pytest.raises(OSError) as error:
            call(tmp_path / "store")
        assert error.value.errno == errno.EBUSY
    assert engine.pool_peek(tmp_path / "store").label == "store"


def test_containers(engine_pool: engine.Pool) -> None:
    for label in ("b", "a"):
        engine_pool.container_create(label, posix=False)
    infos = engine_pool.containers()
    assert [info.label for info in infos] == ["a", "b"]
    assert infos[0].number != infos[1].number
    with engine_pool.container("a") as container:
        assert container.query() == infos[0]
        with pytest.raises(OSError) as error:
            engine_pool.container_destroy("a")
        assert error.value.errno == errno.EBUSY
        with pytest.raises(OSError) as error:
            container.filesystem()
        assert error.value.errno == errno.ENODATA
    engine_pool.container_destroy("a")
    assert [info.label for info in engine_pool.containers()] == ["b"]
    for call, code in (
        (lambda: engine_pool.container_create("b"), errno.EEXIST),
        (lambda: engine_pool.container_create(".hidden"), errno.EINVAL),
        (lambda: engine_pool.container_destroy("a"), errno.ENOENT),
        (lambda: engine_pool.container("a"), errno.ENOENT),
        (lambda: engine_pool.container("b", "none"), errno.ENOENT),
    ):
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == code


def test_many_containers_are_all_listed(engine_pool: engine.Pool) -> None:
    labels = [f"c{n:03}" for n in range(70)]
    for label in labels:
        engine_pool.container_create(label, posix=False)
    assert [info.label for info in engine_pool.containers()] == labels


def test_properties(objects: engine.Container) -> None:
    assert objects.get_prop("colour") is None
    objects.set_prop("colour", "blue")
    objects.set_prop("colour", "grün")
    assert objects.get_prop("colour") == "grün"


def test_snapshots(engine_pool: engine.Pool, objects: engine.Container) -> None:
    objects.kv_put(OBJECT, b"k", b"old")
    objects.array_write(OBJECT, 0, b"old")
    first = objects.snapshot_create("first")
    objects.kv_put(OBJECT, b"k", b"new")
    objects.array_write(OBJECT, 0, b"new")
    second = objects.snapshot_create("second")
    assert second > first
    assert [(s.name, s.epoch) for s in objects.snapshots()] == [
        ("first", first),
        ("second", second),
    ]
    assert objects.query().snapshots == 2
    for name, value in (("first", b"old"), ("second", b"new")):
        with engine_pool.container("objects", name) as then:
            data = bytearray(3)
            then.array_read(OBJECT, 0, data)
            assert (then.kv_get(OBJECT, b"k"), bytes(data)) == (value, value)
            with pytest.raises(OSError) as error:
                then.transaction(OBJECT)
            assert error.value.errno == errno.EROFS
    with pytest.raises(OSError) as error:
        objects.snapshot_create("first")
    assert error.value.errno == errno.EEXIST
    objects.snapshot_destroy("first")
    with pytest.raises(OSError) as error:
        objects.snapshot_destroy("first")
    assert error.value.errno == errno.ENOENT
    assert [s.name for s in objects.snapshots()] == ["second"]


def test_check_reports_progress_and_no_faults(objects: engine.Container) -> None:
    objects.array_write(OBJECT, 0, bytes(1 << 20))
    steps: list[tuple[int, int]] = []
    assert objects.check(data=True, progress=lambda done, total: steps.append((done, total))) == []
    assert all(0 <= done <= total for done, total in steps)


def test_version() -> None:
    assert engine.version().count(".") == 2


def test_damaged_data_is_refused_reported_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    needle = b"a needle in the hay "
    engine.pool_create(path, "demo", SIZE)
    with open_pool(path) as pool:
        pool.container_create("c")
        with pool.container("c") as container, container.filesystem() as fs:
            ino = fs.mknod(engine.ROOT, b"f", 0o100644, flags=engine.REF).ino
            fs.write(ino, 0, needle * 5000)
            fs.fsync(ino)

    image = bytearray((path / "data").read_bytes())
    assert needle in image
    (path / "data").write_bytes(image.replace(needle, needle.upper()))

    with open_pool(path) as pool, pool.container("c") as container:
        assert len(container.check()) == 0
        assert any("checksum" in fault for fault in container.check(data=True))
        with container.filesystem() as fs:
            ino = fs.lookup(engine.ROOT, b"f").ino
            for size in (100, 50_000):
                with pytest.raises(OSError) as error:
                    fs.read(ino, 0, size)
                assert error.value.errno == errno.EIO
        assert pool.query().checksum_errors > 0
    deadline = time.monotonic() + 10
    while not any("checksum" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < deadline, "the engine's record did not arrive"
        time.sleep(0.01)
    assert all(record.name == "dfusepy.engine" for record in caplog.records)
