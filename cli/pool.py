# SPDX-License-Identifier: Apache-2.0
"""dfusepy pool: create, list, query, destroy."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click

from dfusepy import pools, service

from .common import (
    CONTEXT,
    CliError,
    WrongUsage,
    confirm,
    emit,
    fields,
    format_size,
    json_option,
    size,
    table,
)
from .names import (
    busy,
    engine_errors,
    find_pool,
    mounted_on,
    open_pool,
    pool_argument,
)
from .progress import spinner


@click.group(context_settings=CONTEXT)
def pool() -> None:
    """Create, list, query and destroy pools.

    A pool is a directory with an index, and a device: a file in that directory, or a device of its
    own. Pools are found by label under the data directory, or by path (starting with / . or ~).
    """


# -- create --------------------------------------------------------------------------------------


def device_path(device: str | None) -> Path | None:
    """The path of a device URI that has one."""
    if device is None:
        return None
    scheme, colon, rest = device.partition(":")
    if not colon or "/" in scheme:
        return Path(device)
    return Path(rest) if scheme == "file" else None


def refuse_foreign(path: Path, doing: str) -> None:
    """A device that holds something recognisable is not overwritten."""
    if not path.exists():
        return
    blkid = shutil.which("blkid") or "/sbin/blkid"
    if not os.access(blkid, os.X_OK):
        return
    found = subprocess.run(
        [blkid, "-p", "-o", "value", "-s", "TYPE", "-s", "PTTYPE", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout.split()
    if found:
        raise CliError(
            doing,
            f"{path} already holds something: {' '.join(found)}",
            f"Choose another device. If its contents may go: wipefs -a {path}",
        )


def left_over(path: Path) -> int:
    """Bytes that a killed creation of this pool holds; the engine gives them back first."""
    try:
        return (path.parent / f".{path.name}.making" / "data").stat().st_blocks * 512
    except OSError:
        return 0


def refuse_too_large(path: Path, wanted: int, doing: str) -> None:
    """Compared before anything is made: a disk that is filled to find out harms others."""
    parent = path
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free + left_over(path)
    if wanted > free:
        raise CliError(
            doing,
            f"{format_size(wanted)} do not fit: {parent} has {format_size(free)} free",
            "Ask for less with --size, or name another disk with --path.",
        )


def refuse_taken(path: Path, doing: str) -> None:
    """An existing directory is used only while it is empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CliError(
            doing, f"{path} exists and is not an empty directory", "Name another --path."
        )


def make(label: str, path: Path | None, wanted: int, device: str | None) -> pools.Pool:
    """Takes the label and creates the pool; gives the label back where that fails."""
    from dfusepy import engine

    doing = f"cannot create pool '{label}'"
    try:
        claimed = pools.claim(label, path)
    except pools.BadNameError as err:
        raise WrongUsage(doing, str(err)) from None
    except pools.LabelTakenError as err:
        todo = f"Choose another label, or see it with `dfusepy pool query {label}`."
        raise CliError(doing, str(err), todo) from None
    except OSError as err:
        where = pools.home()
        raise CliError(
            doing,
            f"{where} cannot be written: {err.strerror}",
            "Set DFUSEPY_HOME to a directory of yours.",
        ) from None
    try:
        claimed.path.parent.mkdir(parents=True, exist_ok=True)
        with engine_errors(claimed, doing), spinner(f"Creating pool {label}"):
            engine.pool_create(claimed.path, label, wanted, device)
    except OSError as err:
        pools.release(claimed.path)
        raise CliError(doing, f"{err.filename}: {err.strerror}") from None
    except BaseException:
        pools.release(claimed.path)
        raise
    return claimed


@pool.command(context_settings=CONTEXT)
@click.argument("label")
@click.option("--size", "wanted", type=size, help="Size of the device, like 2G or 512MiB.")
@click.option("--path", type=click.Path(path_type=Path), help="Directory of the pool.")
@click.option("--device", metavar="URI", help="Block device or file to hold the data.")
@json_option
def create(
    label: str, wanted: int | None, path: Path | None, device: str | None, as_json: bool
) -> None:
    """Create a pool.

    Its space is allocated at once. Without --path it lives under the data directory ($DFUSEPY_HOME,
    else /var/lib/dfusepy for root and ~/.local/share/dfusepy for others).

    \b
    Examples:
      dfusepy pool create demo --size 2G
      dfusepy pool create big --size 500G --path /srv/big
      dfusepy pool create fast --device /dev/nvme1n1
    """
    doing = f"cannot create pool '{label}'"
    if wanted is None and device is None:
        raise click.UsageError("say how large the pool is: --size 2G (or name a --device)")
    if wanted == 0:
        raise click.UsageError("a pool of no bytes makes no sense: --size 2G is a good start")
    if path is not None:
        refuse_taken(path.expanduser().absolute(), doing)
    on_device = device_path(device)
    if on_device is not None:
        refuse_foreign(on_device, doing)
    if device is None and wanted:
        where = path or pools.home() / "pools" / label
        refuse_too_large(where.expanduser().absolute(), wanted, doing)
    made = make(label, path, wanted or 0, device)
    emit(
        {"label": label, "path": str(made.path)},
        as_json,
        lambda _: f"Pool {label} is in {made.path}.\nNext: dfusepy container create {label}/data",
    )


