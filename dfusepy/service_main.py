# SPDX-License-Identifier: Apache-2.0
"""The process of a pool's service: `python -m dfusepy.service_main POOL --socket PATH`.

It has one thread until the engine forks its worker from it. With a socket that is passed on as
systemd does (LISTEN_FDS), it serves that one.
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from dfusepy import mounts, service

LISTEN_FD = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
FOR_EVER_MS = 2**32 - 1


@dataclass
class ServiceOptions:
    """What a service is told."""

    pool: Path
    socket: Path
    listen_fd: int = -1
    ready_fd: int = -1
    arena_bytes: int = 0
    dirty_bytes: int = 0
    idle_s: float = service.IDLE_S  # 0: it stays
    log: str | None = None


def given_socket() -> int:
    """The listening socket that the process was started with, or -1. Raises ValueError where it
    was given other things."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return -1
    count = os.environ.get("LISTEN_FDS", "0")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if count != "1":
        raise ValueError(f"expected one socket from the service manager, got {count}")
    os.set_inheritable(LISTEN_FD, False)
    return LISTEN_FD


def socket_of(listen_fd: int) -> Path | None:
    """The name of a socket that was given."""
    if listen_fd < 0:
        return None
    with socket.socket(fileno=os.dup(listen_fd)) as given:
        if given.family != socket.AF_UNIX or given.type != socket.SOCK_SEQPACKET:
            raise ValueError("the given socket is none of SOCK_SEQPACKET (ListenSequentialPacket=)")
        return Path(os.fsdecode(given.getsockname()))


def run(options: ServiceOptions) -> None:
    """Serves until it is idle or told to end. Raises OSError."""
    from dfusepy import engine

    record = service.ServiceRecord(
        pool=os.path.realpath(options.pool),
        label=engine.pool_peek(options.pool).label,
        socket=str(options.socket),
        pid=os.getpid(),
        started=mounts.process_started(os.getpid()) or "",
        arena_bytes=options.arena_bytes,
        dirty_bytes=options.dirty_bytes,
        idle_s=options.idle_s,
        log=options.log,
    )
    given = options.listen_fd >= 0
    idle_ms = int(options.idle_s * 1000) or FOR_EVER_MS
    service.make_runtime_dir(options.socket.parent)
    with service.announced(record):
        engine.service_run(
            options.pool,
            socket=None if given else options.socket,
            listen_fd=options.listen_fd,
            ready_fd=options.ready_fd,
            arena=options.arena_bytes,
            dirty=options.dirty_bytes,
            idle_ms=idle_ms,
        )


def parse(words: list[str]) -> tuple[ServiceOptions, bool]:
    parser = argparse.ArgumentParser(prog="dfusepy.service_main", description=__doc__)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--ready-fd", type=int, default=-1)
    parser.add_argument("--arena", type=int, default=0)
    parser.add_argument("--dirty", type=int, default=0)
    parser.add_argument("--idle", type=float, default=service.IDLE_S)
    parser.add_argument("--log")
    parser.add_argument("--detach", action="store_true")
    given = parser.parse_args(words)
    try:
        listen_fd = given_socket()
        path = given.socket or socket_of(listen_fd) or service.socket_path(given.pool)
    except (OSError, ValueError) as err:
        parser.error(str(err))
    options = ServiceOptions(
        pool=given.pool,
        socket=path,
        listen_fd=listen_fd,
        ready_fd=given.ready_fd,
        arena_bytes=given.arena,
        dirty_bytes=given.dirty,
        idle_s=given.idle,
        log=given.log,
    )
    return options, given.detach


def main() -> int:
    options, detach = parse(sys.argv[1:])
    try:
        # Whoever starts it waits for this process: it leaves a child of nobody's behind.
        if detach and os.fork():
            os._exit(0)
        run(options)
    except OSError as err:
        print(f"dfusepy: service: {err}", file=sys.stderr)
        if options.ready_fd >= 0:  # the first line counts: the engine may have told already
            said = f"{err.errno or errno.EIO} {err.strerror or err}\n"
            os.write(options.ready_fd, said.encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
