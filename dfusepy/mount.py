# SPDX-License-Identifier: Apache-2.0
"""The mount process: opens a session with the pool's service (or an engine of its own), mounts,
serves until it is unmounted, then flushes.

One nursery owns all that runs here. See background.py for how the process is started.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from dfusepy import mounts, pools, service
from dfusepy.preflight import MountError, MountOptions, check_holder, check_writer

if TYPE_CHECKING:
    from dfusepy.engine import Container, FileSystem, Pool
    from dfusepy.invalidate import Invalidator
    from dfusepy.loop import InHand

log = logging.getLogger("dfusepy.mount")

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
READAHEAD_KIB = 1024  # the kernel's 128 would cut sequential reads into small requests
ANSWER_S = 60.0  # a mount that does not answer a stat by then is broken
WRITEBACK_S = 60.0  # for dirty mmap pages in the kernel, when a signal ends a busy mount

# What to do about an error of the engine at open; its own text says why.
TODO = {
    errno.EPROTONOSUPPORT: "It was made by a newer dfusepy: install that one.",
    errno.EMEDIUMTYPE: "A pool's directory and its device belong together: give it back its own.",
    errno.ESTALE: "The index is an old copy. Bring back the directory that was last in use.",
    errno.EUCLEAN: "Nothing was changed. `dfusepy pool query` says more.",
    errno.EACCES: "Mount it as the owner of the pool.",
    errno.EPERM: "Mount it as the owner of the pool.",
    errno.ENODATA: "The container was made without a file system.",
}


# -- the engine --------------------------------------------------------------------------------


class Engine:
    """The pool, the container and the file system of one mount, opened and closed together."""

    pool: Pool
    container: Container
    filesystem: FileSystem
    socket: str | None = None  # of the service; None: the engine is in this process
    generation = 0  # of this mount, among those of the container; 0 in this process

    def __init__(self, options: MountOptions) -> None:
        self._options = options
        with self._errors(f"opening pool {options.label}"):
            self.pool = self._open_pool()
        try:
            self._open_container()
        except BaseException:
            with contextlib.suppress(OSError):
                self.pool.close()
            raise
        self._writable = not self.read_only  # as of now: a failing device changes it

    def _open_pool(self) -> Pool:
        from dfusepy import engine

        options = self._options
        arena, dirty = options.arena_bytes, options.dirty_bytes
        if options.in_process:
            with contextlib.suppress(OSError):  # then opening it says why
                service.stop_idle(options.pool)
            return engine.Pool.open(
                options.pool, arena=arena, dirty=dirty, read_only=options.read_only
            )

        def use(socket: str) -> Pool:
            self.socket = socket
            return engine.Pool.open(options.pool, socket=socket, mount=True)

        return service.with_service(options.pool, use, arena=arena, dirty=dirty)

    def _open_container(self) -> None:
        options = self._options
        pool = options.pool if pools.is_path(options.label) else options.label
        try:
            self.container = self.pool.container(options.container, options.snapshot)
        except FileNotFoundError:
            labels = [info.label for info in self.pool.containers()]
            if options.snapshot and options.container in labels:
                why, verb = f"there is no snapshot '{options.snapshot}'", "snapshot list"
                todo = f"`dfusepy container {verb} {pool}/{options.container}` shows them."
            else:
                why = f"the pool has no container '{options.container}'"
                todo = (
                    f"It has: {', '.join(labels[:8])}"
                    if labels
                    else (f"`dfusepy container create {pool}/{options.container}` makes it.")
                )
            raise MountError(options.doing, why, todo) from None
        except OSError as err:
            raise self._error(f"opening container {options.container}", err) from err
        with self._errors(f"opening the file system of {options.name}"):
            self.filesystem = self.container.filesystem()
        if self.socket is not None:
            with self._errors(f"mounting the file system of {options.name}", mounting=True):
                self.generation = self.filesystem.mount(self.read_only)

    @contextlib.contextmanager
    def _errors(self, step: str, mounting: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            if mounting and err.errno == errno.EBUSY:
                check_writer(self._options)  # raises, where one of our mounts writes to it
            raise self._error(step, err) from err

    def _error(self, step: str, err: OSError) -> MountError:
        if err.errno == errno.EBUSY:
            check_holder(self._options)  # raises, where one of our mounts has it
            served = service.running(self._options.pool)
            if served is not None and self._options.in_process:
                return MountError(
                    self._options.doing,
                    f"the pool is in use by its service (process {served.pid})",
                    f"`dfusepy service stop {self._options.label}` ends it.",
                )
            return MountError(
                self._options.doing,
                "the pool is in use by another process",
                "Try again when that one is done.",
            )
        why = f"{step}: {err.strerror or err}"
        return MountError(self._options.doing, why, TODO.get(err.errno or 0, ""))

    @property
    def warning(self) -> str:
        """What whoever mounts it should know."""
        if damage := self.pool.query().damage:
            return f"the pool is damaged and mounted read-only: {damage}"
        options = self._options
        served = service.running(options.pool) if self.socket is not None else None
        asked = (options.arena_bytes, options.dirty_bytes)
        if served is None or not any(asked):
            return ""
        if all(new in (0, old) for new, old in zip(asked, served.sizes, strict=True)):
            return ""
        return "the pool's service runs already, with other sizes for --arena and --dirty"

    @property
    def il(self) -> bytes:
        """How a program finds the session behind a file: version, socket, container, generation of
        the mount, snapshot. The container's label and the snapshot's name have no blanks."""
        options = self._options
        words = (options.container, str(self.generation), options.snapshot or "-")
        return " ".join(("1", str(self.socket), *words)).encode()

    @property
    def read_only(self) -> bool:
        options = self._options
        return options.read_only or options.snapshot is not None or self.pool.query().read_only

    def query(self) -> bytes:
        """The answer to `fs query`, as JSON."""
        options = self._options
        space = self.filesystem.statfs()
        answer = {
            "mount": {
                "name": options.name,
                "mountpoint": options.mountpoint,
                "pid": os.getpid(),
                "read_only": self.read_only,
                "cache": options.cache,
                "attr_timeout": options.attr_timeout,
                "entry_timeout": options.entry_timeout,
                "negative_timeout": options.negative_timeout,
                "session": self.socket is not None,
                "generation": self.generation,
            },
            "service": None if self.socket is None else self.pool.service().as_dict(),
            "pool": {"path": str(options.pool), **self.pool.query().as_dict()},
            "container": self.container.query().as_dict(),
            "fs": {**self.filesystem.query().as_dict(), **space.as_dict()},
        }
        return json.dumps(answer).encode()

    def close(self) -> list[str]:
        """Flushes and closes everything, whatever fails; returns the failures."""
        steps: list[tuple[str, Callable[[], None]]] = [
            ("closing the file system", self.filesystem.close),
            ("closing the container", self.container.close),
            ("closing the pool", self.pool.close),
        ]
        if self._writable:
            # First of all, and by itself: what can be saved is saved even where a close is refused.
            steps.insert(0, ("flushing the file system", self.filesystem.sync))
        failures = []
        for what, step in steps:
            try:
                step()
            except OSError as err:
                failures.append(f"{what}: {err.strerror or err}")
        return failures


# -- serving -----------------------------------------------------------------------------------


class Announcer:
    """Tells whoever started the mount how that went, once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = tell

    def __call__(self, warning: str) -> None:
        if self._tell is not None:
            self._tell(warning)
            self._tell = None


