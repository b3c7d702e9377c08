# SPDX-License-Identifier: Apache-2.0
"""How an operation of the mount is run: at once or on a worker thread; its errors as FUSE's."""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pyfuse3 import FUSEError

from dfusepy.engine import NOWAIT, WouldBlock

# Quick operations whose answers name an inode that the request did not.
_NAMING = frozenset(("lookup", "mknod", "mkdir", "symlink", "link", "create"))

log = logging.getLogger("dfusepy.mount")

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Waiting(Protocol):
    """What runs calls on worker threads; the second where the answer names an inode."""

    def _wait(self, call: Callable[..., R], *args: Any) -> Awaitable[R]: ...
    def _wait_naming(self, call: Callable[..., R], *args: Any) -> Awaitable[R]: ...


def _translated(err: Exception, method: Callable[..., Any], args: tuple[Any, ...]) -> FUSEError:
    """The one place where an OSError becomes a FUSEError. Any other exception is a defect: it is
    logged and costs that request an EIO, not everybody the mount."""
    if isinstance(err, FUSEError):
        return err
    if isinstance(err, OSError):
        return FUSEError(err.errno or errno.EIO)
    log.error("%s%r failed", method.__name__, args[:2], exc_info=err)
    return FUSEError(errno.EIO)


def operation(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(self, *args, **kwargs)
        except Exception as err:
            raise _translated(err, method, args) from None

    return wrapper


def quick(method: Callable[..., R]) -> Callable[..., Coroutine[Any, Any, R]]:
    """An operation from a function that calls the engine with the flags it is given first: NOWAIT,
    and then, where that would wait, 0 on a worker thread. So it begins again from its start; a call
    that would wait has changed nothing."""

    names = method.__name__ in _NAMING

    @functools.wraps(method)
    async def wrapper(self: Waiting, /, *args: Any) -> R:
        try:
            try:
                return method(self, NOWAIT, *args)
            except WouldBlock:
                wait = self._wait_naming if names else self._wait
                return await wait(method, self, 0, *args)
        except Exception as err:
            raise _translated(err, method, args) from None

    return wrapper


def needs_wait(now: int) -> None:
    """Sends a quick operation to a worker thread, if it is not there already."""
    if now:
        raise WouldBlock(errno.EINPROGRESS, "the call waits")
