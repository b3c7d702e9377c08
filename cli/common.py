# SPDX-License-Identifier: Apache-2.0
"""What the commands share: options, sizes, text or JSON output, errors that say what to do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO, Any

import click

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?B)?\s*", re.IGNORECASE | re.ASCII)


class CliError(click.ClickException):
    """What was being done, to what, why it failed and what to do. Exit status 1."""

    def __init__(self, doing: str, why: str, todo: str = "") -> None:
        super().__init__(f"{doing}: {why}")
        self.todo = todo

    def show(self, file: IO[Any] | None = None) -> None:
        out = file or sys.stderr
        click.echo(f"dfusepy: {self.message}", file=out)
        if self.todo:
            click.echo(f"  {self.todo}", file=out)


class WrongUsage(CliError):
    """An argument that makes no sense. Exit status 2."""

    exit_code = 2


def parse_size(text: str) -> int:
    """Bytes of "2G", "512MiB" or "1.5TB": K to P count in powers of 1024, or of 1000 before a bare
    B ("2GB"). Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a size; write it like 2G, 512MiB or 1000000")
    number, unit, suffix = match[1], match[2].upper(), (match[3] or "").upper()
    if suffix == "IB" and not unit:
        raise ValueError(f"'{text}' is not a size; write it like 2G, 512MiB or 1000000")
    scale = _UNITS[unit]
    if unit and suffix == "B":
        scale = 1000 ** "KMGTP".index(unit) * 1000
    result = int(number) * scale if number.isdigit() else int(float(number) * scale)
    if result >= 1 << 63:
        raise ValueError(f"'{text}' is larger than any device")
    return result


def format_size(count: int) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def size(text: str) -> int:
    """The type of options that take a size; a wrong one is wrong usage (exit status 2)."""
    try:
        return parse_size(text)
    except ValueError as err:
        raise click.BadParameter(str(err)) from None


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def emit(data: Any, as_json: bool, render: Callable[[Any], str]) -> None:
    """Prints one value: as JSON, or as the text that `render` makes of the same data."""
    click.echo(json.dumps(data, indent=2) if as_json else render(data))


def format_time(time_ns: int) -> str:
    """Local time of nanoseconds since the epoch."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def table(rows: Iterable[Sequence[str]], head: Sequence[str]) -> str:
    """Left-aligned columns with a head."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def fields(pairs: Mapping[str, str]) -> str:
    """One "name  value" a line."""
    width = max(map(len, pairs), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs.items())


def confirm(what: str, force: bool, doing: str) -> None:
    """Asks on a terminal before data is destroyed; elsewhere --force is needed."""
    if force:
        return
    if not sys.stdin.isatty():
        raise CliError(doing, f"{what}, and nobody is there to ask", "Say --force if you mean it.")
    click.confirm(f"{what}. Destroy it?", abort=True)
