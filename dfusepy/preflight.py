# SPDX-License-Identifier: Apache-2.0
"""What a mount is asked to be, and the checks that can be made before anything is opened."""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from dfusepy import mounts

FUSE_DEVICE = os.makedev(10, 229)  # Documentation/admin-guide/devices.txt of Linux

CACHE_MODES = ("keep", "auto", "direct")

# Every change passes the kernel on its way, or the engine has the kernel forget what it changes: so
# what the kernel remembers, absent names included, is right until the kernel itself drops it. A
# minute makes the traffic of repeated look-ups vanish.
TIMEOUT_S = 60.0


class MountError(Exception):
    """What was being done, why it failed, and what to do."""

    def __init__(self, doing: str, why: str, todo: str = "") -> None:
        super().__init__(f"{doing}: {why}")
        self.doing, self.why, self.todo = doing, why, todo


@dataclass
class MountOptions:
    """Everything that a mount may be told."""

    label: str  # the pool's, for people
    pool: Path  # its directory
    container: str
    mountpoint: str  # canonical
    snapshot: str | None = None
    read_only: bool = False
    allow_other: bool = False
    nonempty: bool = False
    attr_timeout: float = TIMEOUT_S
    entry_timeout: float = TIMEOUT_S
    negative_timeout: float = TIMEOUT_S
    cache: str = "keep"
    arena_bytes: int = 0
    dirty_bytes: int = 0
    foreground: bool = False
    debug: bool = False
    log_file: Path | None = None
    in_process: bool = False  # an engine of its own in place of a session with the pool's service
    kernel_words: tuple[str, ...] = ()  # nosuid, noexec ...: passed on as they are

    @property
    def name(self) -> str:
        at = f"@{self.snapshot}" if self.snapshot else ""
        return f"{self.label}/{self.container}{at}"

    @property
    def doing(self) -> str:
        return f"mounting {self.name} on {self.mountpoint}"

    def fuse_words(self, read_only: bool) -> set[str]:
        """The options that libfuse and the kernel get."""
        source = re.sub(r"[^A-Za-z0-9_./@-]", "_", self.name)  # libfuse takes commas apart
        words = {f"fsname={source}", "subtype=dfusepy", "default_permissions"}
        words.add("ro" if read_only else "rw")
        words |= {"allow_other"} if self.allow_other else set()
        words |= {"debug"} if self.debug else set()
        return words | set(self.kernel_words)


def check(options: MountOptions) -> None:
    """All that can be known before the pool is opened. Raises MountError; changes nothing."""
    _check_device(options.doing)
    _check_mountpoint(options)
    if os.geteuid() != 0:
        _check_user(options)
    if not options.pool.is_dir():
        raise MountError(
            options.doing,
            f"there is no pool in {options.pool}",
            "`dfusepy pool list` shows the pools.",
        )
    check_holder(options)


def check_holder(options: MountOptions) -> None:
    """Refuses a pool that another mount of ours has to itself, and for a mount that wants it to
    itself one that is used at all."""
    others = mounts.mounts_of_pool(options.pool)
    holder = mounts.holder_of_pool(options.pool)
    if holder is None and others and options.in_process:
        holder = others[0]
    if holder is not None:
        raise MountError(
            options.doing,
            f"the pool is in use by the mount of {holder.name} on {holder.mountpoint} "
            f"(process {holder.pid})",
            f"That mount and --in-process do not go together: `dfusepy umount "
            f"{holder.mountpoint}` frees the pool.",
        )


def check_writer(options: MountOptions) -> None:
    """Refuses a second mount that writes to the same container, and names the first."""
    for other in mounts.mounts_of_pool(options.pool):
        same = other.container == options.container and other.snapshot is None
        if same and not other.read_only:
            raise MountError(
                options.doing,
                f"it is mounted on {other.mountpoint} (process {other.pid})",
                f"One mount writes to a container: `dfusepy umount {other.mountpoint}` makes room, "
                "and --read-only mounts may be many.",
            )


def _check_device(doing: str) -> None:
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        device = os.fstat(fd).st_rdev
        os.close(fd)
    except FileNotFoundError:
        raise MountError(
            doing,
            "there is no /dev/fuse",
            "Load the kernel module (`modprobe fuse`); give a container the device "
            "(`--device /dev/fuse --cap-add SYS_ADMIN`).",
        ) from None
    except PermissionError:
        raise MountError(
            doing, "this user may not open /dev/fuse", "Ask the administrator, or mount as root."
        ) from None
    except OSError as err:
        raise MountError(
            doing,
            f"/dev/fuse cannot be used: {err.strerror}",
            "Is FUSE in this kernel (`modprobe fuse`)?",
        ) from None
    if device != FUSE_DEVICE:
        raise MountError(doing, "/dev/fuse is not the FUSE device", "mknod /dev/fuse c 10 229")


def _check_mountpoint(options: MountOptions) -> None:
    path, doing = options.mountpoint, options.doing
    other = mounts.kernel_mount_at(path)
    if other is not None and mounts.is_dead(path):
        program = "dfusepy umount" if other.ours else "umount"
        why, todo = f"a dead mount of {other.source} is in the way", f"`{program} {path}` ends it."
        raise MountError(doing, why, todo)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise MountError(doing, "the mount point does not exist", f"mkdir -p {path}") from None
    except OSError as err:
        raise MountError(doing, f"the mount point cannot be used: {err.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise MountError(doing, "the mount point is not a directory")
    if other is not None:
        of = f"{other.source} ({other.fstype})"
        raise MountError(
            doing,
            f"{of} is already mounted there",
            f"`dfusepy umount {path}` unmounts it." if other.ours else "",
        )
    if not options.nonempty and os.access(path, os.R_OK) and any(os.scandir(path)):
        raise MountError(
            doing,
            "the mount point is not empty, and its contents would be hidden",
            "Choose an empty directory, or say --nonempty.",
        )


def _check_user(options: MountOptions) -> None:
    """What only root may do without help."""
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        raise MountError(
            options.doing,
            "fusermount3 is missing, and only root mounts without it",
            "Install the package fuse3.",
        )
    if not os.access(options.mountpoint, os.W_OK):
        raise MountError(
            options.doing,
            "the mount point is not writable for this user",
            "FUSE lets users mount only on directories of their own.",
        )
    if options.allow_other and not _user_allow_other():
        raise MountError(
            options.doing,
            "/etc/fuse.conf does not let users say allow_other",
            "Add the line user_allow_other to it, or mount as root.",
        )


def _user_allow_other() -> bool:
    try:
        lines = Path("/etc/fuse.conf").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
