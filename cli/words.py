# SPDX-License-Identifier: Apache-2.0
"""The words of `-o`, as fstab and mount(8) write them: each is known or refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dfusepy import pools
from dfusepy.preflight import CACHE_MODES

from .common import parse_size

Settings = dict[str, Any]


def seconds(text: str) -> float:
    """A time that the kernel may remember something. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e9:
        raise ValueError(f"'{text}' is not a number of seconds from 0 to 1e9")
    return value


def cache_mode(text: str) -> str:
    if text not in CACHE_MODES:
        raise ValueError(f"'{text}' is none of {', '.join(CACHE_MODES)}")
    return text


def snapshot_name(text: str) -> str:
    return pools.check_label(text, "snapshot name")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Word -> what it sets.
FLAGS: Mapping[str, Settings] = {
    "ro": {"read_only": True},
    "rw": {"read_only": False},
    "allow_other": {"allow_other": True},
    "nonempty": {"nonempty": True},
    "debug": {"debug": True},
    "in_process": {"in_process": True},
}

# Word with a value -> (setting, its type).
VALUES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "snapshot": ("snapshot", snapshot_name),
    "attr_timeout": ("attr_timeout", seconds),
    "entry_timeout": ("entry_timeout", seconds),
    "negative_timeout": ("negative_timeout", seconds),
    "cache": ("cache", cache_mode),
    "arena": ("arena_bytes", parse_size),
    "dirty": ("dirty_bytes", parse_size),
    "log_file": ("log_file", Path),
}

# Passed on to the kernel. `suid` and `dev` are root's to say.
KERNEL = _words(
    "suid nosuid dev nodev exec noexec sync async dirsync noatime nodiratime norelatime"
)

# mount(8) and systemd act on these before or instead of us; access times are never kept anyway.
ELSEWHERE = _words(
    "defaults auto noauto user nouser users nousers owner noowner group nogroup _netdev nofail "
    "atime diratime relatime strictatime nostrictatime lazytime nolazytime iversion noiversion "
    "silent loud"
)
ELSEWHERE_PREFIXES = ("x-", "X-", "comment=")


def parse(text: str) -> Settings:
    """The settings of `-o text`. Raises ValueError, which names the word."""
    settings: Settings = {}
    kernel: list[str] = []
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if not equals and name in FLAGS:
            settings |= FLAGS[name]
        elif equals and name in VALUES:
            setting, convert = VALUES[name]
            settings[setting] = _value(name, value, convert)
        elif word in KERNEL:
            kernel.append(word)
        elif word not in ELSEWHERE and not word.startswith(ELSEWHERE_PREFIXES):
            raise ValueError(_refusal(word, name, bool(equals)))
    return settings | ({"kernel_words": tuple(kernel)} if kernel else {})


def _value(name: str, value: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(value)
    except ValueError as err:
        raise ValueError(f"mount option {name}: {err}") from None


def _refusal(word: str, name: str, has_value: bool) -> str:
    if name == "remount":
        return "mount option remount: a mount cannot be changed; unmount it and mount it anew"
    if has_value and name in FLAGS.keys() | KERNEL | ELSEWHERE:
        return f"mount option {name} takes no value"
    if not has_value and name in VALUES:
        return f"mount option {name} needs a value: {name}=..."
    return f"unknown mount option '{word}'"
