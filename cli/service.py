# SPDX-License-Identifier: Apache-2.0
"""dfusepy service: start, stop and status of the process that serves a pool, and systemd units."""

from __future__ import annotations

import errno
import importlib.resources
import string
import sys
from pathlib import Path
from typing import Any

import click

from dfusepy import mounts, pools, service_main
from dfusepy import service as services

from .common import (
    CONTEXT,
    CliError,
    WrongUsage,
    emit,
    fields,
    format_size,
    format_time,
    json_option,
    size,
)
from .mount import _checked
from .names import busy, find_pool, pool_argument
from .words import seconds


@click.group(context_settings=CONTEXT)
def service() -> None:
    """The processes that serve pools: start, stop, status.

    A pool that a mount, a command or a program needs is served by a process of its own, which
    starts by itself and ends when nobody has used it for a minute. These commands are for those who
    want to say when.
    """


def _failed(pool: pools.Pool, doing: str, err: OSError) -> CliError:
    if err.errno == errno.EBUSY and not isinstance(err, services.ServiceError):
        return busy(pool, doing)
    return CliError(doing, err.strerror or str(err))


# -- start ---------------------------------------------------------------------------------------


@service.command(context_settings=CONTEXT)
@pool_argument
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process, log to stderr.")
@click.option("--arena", type=size, default="0", help="Bound of the engine's cache, like 1G.")
@click.option("--dirty", type=size, default="0", help="Bound of data not yet written.")
@click.option(
    "--idle",
    type=_checked(seconds),
    metavar="SECONDS",
    help="End when nobody has used it for so long; 0: stay [60].",
)
def start(pool: str, foreground: bool, arena: int, dirty: int, idle: float | None) -> None:
    """Start the service of a pool.

    \b
    Examples:
      dfusepy service start demo --idle 0
      dfusepy service start demo --arena 4G --foreground
    """
    doing = f"starting the service of '{pool}'"
    found = find_pool(pool, doing)
    if arena and dirty > arena:
        raise WrongUsage(doing, "the bound of unwritten data (dirty) exceeds the cache (arena)")
    try:
        idle_s = services.default_idle_s() if idle is None else idle
    except services.ServiceError as err:
        raise WrongUsage(doing, err.strerror or "") from None
    try:
        if services.find(found.path) is not None:
            click.echo(f"The service of {pool} runs already.")
        elif foreground:
            path = services.socket_path(found.path)
            service_main.run(
                service_main.ServiceOptions(
                    found.path, path, arena_bytes=arena, dirty_bytes=dirty, idle_s=idle_s
                )
            )
        else:
            path = Path(services.ensure(found.path, arena=arena, dirty=dirty, idle_s=idle_s))
            click.echo(f"Pool {pool} is served on {path}.")
    except OSError as err:
        raise _failed(found, doing, err) from None


# -- stop ----------------------------------------------------------------------------------------


@service.command(context_settings=CONTEXT)
@pool_argument
@click.option("--force", is_flag=True, help="Also while mounts use it: they are dead then.")
def stop(pool: str, force: bool) -> None:
    """Stop the service of a pool, after all data is on the device.

    \b
    Example:
      dfusepy service stop demo
    """
    doing = f"stopping the service of '{pool}'"
    found = find_pool(pool, doing)
    users = [record for record in mounts.mounts_of_pool(found.path) if record.session]
    if users and not force:
        where = ", ".join(f"{record.mountpoint} ({record.name})" for record in users)
        raise CliError(
            doing,
            f"it is mounted on {where}",
            f"`dfusepy umount {users[0].mountpoint}` first, or --force.",
        )
    try:
        stopped = services.stop(found.path)
    except PermissionError:
        raise CliError(doing, "it belongs to another user", "Run it as its owner.") from None
    except OSError as err:
        raise _failed(found, doing, err) from None
    click.echo(
        f"The service of {pool} has ended, all data is on its device."
        if stopped
        else f"The service of {pool} is not running."
    )


# -- status --------------------------------------------------------------------------------------


def account(found: pools.Pool) -> dict[str, Any]:
    """What is known of a pool's service. Raises OSError."""
    from dfusepy import engine

    path = services.find(found.path)
    record = services.running(found.path)
    if path is None:
        return {"pool": str(found.path), "running": False, "ending": record is not None}
    with engine.Pool.open(found.path, socket=path) as session:
        info, state = session.service().as_dict(), session.query().as_dict()
    info["sessions"] -= 1  # this one
    return {
        "pool": str(found.path),
        "running": True,
        "socket": str(path),
        "log": record.log if record else None,
        "idle_s": record.idle_s if record else None,
        **info,
        "mounted": [
            {"mountpoint": mount.mountpoint, "name": mount.name, "pid": mount.pid}
            for mount in mounts.mounts_of_pool(found.path)
            if mount.session
        ],
        **{
            name: state[name]
            for name in (
                *("arena_bound_bytes", "arena_huge_bytes", "arena_thp_bytes"),
                *("arena_plain_bytes", "backend", "direct", "registered", "damage"),
            )
        },
    }


