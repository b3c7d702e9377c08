# SPDX-License-Identifier: Apache-2.0
"""Hooked Python programs that a test talks to, line by line."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dfusepy import interception

PREFIX = """
import errno, mmap, os, sys
def attach(fd):
    for _ in range(100):
        os.pread(fd, 4096, 0)
def say(word):
    print(word, flush=True)
def told():
    return sys.stdin.readline().strip()
def attempt(call, *args):
    try:
        return call(*args)
    except OSError as err:
        return errno.errorcode[err.errno]
"""

# A user may not be able to start this interpreter. The library leaves all to the kernel in a
# process that changes its user; its child is that user's from the beginning.
BECOME = """
os.setgroups([])
os.setresgid({uid}, {uid}, {uid})
os.setresuid({uid}, {uid}, {uid})
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def start(
    library: str,
    code: str,
    *words: object,
    report: Path | None = None,
    uid: int | None = None,
    fds: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Runs the code behind PREFIX: what it says is heard by hear(), what it is told by tell(). As a
    user without groups, if uid is given; with descriptors of ours under their numbers."""
    become = "" if uid is None else BECOME.format(uid=uid)
    return subprocess.Popen(
        [sys.executable, "-c", PREFIX + become + code, *map(str, words)],
        env=interception.environment(library, None if report is None else str(report)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=fds,
    )


def hear(process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    """The next line, read by the byte: what a buffer held would not be seen by select."""
    assert process.stdout is not None
    line, fd = b"", process.stdout.fileno()
    while not line.endswith(b"\n"):
        assert select.select([fd], [], [], timeout_s)[0], "the program says nothing"
        byte = os.read(fd, 1)
        assert byte, f"the program ended: {line!r}"
        line += byte
    return line.decode().strip()


def tell(process: subprocess.Popen[str], word: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
