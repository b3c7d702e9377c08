# SPDX-License-Identifier: Apache-2.0
"""dfusepy mount, and mount.dfusepy for fstab."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dfusepy import mounts, preflight
from dfusepy.preflight import CACHE_MODES, TIMEOUT_S, MountError, MountOptions

from . import words
from .common import CONTEXT, CliError, WrongUsage, size
from .names import container_argument, find_pool, split_name


def _checked(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter of words as the type of an option."""

    def convert_option(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as err:
            raise click.BadParameter(str(err)) from None

    return convert_option


def _timeout(name: str, what: str) -> Callable[[Any], Any]:
    return click.option(
        name,
        type=_checked(words.seconds),
        metavar="SECONDS",
        help=f"How long the kernel may remember {what} [{TIMEOUT_S:g}].",
    )


@click.command(context_settings=CONTEXT)
@container_argument
@click.argument("mountpoint", type=click.Path())
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option("--snapshot", metavar="NAME", help="Mount the container as it was then, read-only.")
@click.option(
    "--allow-other", is_flag=True, help="Let other users in (modes decide what they may)."
)
@click.option("--nonempty", is_flag=True, help="Mount over a directory that has contents.")
@_timeout("--attr-timeout", "attributes")
@_timeout("--entry-timeout", "names")
@_timeout("--negative-timeout", "that a name is absent")
@click.option(
    "--cache",
    type=click.Choice(CACHE_MODES),
    help="The kernel's pages of a file: keep them while its data is unchanged, drop them at every "
    "open (auto), or have none (direct) [keep].",
)
@click.option("--arena", "arena_bytes", type=size, help="Bound of the engine's cache.")
@click.option("--dirty", "dirty_bytes", type=size, help="Bound of data not yet written.")
@click.option("-o", "options", metavar="WORD[,WORD...]", help="Options as fstab writes them.")
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process, log to stderr.")
@click.option("--debug", is_flag=True, help="Log every request.")
@click.option("--log-file", type=click.Path(path_type=Path), help="Log here.")
@click.option(
    "--in-process",
    is_flag=True,
    help="Open the pool in the mount's process, for it alone, in place of a session.",
)
def mount(container: str, mountpoint: str, options: str | None, **given: Any) -> None:
    """Mount a container on a directory.

    It runs in the background; when the command returns, the mount is ready, or the error has been
    told. `dfusepy umount MOUNTPOINT` ends it, and so do SIGTERM, SIGINT and SIGHUP, whole.

    \b
    Examples:
      dfusepy mount demo/data ~/data
      dfusepy mount demo/data /mnt --snapshot monday
      dfusepy mount demo/data /srv/data -o allow_other,nosuid,attr_timeout=5
    In /etc/fstab:
      demo/data  /srv/data  dfusepy  allow_other,nofail  0 0
    """
    settings = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    start(container, mountpoint, _parse(options, f"mounting {container}") | settings)


def _parse(options: str | None, doing: str) -> words.Settings:
    try:
        return words.parse(options or "")
    except ValueError as err:
        raise WrongUsage(doing, str(err), "`dfusepy mount --help` lists the options.") from None


def build(container: str, mountpoint: str, settings: words.Settings) -> MountOptions:
    """The options of one mount, names resolved. Raises CliError."""
    doing = f"mounting {container} on {mountpoint}"
    pool_name, label = split_name(container, doing)
    pool = find_pool(pool_name, doing)
    where = mounts.canonical(os.path.expanduser(mountpoint))
    if log_file := settings.get("log_file"):
        settings["log_file"] = log_file.expanduser().absolute()
    options = MountOptions(pool.label, pool.path, label, where, **settings)
    if options.arena_bytes and options.dirty_bytes > options.arena_bytes:
        raise WrongUsage(doing, "the bound of unwritten data (dirty) exceeds the cache (arena)")
    return options


def start(container: str, mountpoint: str, settings: words.Settings) -> None:
    """Mounts; returns when it is mounted, or in the foreground when it is unmounted."""
    from dfusepy import background

    options = build(container, mountpoint, settings)
    try:
        preflight.check(options)
        if options.foreground:
            background.run_foreground(options, lambda warning: _report(options, warning))
        else:
            _report(options, background.run_background(options))
    except MountError as err:
        raise CliError(err.doing, err.why, err.todo) from None


def _report(options: MountOptions, warning: str) -> None:
    how = " (read-only)" if options.read_only or options.snapshot else ""
    click.echo(f"{options.name} is mounted on {options.mountpoint}{how}")
    if warning:
        click.echo(f"dfusepy: {warning}", err=True)


@click.command(context_settings=CONTEXT)
@click.argument("spec", metavar="POOL/CONTAINER")
@click.argument("mountpoint", type=click.Path())
@click.option("-o", "options", metavar="WORD[,WORD...]", help="Mount options.")
@click.option("-s", "sloppy", is_flag=True, help="Ignore options that are not known.")
@click.option("-f", "fake", is_flag=True, help="Check, but do not mount.")
@click.option("-n", "no_mtab", is_flag=True, help="Ignored: there is no /etc/mtab to write.")
@click.option("-v", "verbose", is_flag=True, help="Ignored: the result is always told.")
@click.option("-t", "fstype", metavar="TYPE", help="The file system's type, as mount(8) has it.")
@click.option("-N", "namespace", metavar="NS", help="Not supported.")
def mount_helper(
    spec: str, mountpoint: str, options: str | None, sloppy: bool, fake: bool, **ignored: Any
) -> None:
    """What mount(8) calls for file systems of the type dfusepy. See `dfusepy mount --help`."""
    doing = f"mounting {spec}"
    if ignored["namespace"]:
        raise WrongUsage(doing, "-N is not supported", "Enter the namespace with nsenter(1).")
    settings = _sloppy(options or "") if sloppy else _parse(options, doing)
    if fake:
        try:
            preflight.check(build(spec, mountpoint, settings))
        except MountError as err:
            raise CliError(err.doing, err.why, err.todo) from None
    else:
        start(spec, mountpoint, settings)


def _sloppy(options: str) -> words.Settings:
    settings: words.Settings = {}
    kernel: tuple[str, ...] = ()
    for word in options.split(","):
        try:
            found = words.parse(word)
        except ValueError:
            continue
        kernel += found.pop("kernel_words", ())
        settings |= found
    return settings | {"kernel_words": kernel}


def fstab_main() -> None:
    """Entry point of /sbin/mount.dfusepy."""
    sys.exit(mount_helper(prog_name="mount.dfusepy"))
