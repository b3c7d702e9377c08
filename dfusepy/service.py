# SPDX-License-Identifier: Apache-2.0
"""Finds the service of a pool, or starts it.

A service listens on `UUID.sock` in the runtime directory. Beside it are `UUID.service`, what it
says about itself while it lives, and `UUID.lock`, which whoever starts it holds meanwhile, so that
two who need it at once start one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dfusepy import mounts, pools

if TYPE_CHECKING:
    from dfusepy.engine import Pool

R = TypeVar("R")

IDLE_S = 60.0  # a service that nobody uses for so long ends; DFUSEPY_SERVICE_IDLE_S sets another
START_S = 300.0  # recovery included
BUSY_S = 3.0  # who has the pool open for a moment is waited for
ENDING_S = 60.0  # and a service that is just ending
LEAVING_S = 1.0  # until a session that has ended counts no more
LOG_BYTES = 4 << 20
SOCKET_PATH_BYTES = 107  # sockaddr_un of Linux, with its NUL
DRAFT_BYTES = 11  # what the name is longer by until the service has its pool


@dataclass(frozen=True)
class ServiceRecord:
    """What a service says about itself."""

    pool: str  # its directory, canonical
    label: str
    socket: str
    pid: int  # of the supervisor
    started: str  # as in mounts.MountRecord
    arena_bytes: int  # as it was told, 0: chosen
    dirty_bytes: int
    idle_s: float  # 0: it stays
    log: str | None

    @property
    def sizes(self) -> tuple[int, int]:
        return self.arena_bytes, self.dirty_bytes

    @property
    def alive(self) -> bool:
        return self.started == mounts.process_started(self.pid)


class ServiceError(OSError):
    """A service could not be started or reached: errno and text as the engine gave them."""


# -- names -------------------------------------------------------------------------------------


def _uuid(pool: Path) -> str:
    from dfusepy import engine

    return engine.pool_peek(pool).uuid


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) + DRAFT_BYTES <= SOCKET_PATH_BYTES


def short_dir() -> Path:
    """A runtime directory with a short name, for users whose own has a long one."""
    if os.geteuid() == 0:
        return mounts.SYSTEM_RUN
    return Path(f"/tmp/dfusepy-{os.geteuid()}")


def socket_path(pool: str | os.PathLike[str]) -> Path:
    """Where this user's service of the pool in this directory listens, running or not."""
    name = f"{_uuid(Path(pool))}.sock"
    path = mounts.runtime_dir() / name
    return path if _fits(path) else short_dir() / name


def _candidates(pool: Path) -> Iterator[Path]:
    """Where a service may be found: this user's place, then the system's."""
    own = socket_path(pool)
    yield own
    for folder in mounts.runtime_dirs()[1:]:
        yield folder / own.name


def record_path(path: Path) -> Path:
    return path.with_suffix(".service")


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def make_runtime_dir(folder: Path) -> None:
    """Makes the directory of a socket, which nobody else may change. Raises OSError."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as err:
        why = f"the folder {folder} of its socket cannot be made: {err.strerror}"
        raise ServiceError(err.errno or errno.EIO, why) from None
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
        raise ServiceError(errno.EPERM, f"{folder} is not a directory of this user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ServiceError(errno.EPERM, f"{folder} can be changed by other users")


# -- what runs ---------------------------------------------------------------------------------


def read_record(path: Path) -> ServiceRecord | None:
    """The record beside a socket, if its service lives."""
    try:
        record = ServiceRecord(**json.loads(record_path(path).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.alive else None


def write_record(record: ServiceRecord) -> None:
    path = record_path(Path(record.socket))
    draft = path.with_suffix(f".new{record.pid}")
    draft.write_text(json.dumps(asdict(record), indent=1) + "\n")
    draft.rename(path)


@contextlib.contextmanager
def announced(record: ServiceRecord) -> Iterator[None]:
    """The record is there inside the block. Raises OSError: EBUSY (another service lives)."""
    path = Path(record.socket)
    other = read_record(path)
    if other is not None and other.pid != record.pid:
        raise ServiceError(errno.EBUSY, f"it is served by process {other.pid}")
    write_record(record)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if read_record(path) == record:  # else the next service has written its own
                record_path(path).unlink()
            with _locked(_lock_path(path), fcntl.LOCK_EX | fcntl.LOCK_NB):
                _lock_path(path).unlink()  # nobody is starting the next one


def listens(path: Path) -> bool:
    """Whether a service answers on this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(10)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def find(pool: str | os.PathLike[str]) -> Path | None:
    """The socket of the pool's running service, if there is one. Raises OSError: EUCLEAN, ENOENT
    (no pool), EADDRINUSE (a copy of the pool is served)."""
    directory = Path(pool)
    for path in _candidates(directory):
        if path.exists() and listens(path):
            record = read_record(path)
            if record is not None and record.pool != os.path.realpath(directory):
                why = f"a pool with the same identity is served from {record.pool}"
                raise ServiceError(errno.EADDRINUSE, why)
            return path
    return None


