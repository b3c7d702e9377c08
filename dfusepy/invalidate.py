# SPDX-License-Identifier: Apache-2.0
"""Makes the kernel forget what other processes change.

The engine names what a mount's kernel may hold and somebody else is about to change; whoever
changes it waits until the kernel has forgotten it. That is a job for threads of the operating
system that hold nothing and that no request waits for: the kernel's call may have to wait for a
page whose READ the mount still owes, or may have pages written back through the mount. (From a task
of the trio thread it hung beyond SIGKILL.) pyfuse3's calls are made without the interpreter lock.

A call that hangs all the same would hang programs with it, so a watchdog aborts the connection:
everybody then gets an error.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable

import pyfuse3

from dfusepy import mounts
from dfusepy.engine import INVAL_ENTRY, INVAL_PAGES, FileSystem, Inode, Invalidation
from dfusepy.loop import InHand

log = logging.getLogger("dfusepy.mount")

HANGS_S = 20.0  # an invalidation that takes longer does not come back
LOOK_S = 1.0


def _told(call: Callable[..., None], *args: object) -> bool:
    """Makes a call of pyfuse3; False: the kernel does not know the inode or the name."""
    try:
        call(*args)
    except OSError as err:
        if err.errno == errno.ENOENT:
            return False
        log.warning("invalidating %s: %s", args, err.strerror or err)
    return True


class Invalidator:
    """The threads of one mount; `start` after the kernel's mount, `stop` before its end."""

    def __init__(self, filesystem: FileSystem, mountpoint: str, in_hand: InHand) -> None:
        self._fs = filesystem
        self._in_hand = in_hand
        self._mountpoint = mountpoint
        self._own: queue.SimpleQueue[Inode | None] = queue.SimpleQueue()
        self._since: dict[str, float] = {}  # thread -> when its call began
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"dfusepy-{name}", daemon=True)
            for name, target in (
                ("invalidate", self._serve),
                ("forget", self._serve_own),
                ("watchdog", self._watch),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The kernel is asked nothing after this."""
        self._ended.set()
        self._fs.inval_stop()
        self._own.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(HANGS_S + 2 * LOOK_S)

    def forget_pages(self, ino: Inode) -> None:
        """The kernel's pages of a file are wrong; told to a thread, so it does not wait."""
        self._own.put(ino)

    def _forget(self, what: Invalidation) -> None:
        """Returns when the kernel has forgotten it.

        An inode that the kernel does not know may be in an answer that is on its way: once that has
        been given, the kernel is told again.
        """
        if what.what == INVAL_ENTRY:  # the kernel's lock of the directory orders it with look-ups
            _told(pyfuse3.invalidate_entry, what.ino, what.name)
        attributes = what.what != INVAL_PAGES
        if not _told(pyfuse3.invalidate_inode, what.ino, attributes):
            self._in_hand.settle()
            _told(pyfuse3.invalidate_inode, what.ino, attributes)

    def _run(self, name: str, call: Callable[..., object], *args: object) -> None:
        self._since[name] = time.monotonic()
        try:
            call(*args)
        finally:
            self._since.pop(name, None)

    def _serve(self) -> None:
        done = 0
        while True:
            try:
                what = self._fs.inval_next(done)
            except OSError as err:
                if not self._ended.is_set():
                    self._lose(err)
                return
            except ValueError:  # closed
                return
            self._run("invalidate", self._forget, what)
            done = what.id

    def _lose(self, err: OSError) -> None:
        """Without its session the mount would go on serving what the kernel remembers."""
        log.error("the session with the pool's service is lost (%s): the mount ends", err.strerror)
        try:
            mounts.abort(self._mountpoint)
        except OSError:  # for root alone: the connection ends with the process
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve_own(self) -> None:
        while (ino := self._own.get()) is not None:
            self._run("forget", _told, pyfuse3.invalidate_inode, ino)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            now = time.monotonic()
            if any(now - since > HANGS_S for since in tuple(self._since.values())):
                log.error("the kernel hangs in an invalidation: its connection is aborted")
                try:
                    mounts.abort(self._mountpoint)
                except OSError as err:
                    log.error("aborting the connection: %s", err.strerror)
                return
