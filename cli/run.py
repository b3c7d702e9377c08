# SPDX-License-Identifier: Apache-2.0
"""dfusepy run: runs a program whose reads and writes on mounts bypass the kernel."""

from __future__ import annotations

import os
import signal
import sys

import click

from dfusepy import interception

from .common import CONTEXT, CliError


def _new_report(path: str) -> str:
    """Makes the report empty; returns its absolute path, since programs change their folder."""
    absolute = os.path.abspath(path)
    try:
        with open(absolute, "w"):
            pass
    except OSError as err:
        raise CliError(f"writing the report {path}", err.strerror or str(err)) from None
    return absolute


@click.command(
    context_settings={**CONTEXT, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False),
    help="Write here what was bypassed and what was not, a line of JSON for each program.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(report: str | None, command: tuple[str, ...]) -> None:
    """Run a program with the interception library.

    Its reads and writes on mounts of dfusepy go through shared memory to the service, and those of
    the programs that it starts; everything else is as without it. `dfusepy il explain` tells what
    was not bypassed and why.

    The exit status is the program's; 127 where there is no such program, 126 where it cannot run.

    \b
    Examples:
      dfusepy run -- python train.py
      dfusepy run --report /tmp/report -- make -j8
      dfusepy il explain /tmp/report
    """
    doing = f"running {command[0]}"
    library = interception.library_path()
    if library is None:
        raise CliError(doing, f"{interception.LIBRARY} is not in this installation", "Reinstall.")
    if ":" in library or " " in library:
        raise CliError(
            doing,
            f"the dynamic loader cannot preload {library}",
            "Install into a folder without blanks and colons in its path.",
        )
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # Python ignores them, and programs would, too
    env = interception.environment(library, None if report is None else _new_report(report))
    try:
        os.execvpe(command[0], command, env)
    except OSError as err:
        click.echo(f"dfusepy: {doing}: {err.strerror}", err=True)
        sys.exit(127 if isinstance(err, FileNotFoundError) else 126)
