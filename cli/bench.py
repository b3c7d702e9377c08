# SPDX-License-Identifier: Apache-2.0
"""dfusepy bench: measures in a folder of its own, each figure beside its peer, and tidies up."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from . import bench_sessions as sessions
from .bench_base import Bench, Figure, environment
from .bench_figures import GROUPS as MOUNT_GROUPS
from .common import CONTEXT, CliError, emit, table
from .progress import spinner

DISK_BYTES = 1 << 30
TMPFS = Path("/dev/shm")
TMPFS_BYTES = 512 << 20

GROUPS = MOUNT_GROUPS | {
    "ring": sessions.ring,
    "calls": sessions.calls,
    "start": sessions.start,
    "death": sessions.death,
    "programs": sessions.programs,
}


def room(folder: Path, needed: int) -> None:
    """Refuses to start where the space would not do."""
    free = shutil.disk_usage(folder).free
    if free < 2 * needed:
        raise CliError(
            "cannot measure",
            f"{folder} has {free >> 20} MiB free; it takes {2 * needed >> 20}",
            "Name another folder with --folder.",
        )


def row(figure: Figure) -> tuple[str, ...]:
    ratio = figure.ratio
    return (
        "-" if ratio is None else f"{ratio:.2f}",
        figure.wanted_text,
        {True: "yes", False: "no", None: "-"}[figure.met],
        figure.what,
        f"{figure.value:.4g} {figure.unit}",
        "-" if figure.peer is None else f"{figure.peer:.4g} ({figure.peer_name})",
    )


def render(result: dict[str, Any]) -> str:
    figures = [Figure(**fields) for fields in result["figures"]]
    head = ("RATIO", "WANTED", "MET", "WHAT", "OURS", "PEER")
    lines = [table(map(row, figures), head)] if figures else []
    lines += [f"SKIPPED {reason}" for reason in result["skipped"]]
    lines.append(", ".join(f"{name} {value}" for name, value in result["environment"].items()))
    return "\n".join(lines)


@click.command(context_settings=CONTEXT)
@click.option("--quick", is_flag=True, help="Fewer rounds and files.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(GROUPS)), help="Measure only this; repeatable."
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default="/var/tmp",
    show_default=True,
    help="On the disk to measure.",
)
@click.option(
    "--engine-program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The built bench_engine; scripts/bench gives it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    quick: bool, only: tuple[str, ...], folder: Path, engine_program: Path | None, as_json: bool
) -> None:
    """Measure the mount, the engine and sessions, each figure beside its peer in the same run.

    It takes up to 1 GiB in --folder and 512 MiB of /dev/shm for a few minutes. A ratio above 1
    means that dfusepy is the faster one. Peers: bindfs over tmpfs, the disk's own file system, fio;
    of programs under interception tmpfs, our mount with direct I/O, memcpy.

    \b
    Examples:
      dfusepy bench --quick
      dfusepy bench --only metadata --only data --json
      scripts/bench                                     (with the engine alone)
    """
    room(folder, DISK_BYTES)
    room(TMPFS, TMPFS_BYTES)
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        raise CliError("cannot measure", "fusermount3 is missing", "Install the package fuse3.")
    load = os.getloadavg()[0]
    disk = Path(tempfile.mkdtemp(prefix="dfusepy-bench-", dir=folder))
    memory = Path(tempfile.mkdtemp(prefix="dfusepy-bench-", dir=TMPFS))
    try:
        measure = Bench(disk, memory, quick, engine_program)
        for name in only or GROUPS:
            with spinner(f"Measuring: {name}"):
                GROUPS[name](measure)
    finally:
        shutil.rmtree(disk, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
    result = {
        "environment": environment(load),
        "figures": [figure.as_dict() for figure in measure.figures],
        "skipped": measure.skipped,
    }
    emit(result, as_json, render)
