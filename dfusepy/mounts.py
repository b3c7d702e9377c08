# SPDX-License-Identifier: Apache-2.0
"""Which mounts are alive: the kernel's table of mounts, and one small record for each of ours.

A mount process keeps `PID.json` in the runtime directory while it lives. A record whose process is
gone (same pid, other start time) is removed by whoever meets it. Nothing here touches a mount point
itself: a path below a dead or hanging mount must not be looked at to be judged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dfusepy import pools

FSTYPE = "fuse.dfusepy"
SYSTEM_RUN = Path("/run/dfusepy")

_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8  # <sys/mount.h>


# -- the kernel's table ------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelMount:
    """One line of /proc/self/mountinfo."""

    mountpoint: str
    fstype: str
    source: str
    device: str  # MAJOR:MINOR

    @property
    def ours(self) -> bool:
        return self.fstype == FSTYPE


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def kernel_mounts() -> Iterator[KernelMount]:
    """All mounts that this process sees, in the order in which they were made."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            fields, rest = left.split(), right.split()
            yield KernelMount(_unescape(fields[4]), rest[0], _unescape(rest[1]), fields[2])


def kernel_mount_at(mountpoint: str) -> KernelMount | None:
    """The topmost mount on exactly this path (which must be canonical)."""
    found = None
    for mount in kernel_mounts():
        if mount.mountpoint == mountpoint:
            found = mount
    return found


def is_dead(mountpoint: str) -> bool:
    """Whether the mount's process has ended without unmounting. A stat could be answered from what
    the kernel remembers; statvfs always asks."""
    try:
        os.statvfs(mountpoint)
    except OSError as err:
        return err.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def canonical(path: str | os.PathLike[str]) -> str:
    """The path as the kernel's table has it, without a look at the last component, which may be a
    dead mount: only its parent is resolved."""
    absolute = os.path.abspath(path)
    if absolute == "/":
        return absolute
    parent, name = os.path.split(absolute)
    if os.path.join(os.path.realpath(parent), name) in {m.mountpoint for m in kernel_mounts()}:
        return os.path.join(os.path.realpath(parent), name)
    return os.path.realpath(absolute)


# -- our records -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MountRecord:
    """What a mount process says about itself."""

    pool: str  # its directory, canonical
    label: str
    container: str
    snapshot: str | None
    mountpoint: str
    read_only: bool
    pid: int
    started: str  # boot and start time of the process: tells a pid from its next owner
    log: str | None
    session: bool = False  # with the pool's service; else it has the pool to itself

    @property
    def alive(self) -> bool:
        return self.started == process_started(self.pid)

    @property
    def name(self) -> str:
        at = f"@{self.snapshot}" if self.snapshot else ""
        return f"{self.label}/{self.container}{at}"


def process_started(pid: int) -> str | None:
    """Identifies a process beyond its pid; None when there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def runtime_dir() -> Path:
    """Where this user's mounts keep their records."""
    if os.environ.get("DFUSEPY_HOME"):
        return pools.home() / "run"
    if os.geteuid() == 0:
        return SYSTEM_RUN
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and os.path.isdir(base):
        return Path(base) / "dfusepy"
    return pools.home() / "run"


def runtime_dirs() -> list[Path]:
    """Where records are looked for: this user's, and the system's."""
    own = runtime_dir()
    return [own] if os.environ.get("DFUSEPY_HOME") or own == SYSTEM_RUN else [own, SYSTEM_RUN]


def register(record: MountRecord) -> Path:
    """Writes the record of a mount; `unregister` removes it. Raises OSError."""
    folder = runtime_dir()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = folder / f"{record.pid}.json"
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(record), indent=1) + "\n")
    draft.rename(path)
    path.with_suffix(".failed").unlink(missing_ok=True)
    return path


def unregister(path: Path, failure: str = "") -> None:
    """Removes a record. A failed last flush stays beside it, for `dfusepy umount` to tell."""
    if failure:
        path.with_suffix(".failed").write_text(failure + "\n")
    path.unlink(missing_ok=True)


def take_failure(pid: int) -> str:
    """What a mount process that has ended left to say, once; "" when it ended well."""
    for folder in runtime_dirs():
        with contextlib.suppress(OSError):
            path = folder / f"{pid}.failed"
            text = path.read_text().strip()
            path.unlink()
            return text
    return ""


def live_mounts() -> list[MountRecord]:
    """The mounts whose process lives, of this user and of the system. Removes stale records."""
    found = []
    for folder in runtime_dirs():
        for path in sorted(folder.glob("*.json")):
            try:
                record = MountRecord(**json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue  # not ours, or just being removed
            if record.alive:
                found.append(record)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
    return found


def mounts_of_pool(path: str | os.PathLike[str]) -> list[MountRecord]:
    """The mounts of containers of the pool in this directory."""
    wanted = os.path.realpath(path)
    return [record for record in live_mounts() if record.pool == wanted]


def holder_of_pool(path: str | os.PathLike[str]) -> MountRecord | None:
    """The mount that has the pool to itself, if one does: nobody else can open it meanwhile."""
    return next((record for record in mounts_of_pool(path) if not record.session), None)


def mount_at(mountpoint: str) -> MountRecord | None:
    """The record of the mount on this canonical path."""
    return next((record for record in live_mounts() if record.mountpoint == mountpoint), None)


# -- unmounting --------------------------------------------------------------------------------


def kernel_unmount(mountpoint: str, lazy: bool = False) -> None:
    """Takes a mount out of the tree; works on a dead one too. Returns before its process has ended.

    lazy: at once, also where programs still use it. Raises OSError (EBUSY where they do).
    """
    if os.geteuid() != 0:
        _fusermount(mountpoint, lazy)
        return
    _umount2(mountpoint, _MNT_DETACH if lazy else 0)


def abort(mountpoint: str) -> None:
    """Ends the kernel's connection to a mount, whatever waits in it: everybody there gets an error.

    Raises OSError (ENOENT: it is not mounted; EPERM).
    """
    mount = kernel_mount_at(mountpoint)
    if mount is None:
        raise FileNotFoundError(errno.ENOENT, "it is not mounted")
    number = mount.device.rpartition(":")[2]
    try:
        Path(f"/sys/fs/fuse/connections/{number}/abort").write_text("1")
    except FileNotFoundError:  # the kernel's control file system is not mounted
        try:
            _umount2(mountpoint, _MNT_FORCE)
        except OSError as err:
            if err.errno != errno.EBUSY:  # programs have it open: they get errors, it stays
                raise


def _umount2(mountpoint: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags | _UMOUNT_NOFOLLOW) != 0:
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err), mountpoint)


def _fusermount(mountpoint: str, lazy: bool) -> None:
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "fusermount3 is missing: install the package fuse3")
    command = [program, "-u", *(["-z"] if lazy else []), "--", mountpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        code = errno.EBUSY if "busy" in done.stderr.lower() else errno.EPERM
        raise OSError(code, done.stderr.strip() or "fusermount3 failed", mountpoint)


def users_of(mountpoint: str) -> list[str]:
    """Processes that use a mount ("PID name"), as far as this user may see them. Reads only
    links in /proc: a hanging mount cannot hang the caller."""
    inside = mountpoint.rstrip("/") + "/"
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root", f"/proc/{pid}/exe"]
        with contextlib.suppress(OSError):
            links += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target == mountpoint or target.startswith(inside):
                with contextlib.suppress(OSError):
                    found.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}")
                break
    return found
