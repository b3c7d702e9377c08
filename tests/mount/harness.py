# SPDX-License-Identifier: Apache-2.0
"""Pools and mounts for tests, made by the command line, and always taken away again.

The program is the `dfusepy` beside the interpreter; DFUSEPY names another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dfusepy import mounts, service

PROGRAM = os.environ.get("DFUSEPY") or str(Path(sys.executable).parent / "dfusepy")
TIMEOUT_S = 120
POOL_SIZE = "768M"
Completed = subprocess.CompletedProcess[str]


def why_not() -> str:
    """Why nothing can be mounted here; "" where it can."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as err:
        return f"/dev/fuse: {err.strerror}"
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        return "neither root nor fusermount3"
    return "" if os.path.exists(PROGRAM) else f"{PROGRAM} is not installed"


def wait_for_end(pid: int, timeout_s: float = TIMEOUT_S) -> bool:
    """Waits for a process that is not our child."""
    return service.wait_for_end(pid, timeout_s)


def end_at_once(pids: list[int]) -> None:
    """kill -9 of all: none does anything after another's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    for pid in pids:
        assert wait_for_end(pid), f"process {pid} outlived SIGKILL"


def processes_of(folder: Path) -> list[str]:
    """Processes that were started with a path below the folder: "PID command"."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{folder}/" in words and "dfusepy" in words:
                found.append(f"{path.parent.name} {words.strip()}")
    return found


@dataclass
class Home:
    """A data directory of the test's own, and the program that uses it."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *words: object, status: int | None = 0, timeout: float = TIMEOUT_S) -> Completed:
        """Runs `dfusepy WORDS`; its exit status must be `status` (None: any)."""
        done = subprocess.run(
            [PROGRAM, *map(str, words)],
            env={**os.environ, "DFUSEPY_HOME": str(self.path), **self.env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if status is not None:
            told = f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
            assert done.returncode == status, told + self.logs()
        return done

    def refuse(self, *words: object, status: int = 1) -> str:
        """Runs a command that must fail; returns what it said."""
        return self.run(*words, status=status).stderr

    def logs(self) -> str:
        texts = [path.read_text()[-4000:] for path in sorted((self.path / "log").glob("*.log"))]
        return "\n--- log ---\n" + "\n".join(texts) if texts else ""

    def services(self) -> list[service.ServiceRecord]:
        """The services that live, of pools of this directory."""
        folders = (self.path / "run", service.short_dir())  # where names would be too long
        paths = [path for folder in folders for path in folder.glob("*.service")]
        records = [service.read_record(path.with_suffix(".sock")) for path in paths]
        return [r for r in records if r is not None and r.pool.startswith(f"{self.path}/")]

    def stop_services(self) -> None:
        """Ends all services, whoever uses them."""
        for record in self.services():
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
            if not wait_for_end(record.pid, 30):
                os.kill(record.pid, signal.SIGKILL)
                wait_for_end(record.pid, 10)

    def clean(self) -> None:
        """Ends what still lives, takes away what is still mounted below, removes all files."""
        for path in (self.path / "run").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                record = mounts.MountRecord(**json.loads(path.read_text()))
                if record.alive:
                    os.kill(record.pid, signal.SIGTERM)
                    if not wait_for_end(record.pid, 30):
                        os.kill(record.pid, signal.SIGKILL)
        root = os.path.realpath(self.path.parent) + "/"
        for mount in reversed(list(mounts.kernel_mounts())):
            if mount.ours and mount.mountpoint.startswith(root):
                with contextlib.suppress(OSError):
                    mounts.kernel_unmount(mount.mountpoint, lazy=True)
        self.stop_services()
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass
class Mount:
    """A container, mounted on `path`."""

    home: Home
    name: str
    path: Path
    options: tuple[str, ...] = ()

    def mount(self, *options: str) -> None:
        """Mounts it, also in place of a dead mount."""
        if mounts.kernel_mount_at(mounts.canonical(self.path)):
            self.home.run("umount", self.path)
        self.home.run("mount", self.name, self.path, *self.options, *options)

    def umount(self) -> None:
        self.home.run("umount", self.path)

    def remount(self, *options: str) -> None:
        self.umount()
        self.mount(*options)

    @property
    def pid(self) -> int:
        [path] = (self.home.path / "run").glob("*.json")
        return int(json.loads(path.read_text())["pid"])

    def signal(self, number: int) -> None:
        """Sends a signal and waits for the end of the process."""
        pid = self.pid
        os.kill(pid, number)
        assert wait_for_end(pid), f"process {pid} outlived signal {number}"

    def kill(self) -> None:
        """kill -9: leaves a dead mount. One in-process loses what was only in memory, one on a
        session loses nothing."""
        self.signal(signal.SIGKILL)

    def crash(self) -> None:
        """Mount and engine die at once; what was only in memory is lost."""
        end_at_once([self.pid, *self._service_pids()])

    @property
    def worker_pid(self) -> int:
        """The process with the engine: the mount's own, or the worker of its service."""
        served = self.query()["service"]
        return int(str(served["worker_pid"])) if served else self.pid

    def kill_worker(self) -> None:
        """kill -9 of the service's worker: the mount goes on with the next one."""
        pid = self.worker_pid
        assert pid != self.pid, "the mount is in-process: it has no worker"
        os.kill(pid, signal.SIGKILL)
        assert wait_for_end(pid), f"worker {pid} outlived SIGKILL"

    def kill_service(self) -> None:
        """kill -9 of supervisor and worker at once, as a crash of the host would: what was only in
        memory is lost."""
        pids = self._service_pids()
        assert pids, "there is no service"
        end_at_once(pids)

    def _service_pids(self) -> list[int]:
        """Supervisors and workers of the pool's services."""
        pids = []
        for record in self.home.services():
            children = Path(f"/proc/{record.pid}/task/{record.pid}/children").read_text()
            pids += [record.pid, *map(int, children.split())]
        return pids

    def check(self) -> list[str]:
        """Faults that `container check` finds; a dead mount frees the pool."""
        done = self.home.run("container", "check", self.name, "--data", "--json", status=None)
        assert done.stdout, done.stderr
        faults: list[str] = json.loads(done.stdout)["faults"]
        return faults

    def query(self) -> dict[str, dict[str, object]]:
        """`fs query`; "service" is None where the mount is in-process."""
        answer: dict[str, dict[str, object]] = json.loads(
            self.home.run("fs", "query", self.path, "--json").stdout
        )
        return answer


def make_home(base: Path) -> Iterator[Home]:
    home = Home(base / "home", {"DFUSEPY_SERVICE_IDLE_S": "20"})
    home.path.mkdir()
    (base / "m").mkdir()
    try:
        yield home
    finally:
        home.clean()


def make_container(home: Home, size: str = POOL_SIZE) -> Mount:
    home.run("pool", "create", "demo", "--size", size)
    home.run("container", "create", "demo/data")
    home.stop_services()  # nobody has the pool now
    return Mount(home, "demo/data", home.path.parent / "m")