# -- list and query -------------------------------------------------------------------------------


def describe(found: pools.Pool) -> dict[str, Any]:
    """One line of the list, without opening the pool."""
    from dfusepy import engine

    line: dict[str, Any] = {
        "label": found.label,
        "path": str(found.path),
        "uuid": "",
        "device": "",
        "mountpoints": mounted_on(found.path),
        "error": "",
    }
    try:
        record = engine.pool_peek(found.path)
    except OSError as err:
        line["error"] = "its directory is missing" if not found.path.is_dir() else err.strerror
    else:
        line["uuid"], line["device"] = record.uuid, record.device
    return line


def list_text(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "No pools. `dfusepy pool create demo --size 2G` makes one."
    return table(
        (
            (line["label"], line["error"] or ", ".join(line["mountpoints"]) or "-", line["path"])
            for line in lines
        ),
        ("POOL", "MOUNTED ON", "DIRECTORY"),
    )


@pool.command("list", context_settings=CONTEXT)
@json_option
def list_(as_json: bool) -> None:
    """List the pools that have a label.

    \b
    Example:
      dfusepy pool list --json
    """
    emit([describe(found) for found in pools.listing()], as_json, list_text)


def query_text(info: dict[str, Any]) -> str:
    sizes = {
        "size": "size_bytes",
        "for data": "data_bytes",
        "free": "free_bytes",
        "index": "index_bytes",
        "journal": "journal_bytes",
        "journal in use": "journal_used_bytes",
    }
    lines = {"label": info["label"], "directory": info["path"], "uuid": info["uuid"]}
    lines["device"] = f"{info['device']} ({info['backend']}{', direct' if info['direct'] else ''})"
    lines["format"] = str(info["format"])
    lines["state"] = f"damaged, read-only: {info['damage']}" if info["damage"] else "whole"
    lines["containers"] = str(info["containers"])
    lines |= {name: format_size(info[key]) for name, key in sizes.items()}
    return fields(lines)


@pool.command(context_settings=CONTEXT)
@pool_argument
@json_option
def query(pool: str, as_json: bool) -> None:
    """Show a pool's state, sizes and health.

    \b
    Examples:
      dfusepy pool query demo
      dfusepy pool query /srv/big --json
    """
    doing = f"cannot query pool '{pool}'"
    found = find_pool(pool, doing)
    with open_pool(pool, doing) as handle:
        info = {"path": str(found.path), **handle.query().as_dict()}
    emit(info, as_json, query_text)


# -- destroy --------------------------------------------------------------------------------------


def free(found: pools.Pool, doing: str) -> None:
    """Ends the pool's service where nobody uses it. Raises CliError where somebody does."""
    mounted = mounted_on(found.path)
    if mounted:
        where = ", ".join(mounted)
        raise CliError(doing, f"it is mounted on {where}", f"`dfusepy umount {mounted[0]}` first.")
    try:
        service.stop_idle(found.path)
    except service.ServiceError as err:
        if err.errno == errno.EBUSY:
            todo = f"`dfusepy service status {found.label}` says more; `service stop` ends it."
            raise CliError(doing, err.strerror or "", todo) from None
        raise CliError(doing, err.strerror or str(err)) from None
    except OSError:
        pass  # no pool, or a damaged one: what follows says so


def contents(found: pools.Pool, doing: str, force: bool) -> str:
    """What would be lost, in words; "" for a pool without containers."""
    from dfusepy import engine

    try:
        with engine.Pool.open(found.path, arena=64 << 20, read_only=True) as handle:
            labels = [info.label for info in handle.containers()]
    except OSError as err:
        if err.errno == errno.EBUSY:
            raise busy(found, doing) from None
        if err.errno == errno.ENOENT:
            raise CliError(doing, err.strerror or "there is no pool") from None
        if not force:
            raise CliError(
                doing, f"it cannot be opened: {err.strerror}", "--force destroys it all the same."
            ) from None
        return ""
    few = ", ".join(labels[:5]) + (" ..." if len(labels) > 5 else "")
    containers = "1 container" if len(labels) == 1 else f"{len(labels)} containers"
    return f"Pool '{found.label}' holds {containers}: {few}" if labels else ""


@pool.command(context_settings=CONTEXT)
@pool_argument
@click.option("--force", is_flag=True, help="Do not ask, and destroy what cannot be opened.")
def destroy(pool: str, force: bool) -> None:
    """Destroy a pool with all it holds. Asks first where it holds containers.

    \b
    Examples:
      dfusepy pool destroy demo
      dfusepy pool destroy demo --force
    """
    from dfusepy import engine

    doing = f"cannot destroy pool '{pool}'"
    found = find_pool(pool, doing)
    free(found, doing)
    what = contents(found, doing, force)
    if what:
        confirm(what, force, doing)
    with engine_errors(found, doing), spinner(f"Destroying pool {pool}"):
        engine.pool_destroy(found.path, force)
    pools.release(found.path)
    click.echo(f"Pool {pool} is gone.")