class Service:
    """One mount from the kernel's mount to its end."""

    def __init__(self, options: MountOptions, engine: Engine, announce: Announcer) -> None:
        self._options = options
        self._engine = engine
        self._announce = announce
        self._record: Path | None = None
        self._invalidator: Invalidator | None = None

    def run(self) -> None:
        """Mounts, serves, unmounts. Raises MountError where it could not be mounted."""
        import pyfuse3
        import trio

        from dfusepy.fs import CacheOptions, Operations, Session
        from dfusepy.invalidate import Invalidator
        from dfusepy.loop import InHand, install

        options, engine, in_hand = self._options, self._engine, InHand()
        cache = CacheOptions(
            options.attr_timeout, options.entry_timeout, options.negative_timeout, options.cache
        )
        invalidator = session = None
        if engine.socket is not None:
            invalidator = Invalidator(engine.filesystem, options.mountpoint, in_hand)
            self._invalidator = invalidator
            session = Session(engine.il, in_hand, invalidator.forget_pages)
        operations = Operations(engine.filesystem, cache, engine.query, install(), session)
        with _held_signals():
            with _said_on_stderr() as said:
                try:
                    words = options.fuse_words(self._engine.read_only)
                    pyfuse3.init(operations, options.mountpoint, words)
                except RuntimeError:
                    raise MountError(options.doing, said() or "the kernel refused") from None
            try:
                if invalidator is not None:
                    invalidator.start()
                gc.collect()
                gc.freeze()  # what lives now lives on: no collection needs to look at it
                trio.run(self._main, in_hand, restrict_keyboard_interrupt_to_checkpoints=True)
            finally:
                if invalidator is not None:
                    invalidator.stop()
                pyfuse3.close()

    async def _main(self, in_hand: InHand) -> None:
        import pyfuse3
        import trio

        in_hand.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_on_signal)
            nursery.start_soon(self._answer)
            await pyfuse3.main()
            nursery.cancel_scope.cancel()

    async def _answer(self) -> None:
        """Announces the mount when the kernel has got an answer from it."""
        import trio

        mountpoint = self._options.mountpoint
        with trio.move_on_after(ANSWER_S) as waiting:
            await trio.to_thread.run_sync(os.stat, mountpoint, abandon_on_cancel=True)
        if waiting.cancelled_caught:
            raise MountError(self._options.doing, f"no answer to a stat in {ANSWER_S:.0f} s")
        self._raise_readahead()
        self._register()
        warning = self._engine.warning
        if warning:
            log.warning("%s: %s", self._options.label, warning)
        log.info("mounted %s on %s", self._options.name, mountpoint)
        self._announce(warning)

    def _register(self) -> None:
        """A mount that nobody finds could not be waited for."""
        try:
            self._record = mounts.register(self._describe())
        except OSError as err:
            why = f"its record in {mounts.runtime_dir()}: {err.strerror}"
            raise MountError(self._options.doing, why) from None

    def _describe(self) -> mounts.MountRecord:
        options = self._options
        return mounts.MountRecord(
            pool=os.path.realpath(options.pool),
            label=options.label,
            container=options.container,
            snapshot=options.snapshot,
            mountpoint=options.mountpoint,
            read_only=self._engine.read_only,
            pid=os.getpid(),
            started=mounts.process_started(os.getpid()) or "",
            log=str(options.log_file) if options.log_file else None,
            session=self._engine.socket is not None,
        )

    def _raise_readahead(self) -> None:
        """Root may; others keep the kernel's default."""
        mount = mounts.kernel_mount_at(self._options.mountpoint)
        if mount is not None:
            with contextlib.suppress(OSError):
                path = Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
                path.write_text(str(READAHEAD_KIB))

    async def _end_on_signal(self) -> None:
        """The first signal unmounts; further ones change nothing, so that the flush is whole."""
        import trio

        with trio.open_signal_receiver(*ENDING) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            async with trio.open_nursery() as nursery:
                ending = False
                async for number in signals:
                    log.info(
                        "%s: %s",
                        signal.Signals(number).name,
                        "already unmounting" if ending else "unmounting",
                    )
                    if not ending:
                        ending = True
                        nursery.start_soon(self._unmount)

    async def _unmount(self) -> None:
        """Takes the mount away while requests are still answered: the kernel may have pages to
        write back. The loop ends with the mount, or here where programs still use it."""
        import pyfuse3
        import trio

        mountpoint = self._options.mountpoint
        try:
            await trio.to_thread.run_sync(mounts.kernel_unmount, mountpoint)
        except OSError as err:
            log.warning(
                "unmounting a mount in use (%s): %s",
                err.strerror,
                ", ".join(mounts.users_of(mountpoint)) or "users unknown",
            )
            with trio.move_on_after(WRITEBACK_S):
                await trio.to_thread.run_sync(_syncfs, mountpoint, abandon_on_cancel=True)
            if self._invalidator is not None:
                # While requests are answered: the kernel, told to forget a file, writes its pages
                # back first. Without an answer that hangs beyond SIGKILL, with the connection.
                await trio.to_thread.run_sync(self._invalidator.stop)
            pyfuse3.terminate()

    def finish(self, failure: str) -> None:
        """Removes the record, leaving a failure beside it."""
        if self._record is not None:
            with contextlib.suppress(OSError):
                mounts.unregister(self._record, failure)


