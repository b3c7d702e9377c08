# SPDX-License-Identifier: Apache-2.0
"""What the groups of `dfusepy bench` share: figures, programs that are run, mounts."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dfusepy import engine, mounts

from .common import CliError

MIB = 1 << 20


@dataclass
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    wanted: float  # a ratio where there is a peer, else a bound of the value
    peer: float | None = None
    peer_name: str = ""
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """Our speed over the peer's."""
        if not self.peer or not self.value:
            return None
        return self.peer / self.value if self.lower_is_better else self.value / self.peer

    @property
    def met(self) -> bool | None:
        if self.peer_name:
            return None if self.ratio is None else self.ratio >= self.wanted
        return self.value <= self.wanted if self.lower_is_better else self.value >= self.wanted

    @property
    def wanted_text(self) -> str:
        if self.peer_name:
            return f"{self.wanted:.2f}"
        return f"{'<' if self.lower_is_better else '>'} {self.wanted:g} {self.unit}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Bench:
    """Where to measure, and what came out."""

    disk: Path
    memory: Path
    quick: bool
    engine_program: Path | None
    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3


def output(*command: str | Path, **extra: Any) -> str:
    """A program's output; a failure is told with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **extra)
    if done.returncode != 0:
        raise CliError("cannot measure", f"{command[0]} failed: {done.stderr.strip()}")
    return str(done.stdout)


def environment(load: float) -> dict[str, str]:
    """What the figures depend on."""
    from importlib.metadata import version

    result = {
        "dfusepy": version("dfusepy"),
        "pyfuse3": version("pyfuse3"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": str(os.cpu_count()),
        "load": f"{load:.2f} before, {os.getloadavg()[0]:.2f} after",
    }
    for program, flag in (("bindfs", "-V"), ("fio", "--version")):
        if shutil.which(program):
            result[program] = output(program, flag).split()[-1]
    return result


# -- mounts ------------------------------------------------------------------------------------


class OurMount:
    """A container of a pool on the disk, mounted by the program itself."""

    def __init__(self, bench: Bench) -> None:
        self.path = bench.disk / "mount"
        self.path.mkdir(exist_ok=True)
        self._home = bench.disk / "home"
        self._environment = {**os.environ, "DFUSEPY_HOME": str(self._home)}
        self._dfusepy("pool", "create", "bench", "--size", "512M")
        self._dfusepy("container", "create", "bench/data")

    def _dfusepy(self, *words: str) -> None:
        code = "from dfusepy_cli.main import main; main()"
        output(sys.executable, "-P", "-c", code, *words, env=self._environment)

    def mount(self, options: str = "") -> None:
        self._dfusepy("mount", "bench/data", str(self.path), *(["-o", options] if options else []))

    def umount(self) -> None:
        self._dfusepy("umount", str(self.path))

    def remove(self) -> None:
        """Ends what serves the pool, and deletes it."""
        with contextlib.suppress(CliError):  # none runs
            self._dfusepy("service", "stop", "bench")
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def pool(self) -> Path:
        return self._home / "pools" / "bench"

    @property
    def socket(self) -> Path:
        """Of the service behind the mount, as it tells. Raises OSError where there is none."""
        words = os.getxattr(self.path, "user.dfusepy.il").decode().rsplit(" ", 3)
        return Path(words[0].removeprefix("1 "))

    @property
    def pids(self) -> list[int]:
        """Of the mount and of the service behind it."""
        found = [int(next((self._home / "run").glob("*.json")).stem)]
        with contextlib.suppress(OSError), engine.Pool.open(self.pool, socket=self.socket) as pool:
            info = pool.service()
            found += [info.supervisor_pid, info.worker_pid]
        return found


class Bindfs:
    """bindfs over a folder of tmpfs."""

    def __init__(self, bench: Bench) -> None:
        self.path = bench.memory / "mount"
        self._below = bench.memory / "below"
        self.path.mkdir(exist_ok=True)
        self._below.mkdir(exist_ok=True)

    def mount(self, options: str = "") -> None:
        output("bindfs", *(["-o", options] if options else []), self._below, self.path)

    def umount(self) -> None:
        mounts.kernel_unmount(str(self.path))


Mount = OurMount | Bindfs


@contextlib.contextmanager
def mounted(mount: Mount, options: str = "") -> Iterator[Path]:
    mount.mount(options)
    try:
        yield mount.path
    finally:
        mount.umount()


@contextlib.contextmanager
def both(bench: Bench) -> Iterator[list[Mount]]:
    """Ours and the peer; nothing, and a word about it, where they cannot be mounted."""
    if shutil.which("bindfs") is None:
        bench.skipped.append("the mount: its peer bindfs is not installed")
        yield []
        return
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        bench.skipped.append("the mount: /dev/fuse cannot be opened")
        yield []
        return
    ours = OurMount(bench)
    try:
        yield [ours, Bindfs(bench)]
    finally:
        ours.remove()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
