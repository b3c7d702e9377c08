# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: key-value objects, arrays and transactions, beside dict and bytearray."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfusepy import engine

OBJECT = engine.ObjectId(1, 2)
OTHER = engine.ObjectId(1, 3)
SPAN = 40_000

fresh_objects = (engine.ObjectId(99, n) for n in itertools.count())

keys = st.tuples(st.binary(min_size=1, max_size=6), st.binary(max_size=4))
kv_steps = st.one_of(
    st.tuples(st.just("put"), keys, st.binary(max_size=300)),
    st.tuples(st.just("delete"), keys, st.none()),
    st.tuples(st.just("punch"), keys, st.none()),
)
array_steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, SPAN), st.binary(min_size=1, max_size=9000)),
    st.tuples(st.just("punch"), st.integers(0, SPAN), st.integers(1, 9000)),
)
on_one_pool = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@on_one_pool
@given(steps=st.lists(kv_steps, max_size=30), start=keys)
def test_keys_are_an_ordered_dict(
    objects: engine.Container,
    steps: list[tuple[str, tuple[bytes, bytes], bytes | None]],
    start: tuple[bytes, bytes],
) -> None:
    oid = next(fresh_objects)
    model: dict[tuple[bytes, bytes], bytes] = {}
    for step, (dkey, akey), value in steps:
        if value is not None:
            objects.kv_put(oid, dkey, value, akey)
            model[dkey, akey] = value
        elif step == "delete":
            objects.kv_delete(oid, dkey, akey)
            model.pop((dkey, akey), None)
        else:
            with objects.transaction(oid) as tx:
                tx.punch_dkey(oid, dkey)
            model = {key: v for key, v in model.items() if key[0] != dkey}
    assert {(d, a): v for d, a, v in objects.scan(oid)} == model
    listed = [(d, a) for d, a, _ in objects.scan(oid)]
    assert listed == sorted(model)
    assert [(d, a) for d, a, _ in objects.scan(oid, *start)] == [k for k in listed if k >= start]
    for (dkey, akey), value in model.items():
        assert objects.kv_get(oid, dkey, akey) == value


@on_one_pool
@given(steps=st.lists(array_steps, max_size=12))
def test_an_array_is_a_bytearray(
    objects: engine.Container, steps: list[tuple[str, int, bytes | int]]
) -> None:
    oid = next(fresh_objects)
    model = bytearray(SPAN + 9000)
    for _, off, what in steps:
        if isinstance(what, bytes):
            assert objects.array_write(oid, off, what) == len(what)
            model[off : off + len(what)] = what
        else:
            objects.array_punch(oid, off, what)
            model[off : off + what] = bytes(what)
    got = bytearray(b"\xee" * len(model))
    assert objects.array_read(oid, 0, got) == len(model)
    assert got == model
    part = memoryview(got)[1:101]
    part[:] = b"\xee" * 100
    objects.array_read(oid, 4001, part)
    assert part == model[4001:4101]


def test_scan_crosses_pages(objects: engine.Container) -> None:
    value = bytes(40_000)
    for n in range(20):
        objects.kv_put(OBJECT, b"%02d" % n, value)
    assert [record.dkey for record in objects.scan(OBJECT)] == [b"%02d" % n for n in range(20)]
    assert next(objects.scan(OBJECT, b"07")).dkey == b"07"
    assert list(objects.scan(OTHER)) == []


def test_a_scan_sees_what_stays(objects: engine.Container) -> None:
    for n in range(10):
        objects.kv_put(OBJECT, b"%d" % n, bytes(65_000))
    seen = []
    for record in objects.scan(OBJECT):
        seen.append(record.dkey)
        if int(record.dkey) % 2:
            objects.kv_delete(OBJECT, record.dkey)
    assert {b"0", b"2", b"4", b"6", b"8"} <= set(seen)
    assert len(seen) == len(set(seen))


def test_holes(objects: engine.Container) -> None:
    assert objects.array_next_data(OBJECT, 0) is None
    objects.array_write(OBJECT, 1 << 20, b"x")
    assert objects.array_next_data(OBJECT, 0) == 1 << 20
    assert objects.array_next_hole(OBJECT, 1 << 20) == (1 << 20) + 4096
    objects.array_punch(OBJECT, 1 << 20, 4096)
    assert objects.array_next_data(OBJECT, 0) is None


