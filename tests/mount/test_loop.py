# SPDX-License-Identifier: Apache-2.0
"""The mount's way round trio's loop: one holder at a time, nobody forgotten, sleep when idle."""

from __future__ import annotations

import os
import time

import trio

from dfusepy.loop import TURN, Door, Lock


def test_one_holder_at_a_time_and_all_get_their_turn() -> None:
    lock, inside, done = Lock(), 0, []

    async def use(number: int) -> None:
        nonlocal inside
        for _ in range(20):
            async with lock:
                inside += 1
                assert inside == 1
                await trio.sleep(0)
                inside -= 1
            await trio.sleep(0)
        done.append(number)

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(use, number)

    trio.run(main)
    assert sorted(done) == list(range(20))


def test_a_waiter_that_is_cancelled_is_not_woken() -> None:
    async def main() -> None:
        lock = Lock()
        got = []

        async def wait(number: int) -> None:
            async with lock:
                got.append(number)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery, lock:
                with trio.move_on_after(0.01):
                    await wait(0)
                nursery.start_soon(wait, 1)
                await trio.sleep(0.01)
            assert got == [1]

    trio.run(main)


def test_a_ready_descriptor_lets_the_loop_turn() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    turns = 0

    async def main() -> None:
        door = Door()

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.sleep(0)
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for _ in range(10 * (TURN + 1)):
                await door.wait_readable(reader)
            nursery.cancel_scope.cancel()

    trio.run(main)
    os.close(reader)
    os.close(writer)
    assert turns >= 5  # of 10; how tasks share a turn is trio's to choose


def test_waiting_costs_nothing() -> None:
    reader, writer = os.pipe()

    async def main() -> None:
        with trio.move_on_after(1):
            await Door().wait_readable(reader)

    before = time.process_time()
    trio.run(main)
    assert time.process_time() - before < 0.1
    os.close(reader)
    os.close(writer)