def listening(pool: str | os.PathLike[str]) -> bool:
    """Whether the pool is served now; False too where it is none."""
    try:
        return find(pool) is not None
    except OSError:
        return False


def running(pool: str | os.PathLike[str]) -> ServiceRecord | None:
    """The record of the pool's service, while it lives, also where it is just ending."""
    for path in _candidates(Path(pool)):
        record = read_record(path)
        if record is not None and record.pool == os.path.realpath(pool):
            return record
    return None


# -- starting ----------------------------------------------------------------------------------


def default_idle_s() -> float:
    """Raises ServiceError (EINVAL) where the environment says nonsense."""
    given = os.environ.get("DFUSEPY_SERVICE_IDLE_S", "")
    try:
        value = float(given or IDLE_S)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 4_000_000:
        why = f"DFUSEPY_SERVICE_IDLE_S={given} is not a number of seconds to 4e6"
        raise ServiceError(errno.EINVAL, why)
    return value


def ensure(
    pool: str | os.PathLike[str],
    *,
    arena: int = 0,
    dirty: int = 0,
    idle_s: float | None = None,
) -> str:
    """The socket of the pool's service, which is started where it is not running; arena, dirty and
    idle_s are for that case. Raises OSError with the reason in words."""
    directory = Path(pool)
    if found := find(directory):
        return str(found)
    owner = directory.stat().st_uid
    if os.geteuid() not in (0, owner):
        why = f"its service is not running, and only root and the pool's owner (uid {owner}) start"
        raise ServiceError(errno.EACCES, f"{why} it")
    path = socket_path(directory)
    make_runtime_dir(path.parent)
    with _locked(_lock_path(path)):
        if found := find(directory):  # another one has just started it
            return str(found)
        try:
            _await_ending(path)
            _start(directory, path, arena, dirty, default_idle_s() if idle_s is None else idle_s)
        except BaseException:
            _lock_path(path).unlink(missing_ok=True)  # it would be there for ever
            raise
    return str(path)


@contextlib.contextmanager
def _locked(path: Path, flags: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds the lock file, which others make and remove only while they hold it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, flags)
            if _is_still(path, fd):
                yield
                return
        finally:
            os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _await_ending(path: Path) -> None:
    """A service that lives and does not listen is writing its last data."""
    record = read_record(path)
    if record is not None and not wait_for_end(record.pid, ENDING_S):
        why = f"its last service (process {record.pid}) is ending, but does not come to an end"
        raise ServiceError(errno.EBUSY, why)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Waits for the end of a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], timeout_s)[0])
    finally:
        os.close(fd)


def log_path(label: str) -> Path:
    return pools.home() / "log" / f"service-{label}.log"