def serve(options: MountOptions, announce: Announcer) -> None:
    """Opens, mounts, serves and flushes. Raises MountError where one of them failed; whatever
    happens in between, what was accepted is flushed."""
    engine = Engine(options)
    service = Service(options, engine, announce)
    trouble: BaseException | None = None
    try:
        service.run()
    except BaseException as err:
        trouble = _unwrap(err)
        if not isinstance(trouble, MountError):
            log.exception("the mount ended by an error")
    started = time.monotonic()
    failures = engine.close()
    for failure in failures:
        log.error("%s", failure)
    service.finish("; ".join(failures))
    if failures:
        raise MountError(
            f"unmounting {options.name}",
            "; ".join(failures),
            "Data since the last successful fsync may be lost; see the log.",
        )
    log.info("flushed and closed %s in %.1f s", options.name, time.monotonic() - started)
    if trouble is not None:
        raise trouble


def _unwrap(err: BaseException) -> BaseException:
    """The MountError inside a nursery's exception group."""
    while isinstance(err, BaseExceptionGroup) and len(err.exceptions) == 1:
        err = err.exceptions[0]
    return err


@contextlib.contextmanager
def _held_signals() -> Iterator[None]:
    """Signals that come before the loop listens wait for it; those after it, while the engine
    flushes, are ignored."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    yield


class _said_on_stderr:
    """Collects what libfuse prints inside the block; it has no other way to say why it failed."""

    def __enter__(self) -> Callable[[], str]:
        sys.stderr.flush()
        self._said = os.memfd_create("said")
        self._kept = os.dup(2)
        os.dup2(self._said, 2)
        return self._text

    def _text(self) -> str:
        text = os.pread(self._said, 4096, 0).decode(errors="replace")
        return "; ".join(line.strip() for line in text.splitlines() if line.strip())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)
        os.close(self._said)


def _syncfs(mountpoint: str) -> None:
    """As os.sync, for one file system; the interpreter lock is free meanwhile."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(fd) != 0:
            log.error("writing back the kernel's pages: %s", os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)
