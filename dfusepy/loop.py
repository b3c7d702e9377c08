# SPDX-License-Identifier: Apache-2.0
"""trio as pyfuse3 uses it, with a shorter way round for requests that come close together.

pyfuse3 passes a lock from task to task and registers its descriptor with epoll for each request; on
a busy mount that costs more than the request itself (of 62 us for a LOOKUP, 35). It takes `trio`
from its own namespace, so that another event loop can stand in (pyfuse3.asyncio does); what stands
in here is trio itself, except that

- an uncontended lock is taken and left without a turn of the loop;
- after a request the descriptor is polled for a moment, as long as that finds something, and then
  waited for by itself for NAP_MS, which costs half of what trio's sleep does; and the loop gets its
  turn after a number of requests in any case.

So an idle mount sleeps, and other tasks wait no longer than TURN requests. As in pyfuse3, the
descriptor has one reader at a time: the holder of the lock.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from types import SimpleNamespace, TracebackType
from typing import Any

import pyfuse3
import trio

TURN = 256  # requests between two turns of the loop
SPIN_NS = 40_000  # about what going to sleep and being woken costs
RETRY = 4  # naps without a spin after one that found nothing
NAP_MS = 1


class Lock:
    """A lock that its releaser may take again before a waiter runs. Waiters only stand by, for the
    case that the holder has something else to wait for."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: list[trio.lowlevel.Task] = []

    async def __aenter__(self) -> None:
        while self._held:
            task = trio.lowlevel.current_task()
            self._waiting.append(task)

            def abort(_: Any, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                self._waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        self._held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held = False
        if self._waiting:
            trio.lowlevel.reschedule(self._waiting.pop())


class Door:
    """Waits for requests on one descriptor. `pending` counts calls on worker threads: they need the
    loop and the interpreter, so nothing is polled meanwhile."""

    def __init__(self) -> None:
        self.pending = 0
        self._poll: select.poll | None = None
        self._turn = 0
        self._skip = 0

    async def wait_readable(self, fd: int) -> None:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        if self.pending == 0 and self._turn < TURN and self._ready(self._poll):
            self._turn += 1
            return
        self._turn = 0
        await trio.lowlevel.wait_readable(fd)

    def _ready(self, poll: select.poll) -> bool:
        if poll.poll(0):
            return True
        if self._skip:
            self._skip -= 1
        else:
            end = time.perf_counter_ns() + SPIN_NS
            while time.perf_counter_ns() < end:
                if poll.poll(0):
                    return True
            self._skip = RETRY
        return bool(poll.poll(NAP_MS))


class InHand:
    """Requests that wait on worker threads and whose answers name inodes which the requests did not
    (look-ups, creations, listings). All but `settle` is for trio's thread."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._waiting: set[int] = set()
        self._number = 0

    def listen(self) -> None:
        """The loop runs."""
        self._token = trio.lowlevel.current_trio_token()

    def begin(self) -> int:
        self._number += 1
        self._waiting.add(self._number)
        return self._number

    def end(self, number: int) -> None:
        """Its answer leaves before the loop's next turn."""
        self._waiting.discard(number)

    def settle(self) -> None:
        """For another thread: returns when all requests of the moment of the call are answered."""
        if self._token is None:
            return
        with contextlib.suppress(trio.RunFinishedError):
            seen = self._turn(self._token)
            while seen & self._turn(self._token):
                time.sleep(0.0005)

    def _turn(self, token: trio.lowlevel.TrioToken) -> frozenset[int]:
        """What waits at the loop's next turn; what ran until then without waiting is answered."""
        waiting: list[frozenset[int]] = []
        turned = threading.Event()

        def look() -> None:
            waiting.append(frozenset(self._waiting))
            turned.set()

        token.run_sync_soon(look)
        while not turned.wait(1):
            token.run_sync_soon(lambda: None)  # raises where the loop has ended meanwhile
        return waiting[0]


def install() -> Door:
    """Gives pyfuse3 this loop; call it before pyfuse3.init."""
    door = Door()
    lowlevel = SimpleNamespace(**vars(trio.lowlevel))
    lowlevel.wait_readable = door.wait_readable
    stand_in = SimpleNamespace(**vars(trio))
    stand_in.Lock = Lock
    stand_in.lowlevel = lowlevel
    pyfuse3.trio = stand_in  # type: ignore[attr-defined]
    return door
