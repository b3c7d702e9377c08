# SPDX-License-Identifier: Apache-2.0
"""dfusepy umount: unmounts, and waits until the mount's process has flushed and ended."""

from __future__ import annotations

import errno
import os
import select

import click
from click.shell_completion import CompletionItem

from dfusepy import mounts

from .common import CONTEXT, CliError

TELL_MS = 5_000  # a flush that takes longer says so


def complete_mountpoint(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Mount points of live mounts."""
    found = [record.mountpoint for record in mounts.live_mounts()]
    return [CompletionItem(path) for path in found if path.startswith(incomplete)]


@click.command(context_settings=CONTEXT)
@click.argument("mountpoint", type=click.Path(), shell_complete=complete_mountpoint)
@click.option("--lazy", is_flag=True, help="Detach it now, also where programs still use it.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount, and wait until all data is on the device and the pool is free.

    A mount whose process has died is cleaned away. With --lazy, what is still in use keeps working
    and is flushed when its last user lets go.

    \b
    Examples:
      dfusepy umount ~/data
      dfusepy umount /mnt --lazy
    """
    doing = f"unmounting {mountpoint}"
    where = mounts.canonical(os.path.expanduser(mountpoint))
    mounted, record = mounts.kernel_mount_at(where), mounts.mount_at(where)
    if mounted is None and record is None:
        raise CliError(doing, "nothing is mounted there", "`findmnt -t fuse.dfusepy` lists mounts.")
    if mounted is not None and not mounted.ours:
        what = f"{mounted.source} ({mounted.fstype}) is mounted there, not a container"
        raise CliError(doing, what, "Use umount(8) for it.")
    dead = record is None and mounts.is_dead(where)
    if mounted is not None:
        _detach(where, lazy or dead, doing)  # nothing of a dead mount can be lost or busy
    if record is None:
        end = "The dead mount is gone" if dead else "Unmounted; its process is not known here"
        click.echo(f"{where}: {end}.")
    elif lazy and not _ended(record.pid, 1_000):
        click.echo(f"{where} is detached; process {record.pid} ends when nobody uses it any more.")
    else:
        _await_flush(record, doing)
        click.echo(f"{record.name} is unmounted from {where}, all data is on its device.")


def _detach(where: str, lazy: bool, doing: str) -> None:
    try:
        mounts.kernel_unmount(where, lazy)
    except OSError as err:
        if err.errno != errno.EBUSY:
            raise CliError(doing, err.strerror or str(err), "Only its owner or root may.") from None
        users = mounts.users_of(where)
        by = f" by {', '.join(users[:8])}" if users else ""
        todo = "End these programs, or use --lazy." if users else "Try as root, or use --lazy."
        raise CliError(doing, f"it is in use{by}", todo) from None


def _ended(pid: int, timeout_ms: int) -> bool:
    """Waits for the end of a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_ms))
    finally:
        os.close(fd)


def _await_flush(record: mounts.MountRecord, doing: str) -> None:
    """Waits as long as it takes: leaving early would tell a lie."""
    while not _ended(record.pid, TELL_MS):
        click.echo(f"Process {record.pid} is still flushing ...", err=True)
    if failure := mounts.take_failure(record.pid):
        raise CliError(doing, failure, f"Data may be lost. The log says more: {record.log}")
