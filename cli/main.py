# SPDX-License-Identifier: Apache-2.0
"""The program `dfusepy`: finds a command and loads its file only when it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

import click

from .common import CONTEXT

# Command -> (file in this package, name in it, short help). The help is here as well as in the
# file, so that `dfusepy --help` loads nothing.
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "pool": ("pool", "pool", "Create, list, query and destroy pools."),
    "container": ("container", "container", "Containers in a pool: create, list, check, snapshot."),
    "mount": ("mount", "mount", "Mount a container on a directory."),
    "umount": ("umount", "umount", "Unmount, after all data is on the device."),
    "service": ("service", "service", "The processes that serve pools: start, stop, status."),
    "fs": ("fs", "fs", "Look into a mounted file system."),
    "run": ("run", "run", "Run a program whose reads and writes bypass the kernel."),
    "il": ("il", "il", "Explain what bypassed the kernel, and what did not."),
    "bench": ("bench", "bench", "Measure, each figure beside its peer."),
    "completion": ("completion", "completion", "Print the shell's completion script."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use: start-up costs one command's imports."""

    def __init__(
        self, *args: object, lazy: Mapping[str, tuple[str, str, str]], **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, name, _ = self._lazy[cmd_name]
        command = getattr(importlib.import_module(f".{module}", __package__), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in self._lazy.items()])


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"dfusepy {version('dfusepy')}")
        ctx.exit()


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A POSIX file system over an object engine.

    A pool is a directory (or a device) with an index; it holds containers; a container is what you
    mount. Names are POOL or POOL/CONTAINER everywhere; a pool is named by its label or by its path.

    \b
    Examples:
      dfusepy pool create demo --size 2G
      dfusepy container create demo/data
      dfusepy mount demo/data ~/data
      dfusepy umount ~/data

    Exit status: 0 done, 1 failed, 2 wrong usage.
    """


def main() -> None:
    """Entry point of the installed program."""
    sys.exit(cli(prog_name="dfusepy"))


if __name__ == "__main__":
    main()
