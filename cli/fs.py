# SPDX-License-Identifier: Apache-2.0
"""dfusepy fs: looks into a mounted file system, through the mount."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import click

from dfusepy import mounts

from .common import CONTEXT, CliError, emit, fields, format_size, json_option
from .umount import complete_mountpoint

QUERY_XATTR = "user.dfusepy.query"


@click.group(context_settings=CONTEXT)
def fs() -> None:
    """Look into a mounted file system."""


@fs.command(context_settings=CONTEXT)
@click.argument("mountpoint", type=click.Path(), shell_complete=complete_mountpoint)
@json_option
def query(mountpoint: str, as_json: bool) -> None:
    """Show the state of a mount: space, cache, unwritten data, health.

    MOUNTPOINT may be any path inside the mount.

    \b
    Examples:
      dfusepy fs query ~/data
      dfusepy fs query ~/data --json
    """
    emit(read(mountpoint), as_json, text)


def read(mountpoint: str) -> dict[str, Any]:
    """The mount's own account of itself. Raises CliError."""
    doing = f"querying {mountpoint}"
    try:
        answer: dict[str, Any] = json.loads(os.getxattr(mountpoint, QUERY_XATTR))
    except FileNotFoundError:
        raise CliError(doing, "it does not exist") from None
    except OSError as err:
        if err.errno == errno.ENOTCONN:
            raise CliError(
                doing, "its mount is dead", f"`dfusepy umount {mountpoint}` cleans it away."
            ) from None
        if err.errno in (errno.ENODATA, errno.ENOTSUP, errno.EPERM):
            known = ", ".join(record.mountpoint for record in mounts.live_mounts())
            todo = f"Mounts there are: {known}" if known else "There is no mount now."
            raise CliError(doing, "it is not on a mount of dfusepy", todo) from None
        raise CliError(doing, err.strerror or str(err)) from None
    return answer


def _share(part: int, whole: int) -> str:
    return f"{format_size(part)} of {format_size(whole)}"


def _arena(pool: dict[str, Any]) -> str:
    kinds = (
        ("hugepages", pool["arena_huge_bytes"]),
        ("transparent hugepages", pool["arena_thp_bytes"]),
        ("ordinary pages", pool["arena_plain_bytes"]),
    )
    used = [f"{format_size(count)} of {kind}" for kind, count in kinds if count]
    bound = format_size(pool["arena_bound_bytes"])
    return f"{', '.join(used) or 'nothing yet'}; may grow to {bound}"


def _device(pool: dict[str, Any]) -> str:
    traits = [
        pool["backend"],
        "bypasses the page cache" if pool["direct"] else "through the page cache",
        *(["memory registered"] if pool["registered"] else []),
    ]
    return f"{pool['device']} ({', '.join(traits)})"


def _health(pool: dict[str, Any]) -> str:
    if pool["damage"]:
        return f"DAMAGED, read-only: {pool['damage']}"
    counts = (
        ("checksum errors", pool["checksum_errors"]),
        ("device errors", pool["io_errors"]),
        ("failed write-backs", pool["writeback_errors"]),
    )
    found = [f"{count} {what}" for what, count in counts if count]
    return ", ".join(found) or "whole, no errors since it was mounted"


def _dirty(pool: dict[str, Any]) -> str:
    if not pool["dirty_bytes"]:
        return "none"
    size = _share(pool["dirty_bytes"], pool["dirty_bound_bytes"])
    return f"{size}, the oldest {pool['dirty_age_ms'] / 1000:.1f} s old"


def _hit_rate(pool: dict[str, Any]) -> str:
    asked = pool["hits"] + pool["misses"]
    return f"{100 * pool['hits'] / asked:.1f} % of {asked} look-ups" if asked else "no look-ups yet"


def text(answer: dict[str, Any]) -> str:
    """The same account in plain words."""
    mount, pool, files = answer["mount"], answer["pool"], answer["fs"]
    block = files["block_bytes"]
    rows = {
        "mount": f"{mount['name']} on {mount['mountpoint']}, process {mount['pid']}, "
        + ("read-only" if mount["read_only"] else "read-write"),
        "health": _health(pool),
        "space": f"{_share(files['blocks_free'] * block, files['blocks'] * block)} free",
        "unwritten data": _dirty(pool),
        "cached data": f"{format_size(pool['slots_bytes'])}; hits: {_hit_rate(pool)}",
        "cached inodes": f"{files['inodes_cached']} in {format_size(files['inode_bytes'])}",
        "arena": _arena(pool),
        "device": _device(pool),
        "journal": f"{_share(pool['journal_used_bytes'], pool['journal_bytes'])} in use",
        "index": format_size(pool["index_bytes"]),
        "unlinked but in use": str(files["orphans"]),
        "kernel's cache": f"pages: {mount['cache']}; attributes {mount['attr_timeout']:g} s, "
        f"names {mount['entry_timeout']:g} s, absent names {mount['negative_timeout']:g} s",
    }
    return fields(rows)