def status_text(state: dict[str, Any]) -> str:
    if not state["running"]:
        return "It is ending." if state["ending"] else "It is not running."
    lost = state["restarts"]
    kinds = {
        "hugepages": state["arena_huge_bytes"],
        "transparent hugepages": state["arena_thp_bytes"],
        "ordinary pages": state["arena_plain_bytes"],
    }
    used = [f"{format_size(count)} of {kind}" for kind, count in kinds.items() if count]
    idle = state["idle_s"]
    rows = {
        "process": f"{state['supervisor_pid']}, worker {state['worker_pid']}",
        "since": format_time(state["started_ns"]),
        "workers lost": str(lost),
        "socket": state["socket"],
        "ends": "when told"
        if idle == 0
        else "when idle"
        if idle is None
        else f"when idle for {idle:g} s",
        "sessions": f"{state['sessions']}, {state['channels']} channels",
        "mounts": ", ".join(
            f"{mount['mountpoint']} ({mount['name']}, process {mount['pid']})"
            for mount in state["mounted"]
        )
        or "none",
        "requests": str(state["requests"]),
        "lent memory": f"{format_size(state['loan_bytes'])} in {state['loans']} loans",
        "kept for a restart": f"{format_size(state['keep_used_bytes'])} of "
        f"{format_size(state['keep_bytes'])}",
        "arena": f"{', '.join(used) or 'nothing yet'}; may grow to "
        f"{format_size(state['arena_bound_bytes'])}",
        "queue": state["backend"] + (", direct" if state["direct"] else ""),
        "bad clients": str(state["bad_clients"]),
        "log": state["log"] or "standard error",
    }
    if state["damage"]:
        rows["health"] = f"DAMAGED, read-only: {state['damage']}"
    return fields(rows)


@service.command(context_settings=CONTEXT)
@click.argument("pool", metavar="[POOL]", required=False)
@json_option
def status(pool: str | None, as_json: bool) -> None:
    """Show the service of a pool, or which pools are served.

    \b
    Examples:
      dfusepy service status demo
      dfusepy service status --json
    """
    if pool is None:
        found = [known for known in pools.listing() if known.path.is_dir()]
        states = {known.label: _quiet_account(known) for known in found}
        served = {label: state for label, state in states.items() if state["running"]}
        emit(served, as_json, _served_text)
        return
    doing = f"asking for the service of '{pool}'"
    known = find_pool(pool, doing)
    try:
        state = account(known)
    except OSError as err:
        raise _failed(known, doing, err) from None
    emit(state, as_json, status_text)


def _quiet_account(known: pools.Pool) -> dict[str, Any]:
    try:
        return account(known)
    except OSError as err:
        return {"running": False, "error": err.strerror}


def _served_text(served: dict[str, Any]) -> str:
    return "\n\n".join(f"{label}\n{status_text(state)}" for label, state in served.items()) or (
        "No pool is served."
    )


# -- units ---------------------------------------------------------------------------------------


@service.command(context_settings=CONTEXT)
@pool_argument
def units(pool: str) -> None:
    """Print systemd units for a pool: a socket that starts the service when it is needed.

    \b
    Example (as root; for a user, ~/.config/systemd/user and systemctl --user):
      dfusepy service units demo
    """
    doing = f"writing units for '{pool}'"
    found = find_pool(pool, doing)
    try:
        path = services.socket_path(found.path)
    except OSError as err:
        raise _failed(found, doing, err) from None
    label = pool if not pools.is_path(pool) else found.path.name
    values = {
        "label": label,
        "pool": str(found.path),
        "socket": str(path),
        "folder": str(path.parent),
        "python": sys.executable,
    }
    for name in ("dfusepy@.socket", "dfusepy@.service"):
        template = importlib.resources.files("dfusepy").joinpath("systemd", name).read_text()
        click.echo(f"# {name.replace('@', f'@{label}')}")
        # A % begins a specifier there.
        doubled = {key: value.replace("%", "%%") for key, value in values.items()}
        click.echo(string.Template(template).substitute(doubled))
