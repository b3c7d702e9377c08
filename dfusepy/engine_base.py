# SPDX-License-Identifier: Apache-2.0
"""What all engine handles share: errors, closing, forks and the engine's log.

This is the only module that imports the cffi module; nothing of cffi leaves the `engine*` modules.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

from dfusepy._engine import ffi, lib
from dfusepy.engine_types import WouldBlock

__all__ = ["Handle", "alloc", "check", "cstr", "fail", "ffi", "lib", "record", "start_log", "text"]

log = logging.getLogger("dfusepy.engine")
T = TypeVar("T")


# -- errors ------------------------------------------------------------------------------------


def fail(err: int) -> NoReturn:
    """Raises the OSError of a negative errno, with the engine's reason where it gave one."""
    if err == -errno.EINPROGRESS:
        raise WouldBlock(errno.EINPROGRESS, "the call would have to wait")
    reason = ffi.string(lib.dfe_errmsg()).decode("utf-8", "replace")
    raise OSError(-err, reason or os.strerror(-err))


def check(result: int) -> int:
    """A count or 0 passes, a negative errno raises."""
    if result < 0:
        fail(result)
    return result


# -- values across the boundary ----------------------------------------------------------------


_raw = ffi.new_allocator(should_clear_after_alloc=False)
_chars = ffi.typeof("char[]")


def alloc(size_bytes: int) -> Any:
    """A char[] of undefined contents: for what the engine fills."""
    return _raw(_chars, size_bytes)


def cstr(value: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """Text or a path as C takes it: no NUL inside."""
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise ValueError("embedded NUL byte")
    return raw


def text(chars: Any) -> str:
    """A char array of a struct, up to its NUL."""
    raw: bytes = ffi.string(chars)
    return raw.decode("utf-8", "surrogateescape")


def record(cls: type[T], struct: Any) -> T:
    """A dataclass filled from the fields of the same names in a C struct."""
    convert: dict[str, Callable[[Any], Any]] = {"str": text, "bool": bool, "int": int}
    fields: dict[str, Any] = cls.__dict__["__dataclass_fields__"]
    return cls(**{name: convert[f.type](getattr(struct, name)) for name, f in fields.items()})


# -- handles -----------------------------------------------------------------------------------

CLOSE_WAIT_S = 30.0


def _own_references() -> int:
    value = object()
    return sys.getrefcount(value)


_OWN_REFERENCES = _own_references()  # what getrefcount says of an object that one local holds


class Handle:
    """An engine handle: a context manager, closed with what was opened through it.

    `_h` holds the C handle and exists while the handle is open. A missing attribute costs a look-up
    only when it is missing, so that calls on open handles pay nothing for the check.

    In a forked child a handle is dead, but one of a session opens itself again, and what it was
    opened through, at the child's first call: `_reopen`.

    Any thread may use a handle. A call in flight holds a reference to the object in `_h`: `close`
    waits until its own is the last, so that no call ever meets freed memory.
    """

    _what: ClassVar[str]
    _h: Any

    def __init__(self, handle: Any, parent: Handle | None = None) -> None:
        self._parent = parent
        self._children: set[Handle] = set()  # strong: what is open stays closable
        self._forked = False
        self._h = handle
        if parent is not None:
            parent._children.add(self)
        _live.add(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "_h":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if not self._forked:
                raise ValueError(f"{self._what} is closed")
            handle = self._revive()
            if handle is None:
                raise ValueError(f"{self._what} was opened by the parent process: open it again")
            return handle

    @property
    def closed(self) -> bool:
        return "_h" not in self.__dict__

    def _revive(self) -> Any:
        """The handle of a forked child, opened where another thread has not done it; or None."""
        with _revive_lock:
            if "_h" not in self.__dict__ and (handle := self._reopen()) is not None:
                self._h, self._forked = handle, False
                _live.add(self)
            return self.__dict__.get("_h")

    def _reopen(self) -> Any:
        """Opens the same thing for this process; None where that cannot be."""
        return None

    def _release(self) -> Any:
        """The C handle, which this object gives up."""
        _live.discard(self)
        if self._parent is not None:
            self._parent._children.discard(self)
        return self.__dict__.pop("_h")

    def close(self) -> None:
        """Closes what was opened through it, then itself. Closing twice is harmless.

        Waits for the calls of other threads. Raises OSError EBUSY, and stays open, while pinned
        memory is in use or where a call does not end; any other error is reported after the handle
        has been closed."""
        for child in tuple(self._children):
            child.close()
        handle = self.__dict__.pop("_h", None)
        self._forked = False  # closed in the child, too
        if handle is None:
            return
        deadline = time.monotonic() + CLOSE_WAIT_S
        while sys.getrefcount(handle) > _OWN_REFERENCES:
            if time.monotonic() > deadline:
                self._h = handle
                del handle
                raise OSError(errno.EBUSY, f"a call of the {self._what} is still running")
            time.sleep(0.001)
        result = self._close(handle)
        if result == -errno.EBUSY:
            self._h = handle
            del handle  # the exception keeps this frame, and would count as a call that is running
            fail(result)
        if self._parent is not None:
            self._parent._children.discard(self)
        check(result)

    def _close(self, handle: Any) -> int:
        raise NotImplementedError

    def __del__(self) -> None:
        if "_h" in self.__dict__ and self._parent is None:
            warnings.warn(f"unclosed {self._what}", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __enter__(self) -> Self:
        self._h  # noqa: B018  a closed handle raises here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_live: weakref.WeakSet[Handle] = weakref.WeakSet()
_revive_lock = threading.RLock()  # a handle opens its parent first


def _close_all() -> None:
    """At exit, pools that are still open publish what is dirty, as files flush theirs."""
    for handle in tuple(_live):
        if handle._parent is None and not handle.closed:
            try:
                handle.close()
            except OSError as error:
                log.error("%s at exit: %s", handle._what, error)


def _forget_in_child() -> None:
    """A forked child has the parent's handles but not its threads: it must never use the device."""
    global _log_lock, _log_running, _revive_lock
    for handle in tuple(_live):
        handle._forked = handle.__dict__.pop("_h", None) is not None
    _live.clear()
    _revive_lock = threading.RLock()
    _log_running = False  # the reader thread is the parent's
    _log_lock = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)


# -- the engine's log --------------------------------------------------------------------------

_LEVELS = {"0": logging.DEBUG, "1": logging.INFO, "2": logging.WARNING, "3": logging.ERROR}
_log_running = False
_log_lock = threading.Lock()


def start_log() -> None:
    """Sends the engine's records to the logger "dfusepy.engine"; starts once a process.

    Engine threads write lines into a pipe and never enter Python, which may be shutting down or
    forking; a daemon thread reads them. Records that find the pipe full are counted and dropped.
    """
    global _log_running
    with _log_lock:
        if _log_running:
            return
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        threading.Thread(target=_read_log, args=(reader,), name="dfusepy-log", daemon=True).start()
        lib.dfusepy_log_to_fd(writer)
        _log_running = True


def _read_log(reader: int) -> None:
    with open(reader, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            number, _, message = line.rstrip("\n").partition(" ")
            level = _LEVELS.get(number)
            if level is None:  # not a record of ours: shown whole
                level, message = logging.ERROR, line.rstrip("\n")
            log.log(level, "%s", message)
            if dropped := lib.dfusepy_log_dropped():
                log.warning("%d records were dropped: the log is read too slowly", dropped)
