# SPDX-License-Identifier: Apache-2.0
"""Starts a mount: in this process, or in one of its own.

A background mount is a child of the command, forked before the engine is opened (nobody forks with
a device open). The command waits on a pipe for the child's one answer: mounted, or why not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dfusepy import pools
from dfusepy.mount import Announcer, serve
from dfusepy.preflight import MountError, MountOptions

log = logging.getLogger("dfusepy.mount")

LOG_BYTES = 4 << 20


def log_path(options: MountOptions) -> Path:
    """Where a background mount logs, unless it is told."""
    name = options.label.strip("/~.").replace("/", "_")
    return pools.home() / "log" / f"{name}-{options.container}.log"


def start_logging(options: MountOptions) -> None:
    """Records go to the log file, or to stderr in the foreground."""
    handler: logging.Handler = logging.StreamHandler()
    if options.log_file is not None:
        handler = logging.handlers.RotatingFileHandler(
            options.log_file, maxBytes=LOG_BYTES, backupCount=1
        )
    form = f"%(asctime)s {os.getpid()} %(levelname)s %(name)s [{options.name}] %(message)s"
    level = logging.DEBUG if options.debug else logging.INFO
    logging.basicConfig(level=level, format=form, handlers=[handler], force=True)


def run_foreground(options: MountOptions, announce: Callable[[str], None]) -> None:
    """Mounts and serves in this process until unmounted. Raises MountError."""
    start_logging(options)
    serve(options, Announcer(announce))


def run_background(options: MountOptions) -> str:
    """Mounts in a process of its own; returns when the mount answers, with a warning or "". Raises
    MountError with what the process said."""
    options.log_file = options.log_file or log_path(options)
    try:
        options.log_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        options.log_file.touch()
    except OSError as err:
        raise MountError(
            options.doing,
            f"its log {options.log_file}: {err.strerror}",
            "Name another with --log-file.",
        ) from None
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _daemon(options, writer)
    os.close(writer)
    return _await_answer(options, pid, reader)


def _await_answer(options: MountOptions, pid: int, reader: int) -> str:
    try:
        with open(reader, encoding="utf-8") as pipe:
            said = pipe.read()
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    if not said:
        raise MountError(
            options.doing,
            "the mount process ended without a word",
            f"See its log: {options.log_file}",
        )
    answer = json.loads(said)
    if "why" in answer:
        os.waitpid(pid, 0)
        todo = answer["todo"] or f"Its log: {options.log_file}"
        raise MountError(answer["doing"], answer["why"], todo)
    return str(answer["warning"])


def _daemon(options: MountOptions, writer: int) -> NoReturn:
    """The child: leaves the terminal, serves, and never returns into the command's code."""
    status = 1
    try:
        _detach(options, writer)
        answers = _Answers(writer)
        try:
            start_logging(options)
            serve(options, Announcer(answers.mounted))
            status = 0
        except MountError as err:
            log.error("%s", err)
            answers.failed(err)
        except BaseException as err:
            log.exception("the mount process failed")
            answers.failed(MountError(options.doing, f"{type(err).__name__}: {err}"))
    finally:
        logging.shutdown()
        os._exit(status)


class _Answers:
    """The child's end of the pipe: one answer, then it is closed."""

    def __init__(self, writer: int) -> None:
        self._writer: int | None = writer

    def mounted(self, warning: str) -> None:
        self._send({"warning": warning})

    def failed(self, err: MountError) -> None:
        self._send({"doing": err.doing, "why": err.why, "todo": err.todo})

    def _send(self, answer: dict[str, str]) -> None:
        if self._writer is not None:
            with contextlib.suppress(BrokenPipeError), open(self._writer, "w") as pipe:
                json.dump(answer, pipe)
            self._writer = None


def _detach(options: MountOptions, keep: int) -> None:
    """A session of its own; no descriptor of the command but the pipe stays open, or whoever waits
    for their end would wait for the unmount."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    assert options.log_file is not None
    output = os.open(options.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
