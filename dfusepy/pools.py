# SPDX-License-Identifier: Apache-2.0
"""Where pools live: labels, paths and the names POOL and POOL/CONTAINER.

A data directory holds `pools/LABEL`: the pool itself, or a symbolic link to one that was created
with a path of its own. Making that entry is what takes a label; it is atomic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_HOME = Path("/var/lib/dfusepy")

# As DFE_LABEL_BYTES in engine/base/limits.h.
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")


class BadNameError(ValueError):
    """A name that cannot be one of a pool or a container; the text says why."""


class NoPoolError(LookupError):
    """No pool of that label or path; the text says where it was looked for."""


class LabelTakenError(FileExistsError):
    """The label belongs to another pool."""


@dataclass(frozen=True)
class Pool:
    """A pool's label and directory; `label` is the path's text where it was named by path."""

    label: str
    path: Path


def home() -> Path:
    """The data directory in which pools are created.

    DFUSEPY_HOME, else the system's for root, else the user's as the XDG base directories say.
    """
    if given := os.environ.get("DFUSEPY_HOME"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return SYSTEM_HOME
    # The specification says to ignore a relative XDG_DATA_HOME.
    xdg = os.environ.get("XDG_DATA_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".local" / "share"
    return base / "dfusepy"


def homes() -> list[Path]:
    """The data directories in which pools are looked for, the first match counts."""
    first = home()
    if os.environ.get("DFUSEPY_HOME") or first == SYSTEM_HOME:
        return [first]
    return [first, SYSTEM_HOME]


def check_label(label: str, what: str = "label") -> str:
    """The label, if it is legal. Raises BadNameError."""
    if not label:
        raise BadNameError(f"the {what} is empty")
    if not _LABEL.fullmatch(label):
        raise BadNameError(
            f"'{label}' is no legal {what}: use 1 to 63 of A-Z a-z 0-9 . _ -, "
            "and neither . nor - in front"
        )
    return label


def is_path(name: str) -> bool:
    """Whether a pool is named by path: it then starts with /, ./, ../ or ~."""
    return name.startswith(("/", "./", "../", "~")) or name in (".", "..")


def find(name: str) -> Pool:
    """The pool of a label or a path. Raises NoPoolError, BadNameError."""
    if is_path(name):
        path = Path(name).expanduser().absolute()
        if not path.is_dir():
            raise NoPoolError(f"there is no directory {path}")
        return Pool(name, path)
    check_label(name, "pool name")
    for base in homes():
        entry = base / "pools" / name
        if entry.is_dir():
            return Pool(name, entry.resolve())
        if entry.is_symlink():
            raise NoPoolError(f"its directory {os.readlink(entry)} is missing")
    raise NoPoolError("no pool has this label under " + " or ".join(str(h) for h in homes()))


def split(name: str) -> tuple[str, str]:
    """POOL/CONTAINER as (pool's name, container's label). Raises BadNameError."""
    pool, slash, cont = name.rpartition("/")
    if not slash or not pool or pool in (".", "..", "~"):
        raise BadNameError(f"'{name}' names no container: write POOL/CONTAINER")
    if not is_path(pool):
        check_label(pool, "pool name")
    return pool, check_label(cont, "container name")


def listing() -> Iterator[Pool]:
    """The pools that have a label, also those whose directory is missing, in order."""
    seen: set[str] = set()
    for base in homes():
        try:
            names = sorted(os.listdir(base / "pools"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        for name in names:
            entry = base / "pools" / name
            known = name in seen or not _LABEL.fullmatch(name)
            if not known and (entry.is_dir() or entry.is_symlink()):
                seen.add(name)
                yield Pool(name, entry.resolve())


def claim(label: str, path: Path | None = None) -> Pool:
    """Takes a label for a pool that is about to be created at `path`, or in the data directory.

    The pool's directory itself is left to the engine to make. `release` gives the label back.
    Raises BadNameError, LabelTakenError, OSError.
    """
    check_label(label)
    for base in homes():
        entry = base / "pools" / label
        if os.path.lexists(entry):
            raise LabelTakenError(f"the label belongs to {entry.resolve()}")
    entry = home() / "pools" / label
    entry.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path is None:
        return Pool(label, entry)
    target = path.expanduser().absolute()
    try:
        entry.symlink_to(target)
    except FileExistsError:
        raise LabelTakenError(f"the label belongs to {entry.resolve()}") from None
    return Pool(label, target)


def release(path: Path) -> None:
    """Gives back the labels of a pool that is gone, or was never made, at `path`."""
    if path.is_dir() and any(path.iterdir()):
        return
    for base in homes():
        for entry in sorted((base / "pools").glob("*")):
            if entry.is_symlink() and entry.resolve() == path.resolve():
                entry.unlink()