def test_buffers_of_every_kind(objects: engine.Container) -> None:
    for data in (b"abcd", bytearray(b"efgh"), memoryview(b"xijklx")[1:5]):
        objects.array_write(OBJECT, 10, data)
        into = bytearray(4)
        objects.array_read(OBJECT, 10, into)
        assert into == data
    with pytest.raises(BufferError):
        objects.array_read(OBJECT, 0, b"read-only")


# -- transactions


def guarded(objects: engine.Container, guard: Callable[[engine.Transaction], None]) -> bool:
    """Whether a transaction with this guard commits; it must leave nothing where it does not."""
    before = list(objects.scan(OBJECT))
    try:
        with objects.transaction(OBJECT) as tx:
            guard(tx)
            tx.put(OBJECT, b"mark", b"1")
            tx.put(OTHER, b"mark", b"1")
    except engine.GuardFailed:
        assert list(objects.scan(OBJECT)) == before
        assert list(objects.scan(OTHER)) == []
        return False
    with objects.transaction(OBJECT) as tx:
        tx.delete(OBJECT, b"mark")
        tx.punch_object(OTHER)
    return True


def test_guards(objects: engine.Container) -> None:
    assert not guarded(objects, lambda tx: tx.guard_exists())
    objects.kv_put(OBJECT, b"k", b"v", b"a")
    assert guarded(objects, lambda tx: tx.guard_exists())
    assert guarded(objects, lambda tx: tx.guard_absent(b"k"))
    assert not guarded(objects, lambda tx: tx.guard_absent(b"k", b"a"))
    assert guarded(objects, lambda tx: tx.guard_equal(b"k", b"v", b"a"))
    assert not guarded(objects, lambda tx: tx.guard_equal(b"k", b"w", b"a"))
    assert not guarded(objects, lambda tx: tx.guard_equal(b"k", b"v"))


def test_counters(objects: engine.Container) -> None:
    for delta, value in ((5, 9), (-2, 3)):
        with objects.transaction(OBJECT) as tx:
            tx.add(OBJECT, b"n", delta)
            tx.max(OBJECT, b"m", value)
    assert objects.kv_get(OBJECT, b"n") == (3).to_bytes(8, "little")
    assert objects.kv_get(OBJECT, b"m") == (9).to_bytes(8, "little")


def test_a_transaction_is_all_or_nothing(objects: engine.Container) -> None:
    def stop_in_the_middle() -> None:
        with objects.transaction(OBJECT) as tx:
            tx.put(OBJECT, b"k", b"v")
            tx.write(OBJECT, 0, bytes(4096))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop_in_the_middle()
    assert objects.kv_get(OBJECT, b"k") is None
    assert objects.array_next_data(OBJECT, 0) is None

    with objects.transaction(OBJECT) as tx:
        tx.put(OBJECT, b"k", b"v")
        tx.write(OBJECT, 8192, b"\1" * 4096)
        tx.put(OTHER, b"k", b"v")
        first = tx.commit(sync=True)
        with pytest.raises(ValueError, match="transaction is closed"):
            tx.put(OBJECT, b"late", b"v")
    assert objects.kv_get(OBJECT, b"k") == objects.kv_get(OTHER, b"k") == b"v"
    assert objects.array_next_data(OBJECT, 0) == 8192
    with objects.transaction(OBJECT) as tx:
        tx.punch_object(OBJECT)
        assert tx.commit() > first
    assert list(objects.scan(OBJECT)) == []
    assert objects.array_next_data(OBJECT, 0) is None


def test_limits(objects: engine.Container) -> None:
    def code(call: Callable[[], object]) -> int | None:
        with pytest.raises(OSError) as error:
            call()
        return error.value.errno

    assert code(lambda: objects.kv_put(OBJECT, bytes(600), b"")) == errno.ENAMETOOLONG
    assert code(lambda: objects.kv_get(OBJECT, bytes(70_000))) == errno.ENAMETOOLONG
    assert code(lambda: objects.array_write(OBJECT, 16 << 40, b"x")) == errno.EFBIG
    with objects.transaction(OBJECT) as tx:
        assert code(lambda: tx.write(OBJECT, 1, bytes(4096))) == errno.EINVAL
        assert code(lambda: tx.write(OBJECT, 0, bytes(100))) == errno.EINVAL

    def too_much() -> None:
        with objects.transaction(OBJECT) as tx:
            for n in range(70):
                tx.put(OBJECT, b"%d" % n, bytes(65_000))

    assert code(too_much) == errno.E2BIG
    assert list(objects.scan(OBJECT)) == []