def _start(pool: Path, path: Path, arena: int, dirty: int, idle_s: float) -> None:
    """Starts it and waits until it serves. A pool that somebody has open is tried again for a
    moment: a command, or a worker that outlives its supervisor by its last write."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return _start_once(pool, path, arena, dirty, idle_s)
        except OSError as err:
            held = mounts.holder_of_pool(pool) is not None
            if err.errno != errno.EBUSY or held or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _start_once(pool: Path, path: Path, arena: int, dirty: int, idle_s: float) -> None:
    from dfusepy import engine

    log = log_path(engine.pool_peek(pool).label)
    reader, writer = os.pipe()
    words = [
        *(sys.executable, "-m", "dfusepy.service_main", str(pool.absolute())),
        *("--socket", str(path), "--ready-fd", str(writer), "--log", str(log), "--detach"),
        *("--arena", str(arena), "--dirty", str(dirty), "--idle", str(idle_s)),
    ]
    try:
        with _open_log(log) as output:
            starter = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(writer,),
                start_new_session=True,
                cwd="/",
            )
    finally:
        os.close(writer)
    line = _first_line(reader)
    starter.wait()  # it has gone to the background, or failed
    if line == "ok":
        return
    number, _, why = line.partition(" ")
    if number.isdigit():
        raise ServiceError(int(number), why)
    raise ServiceError(errno.EIO, f"its service did not start; its log is {log}")


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _first_line(reader: int) -> str:
    """What the service says when it serves or cannot; "" where it says nothing in time."""
    said = b""
    deadline = time.monotonic() + START_S
    try:
        while b"\n" not in said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([reader], [], [], left)[0]:
                break
            piece = os.read(reader, 1024)
            if not piece:
                break
            said += piece
    finally:
        os.close(reader)
    return said.partition(b"\n")[0].decode(errors="replace")


# -- using and ending --------------------------------------------------------------------------

# A service that ends between the look and the handshake.
GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOENT, errno.EPIPE, errno.ENOTCONN)


def with_service(pool: str | os.PathLike[str], use: Callable[[str], R], **start: int) -> R:
    """use(socket) of a running service; again where that ended just before it was used."""
    for _ in range(5):
        try:
            return use(ensure(pool, **start))
        except ServiceError:
            raise
        except OSError as err:
            if err.errno not in GONE or not Path(pool).is_dir():
                raise
        time.sleep(0.05)
    return use(ensure(pool, **start))


def open_session(
    pool: str | os.PathLike[str], *, mount: bool = False, arena: int = 0, dirty: int = 0
) -> Pool:
    """A session with the pool's service, which is started where it is not running."""
    from dfusepy import engine

    def use(path: str) -> Pool:
        return engine.Pool.open(pool, socket=path, mount=mount)

    return with_service(pool, use, arena=arena, dirty=dirty)


def stop(pool: str | os.PathLike[str], timeout_s: float = ENDING_S) -> bool:
    """Ends the pool's service and waits until all is written; False: there is none. Raises OSError:
    EPERM (another user's), ETIMEDOUT."""
    record = running(pool)
    if record is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
    if not wait_for_end(record.pid, timeout_s):
        raise ServiceError(errno.ETIMEDOUT, f"process {record.pid} is still writing")
    return True


def stop_idle(pool: str | os.PathLike[str]) -> None:
    """Ends a service that nobody uses, so that the pool is free. Raises OSError: EBUSY (somebody
    uses it), and what `stop` raises."""
    from dfusepy import engine

    def others(path: Path) -> int:
        """Sessions besides the asking one. Those that have just ended may still count a moment."""
        with engine.Pool.open(pool, socket=path) as session:
            end = time.monotonic() + LEAVING_S
            while (count := session.service().sessions - 1) > 0 and time.monotonic() < end:
                time.sleep(0.01)
            return count

    found = find(pool)
    if found is not None:
        try:
            count = others(found)
        except OSError as err:
            if err.errno not in GONE:
                raise
            count = 0  # it has just ended
        if count > 0:
            programs = "1 other program uses" if count == 1 else f"{count} other programs use"
            raise ServiceError(errno.EBUSY, f"{programs} the pool")
    stop(pool)
