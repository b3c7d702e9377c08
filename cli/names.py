# SPDX-License-Identifier: Apache-2.0
"""From the names POOL and POOL/CONTAINER to open handles, and from errors to words."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dfusepy import mounts, pools, service

from .common import CliError, WrongUsage

# What completion needs of the cache: it lives for a moment.
ARENA_BYTES = 64 << 20

# errno of the engine -> what to do about it. The engine's own text says why.
TODO = {
    errno.EPROTONOSUPPORT: "It was made by a newer dfusepy: install that one.",
    errno.EMEDIUMTYPE: "A pool's directory and its device belong together: give it back its own.",
    errno.ESTALE: "The index is an old copy. Bring back the directory that was last in use.",
    errno.EUCLEAN: "Nothing was changed. Restore it, or destroy it with --force.",
    errno.ENOSPC: "Make room, or ask for less.",
    errno.EACCES: "Run it as the owner of the pool.",
    errno.EPERM: "Run it as the owner of the pool.",
    errno.EROFS: "A damaged pool, like a snapshot, can only be read.",
}


def find_pool(name: str, doing: str) -> pools.Pool:
    """The pool of a label or path, or an error that says where it was looked for."""
    try:
        return pools.find(name)
    except pools.BadNameError as err:
        raise WrongUsage(doing, str(err)) from None
    except pools.NoPoolError as err:
        raise CliError(doing, str(err), "`dfusepy pool list` shows the pools.") from None


def split_name(name: str, doing: str) -> tuple[str, str]:
    """POOL/CONTAINER as (pool's name, container's label); anything else is wrong usage."""
    try:
        return pools.split(name)
    except pools.BadNameError as err:
        raise WrongUsage(doing, str(err)) from None


def busy(pool: pools.Pool, doing: str) -> CliError:
    """Who holds the pool."""
    held = mounts.holder_of_pool(pool.path)
    if held is not None:
        where = held.mountpoint
        why = f"the pool is held by the mount of {held.name} on {where} (process {held.pid})"
        todo = f"`dfusepy umount {where}` frees it; `dfusepy fs query {where}` looks into it."
        return CliError(doing, why, todo)
    why, todo = "the pool is in use by another process", "Try again when that one is done."
    return CliError(doing, why, todo)


def failure(pool: pools.Pool, doing: str, err: OSError) -> CliError:
    """An engine's error in words."""
    why = err.strerror or str(err)
    if err.errno == errno.EBUSY:  # the pool as a whole, or what is open in its service
        if not service.listening(pool.path):
            return busy(pool, doing)
        mounted = ", ".join(mounted_on(pool.path))
        return CliError(doing, why, f"Mounts of its pool: {mounted}." if mounted else "")
    if err.errno == errno.EINVAL:
        return WrongUsage(doing, why)
    return CliError(doing, why, TODO.get(err.errno or 0, ""))


@contextmanager
def engine_errors(pool: pools.Pool, doing: str) -> Iterator[None]:
    """Turns the engine's errors inside the block into a CliError."""
    try:
        yield
    except OSError as err:
        raise failure(pool, doing, err) from err


@contextmanager
def open_pool(name: str, doing: str) -> Iterator[Any]:
    """An engine.Pool, by a session with its service; all errors of the engine inside the block
    become CliErrors."""
    found = find_pool(name, doing)
    with engine_errors(found, doing), service.open_session(found.path) as pool:
        if damage := pool.query().damage:
            click.echo(f"dfusepy: {name} is damaged and open read-only: {damage}", err=True)
        yield pool


@contextmanager
def open_container(name: str, doing: str, snapshot: str | None = None) -> Iterator[Any]:
    """An open engine.Container of POOL/CONTAINER."""
    pool_name, label = split_name(name, doing)
    with (
        open_pool(pool_name, doing) as pool,
        pool_container(pool, name, label, doing, snapshot) as cont,
    ):
        yield cont


@contextmanager
def pool_container(
    pool: Any, name: str, label: str, doing: str, snapshot: str | None = None
) -> Iterator[Any]:
    try:
        cont = pool.container(label, snapshot)
    except FileNotFoundError:
        what = f"no snapshot '{snapshot}' of {name}" if snapshot else f"no container {name}"
        pool_name = name.rpartition("/")[0]
        raise CliError(
            doing,
            f"there is {what}",
            f"`dfusepy container list {pool_name}` shows the containers.",
        ) from None
    with cont:
        yield cont


def complete_pool(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Labels of pools; a path is left to the shell."""
    if pools.is_path(incomplete):
        return [CompletionItem(incomplete, type="dir")]
    names = [pool.label for pool in pools.listing()]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def container_names(pool: pools.Pool) -> list[str]:
    """Labels of a pool's containers; where nobody may ask, those that are mounted."""
    from dfusepy import engine

    try:
        running = service.find(pool.path)
        with engine.Pool.open(
            pool.path, arena=ARENA_BYTES, read_only=True, socket=running
        ) as handle:
            return [info.label for info in handle.containers()]
    except OSError:
        return sorted({record.container for record in mounts.mounts_of_pool(pool.path)})


def complete_container(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """POOL/ first, then POOL/CONTAINER."""
    name, slash, _ = incomplete.rpartition("/")
    if not slash or name in (".", "..", ""):
        return [CompletionItem(f"{pool.label}/") for pool in pools.listing()]
    try:
        labels = container_names(pools.find(name))
    except (pools.NoPoolError, pools.BadNameError):
        return []
    full = [f"{name}/{label}" for label in labels]
    return [CompletionItem(item) for item in full if item.startswith(incomplete)]


def pool_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("pool", metavar="POOL", shell_complete=complete_pool)(command)


def container_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("container", metavar="POOL/CONTAINER", shell_complete=complete_container)(
        command
    )


def mounted_on(path: Path) -> list[str]:
    """The mount points that use the pool."""
    return [record.mountpoint for record in mounts.mounts_of_pool(path)]
