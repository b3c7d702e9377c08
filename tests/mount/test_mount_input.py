# SPDX-License-Identifier: Apache-2.0
"""What cannot be mounted: each its own message and exit status, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import PROGRAM, Mount

from dfusepy import mounts

FAILED, USAGE = 1, 2


@pytest.fixture
def refused(unmounted: Mount):
    """refused(words, status): what a mount that must fail says; nothing is mounted or held then."""

    def call(*words: object, status: int = FAILED) -> str:
        said = unmounted.home.refuse("mount", *words, status=status)
        assert mounts.kernel_mount_at(os.path.realpath(unmounted.path)) is None
        assert list((unmounted.home.path / "run").glob("*.json")) == []
        assert "Traceback" not in said
        return said

    yield call
    unmounted.mount()  # a refused mount holds nothing
    (unmounted.path / "works").touch()


# -- the mount point -----------------------------------------------------------------------------


def test_missing(refused, unmounted: Mount, tmp_path: Path) -> None:
    said = refused(unmounted.name, tmp_path / "absent")
    assert "does not exist" in said
    assert "mkdir -p" in said


def test_not_a_directory(refused, unmounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a directory" in refused(unmounted.name, tmp_path / "file")


def test_not_empty(refused, unmounted: Mount) -> None:
    (unmounted.path / "something").touch()
    said = refused(unmounted.name, unmounted.path)
    assert "not empty" in said
    unmounted.mount("--nonempty")
    assert os.listdir(unmounted.path) == []
    unmounted.umount()
    assert os.listdir(unmounted.path) == ["something"]
    (unmounted.path / "something").unlink()


@pytest.mark.root
def test_mounted_already(refused, unmounted: Mount, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
    try:
        assert "tmpfs" in refused(unmounted.name, other)
        said = unmounted.home.refuse("umount", other)
        assert "not a container" in said
        assert "umount(8)" in said
    finally:
        subprocess.run(["umount", other], check=True)


def test_our_own_mount_is_there(mnt: Mount) -> None:
    said = mnt.home.refuse("mount", mnt.name, mnt.path)
    assert "demo/data" in said
    assert "already mounted there" in said


# -- pool, container, snapshot -------------------------------------------------------------------


def test_no_such_pool(refused, unmounted: Mount) -> None:
    said = refused("absent/data", unmounted.path)
    assert "no pool has this label" in said
    assert "pool list" in said
    assert "no directory" in refused("/absent/pool/data", unmounted.path)


def test_no_such_container(refused, unmounted: Mount) -> None:
    said = refused("demo/absent", unmounted.path)
    assert "no container 'absent'" in said
    assert "It has: data" in said


def test_no_such_snapshot(refused, unmounted: Mount) -> None:
    said = refused(unmounted.name, unmounted.path, "--snapshot", "absent")
    assert "no snapshot 'absent'" in said


def test_names_that_make_no_sense(refused, unmounted: Mount) -> None:
    assert "POOL/CONTAINER" in refused("demo", unmounted.path, status=USAGE)
    assert "legal" in refused("demo/-x", unmounted.path, status=USAGE)
    refused(unmounted.name, status=USAGE)


def test_a_directory_that_is_no_pool(refused, unmounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    said = refused(f"{tmp_path}/nothing/data", unmounted.path)
    assert "opening pool" in said


def flip(path: Path, off: int) -> None:
    with open(path, "r+b") as file:
        file.seek(off)
        byte = file.read(1)
        file.seek(off)
        file.write(bytes([byte[0] ^ 0xFF]))


def test_a_damaged_pool_is_mounted_read_only_and_says_so(unmounted: Mount) -> None:
    unmounted.mount()
    (unmounted.path / "file").write_bytes(b"readable")
    unmounted.umount()
    unmounted.home.stop_services()
    for copy in (0, 4096):
        flip(unmounted.home.path / "pools" / "demo" / "data", copy + 100)
    done = unmounted.home.run("mount", unmounted.name, unmounted.path)
    assert "damaged and mounted read-only: both superblocks" in done.stderr
    assert (unmounted.path / "file").read_bytes() == b"readable"
    with pytest.raises(OSError) as caught:
        (unmounted.path / "new").touch()
    assert caught.value.errno == errno.EROFS
    assert "DAMAGED, read-only" in unmounted.home.run("fs", "query", unmounted.path).stdout
    unmounted.umount()


def test_a_pool_that_cannot_be_read(unmounted: Mount) -> None:
    index = unmounted.home.path / "pools" / "demo" / "index" / "data.mdb"
    index.write_bytes(os.urandom(index.stat().st_size))
    said = unmounted.home.refuse("mount", unmounted.name, unmounted.path)
    assert "cannot open the index" in said
    assert "Nothing was changed" in said


def test_a_pool_without_its_device(unmounted: Mount) -> None:
    (unmounted.home.path / "pools" / "demo" / "data").unlink()
    said = unmounted.home.refuse("mount", unmounted.name, unmounted.path)
    assert "cannot open the device" in said
    assert "No such file" in said


HOLD = """
import sys
from dfusepy import engine
with engine.Pool.open(sys.argv[1], arena=64 << 20):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_pool_that_another_process_has_open(refused, unmounted: Mount) -> None:
    pool = unmounted.home.path / "pools" / "demo"
    command = [sys.executable, "-P", "-c", HOLD, str(pool)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        said = refused(unmounted.name, unmounted.path)
        holder.communicate()
    assert "in use by another process" in said


def test_by_path(unmounted: Mount, tmp_path: Path) -> None:
    pool = unmounted.home.path / "pools" / "demo"
    unmounted.home.run("mount", f"{pool}/data", unmounted.path)
    (unmounted.path / "x").touch()
    assert f"{pool}/data" in unmounted.home.run("umount", unmounted.path).stdout


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "word"),
    [
        (("-o", "frobnicate"), "unknown mount option 'frobnicate'"),
        (("-o", "ro,attr_timeout=soon"), "attr_timeout"),
        (("-o", "attr_timeout"), "needs a value"),
        (("-o", "ro=1"), "takes no value"),
        (("-o", "cache=never"), "keep, auto, direct"),
        (("-o", "arena=lots"), "not a size"),
        (("-o", "remount,ro"), "unmount it and mount it anew"),
        (("-o", "arena=64M,dirty=1G"), "exceeds"),
        (("-o", "snapshot=.."), "legal"),
        (("--attr-timeout", "-1"), "seconds"),
        (("--entry-timeout", "nan"), "seconds"),
        (("--cache", "never"), "never"),
        (("--arena", "1X"), "not a size"),
        (("--frobnicate",), "--frobnicate"),
    ],
)
def test_options_that_make_no_sense(refused, unmounted: Mount, option, word: str) -> None:
    assert word in refused(unmounted.name, unmounted.path, *option, status=USAGE)


def test_words_of_fstab(unmounted: Mount) -> None:
    unmounted.mount(
        "-o",
        "defaults,_netdev,noauto,user,nofail,x-systemd.automount,comment=mine,nosuid,noexec,"
        "attr_timeout=2.5,entry_timeout=3,negative_timeout=4,cache=auto,arena=64M,dirty=8M",
    )
    answer = unmounted.query()
    found = answer["mount"]
    assert (found["attr_timeout"], found["entry_timeout"], found["negative_timeout"]) == (2.5, 3, 4)
    assert found["cache"] == "auto"
    assert answer["pool"]["arena_bound_bytes"] == 64 << 20
    assert answer["pool"]["dirty_bound_bytes"] == 8 << 20
    script = unmounted.path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(PermissionError):
        subprocess.run([script], check=False)
    unmounted.remount("-o", "ro")
    with pytest.raises(OSError):
        script.unlink()


def test_an_option_wins_over_a_word(unmounted: Mount) -> None:
    unmounted.mount("-o", "cache=auto,attr_timeout=9", "--cache", "keep", "--attr-timeout", "0")
    found = unmounted.query()["mount"]
    assert (found["cache"], found["attr_timeout"]) == ("keep", 0)


# -- mount(8) ------------------------------------------------------------------------------------


def helper(mount: Mount, *words: object) -> subprocess.CompletedProcess[str]:
    """Calls mount.dfusepy as mount(8) does."""
    return subprocess.run(
        [str(Path(PROGRAM).parent / "mount.dfusepy"), *map(str, words)],
        env={**os.environ, "DFUSEPY_HOME": str(mount.home.path)},
        capture_output=True,
        text=True,
        check=False,
    )


needs_helper = pytest.mark.skipif(
    not (Path(PROGRAM).parent / "mount.dfusepy").exists(), reason="mount.dfusepy is not installed"
)


@needs_helper
def test_mount_helper(unmounted: Mount) -> None:
    done = helper(unmounted, unmounted.name, unmounted.path, "-o", "rw,nosuid,cache=auto", "-n")
    assert done.returncode == 0, done.stderr
    assert unmounted.query()["mount"]["cache"] == "auto"
    unmounted.umount()
    done = helper(unmounted, unmounted.name, unmounted.path, "-o", "bad_word")
    assert done.returncode == USAGE
    assert "bad_word" in done.stderr
    done = helper(unmounted, unmounted.name, unmounted.path, "-s", "-o", "bad_word,ro")
    assert done.returncode == 0, done.stderr
    assert unmounted.query()["mount"]["read_only"] is True


@needs_helper
def test_mount_helper_fakes(unmounted: Mount) -> None:
    assert helper(unmounted, unmounted.name, unmounted.path, "-f").returncode == 0
    assert mounts.kernel_mount_at(os.path.realpath(unmounted.path)) is None
    assert helper(unmounted, unmounted.name, "/absent", "-f").returncode == FAILED


# -- rights and devices --------------------------------------------------------------------------


def need_namespaces() -> None:
    """Skips where no mount namespace can be made: in containers without the right, in a chroot."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())


def in_namespace(mount: Mount, script: str) -> str:
    """Mounts after a change of the surroundings that only this command sees; must fail."""
    need_namespaces()
    command = f"{script} && exec {PROGRAM} mount {mount.name} {mount.path}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        env={**os.environ, "DFUSEPY_HOME": str(mount.home.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == FAILED, done.stdout + done.stderr
    return done.stderr


@pytest.mark.root
def test_no_dev_fuse(unmounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    said = in_namespace(unmounted, f"mount --bind {tmp_path}/dev /dev")
    assert "there is no /dev/fuse" in said
    assert "modprobe fuse" in said


@pytest.mark.root
def test_dev_fuse_that_is_something_else(unmounted: Mount, tmp_path: Path) -> None:
    said = in_namespace(unmounted, "mount --bind /proc/version /dev/fuse")
    assert "/dev/fuse" in said


@pytest.mark.root
def test_the_kernel_refuses(unmounted: Mount) -> None:
    """Root without the right to mount, as in a container: libfuse's own words reach the user."""
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-all", PROGRAM, "mount",
         unmounted.name, str(unmounted.path)],
        env={**os.environ, "DFUSEPY_HOME": str(unmounted.home.path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == FAILED
    assert "Operation not permitted" in done.stderr
    unmounted.mount()


# The program as an ordinary user: all is imported before, since that user may not be able to read
# this interpreter's files, nor to start it for a service, which is a fork here.
AS_USER = """
import argparse, json, logging.handlers, os, sys, types
import click.shell_completion, pyfuse3, trio
from dfusepy import background, engine, fs, invalidate, loop, mount, service, service_main
from dfusepy_cli import container, main, names, pool, progress, umount
import dfusepy_cli.mount
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

class Forked:
    def __init__(self, words, stdout, pass_fds, **rest):
        self._pid = os.fork()
        if self._pid == 0:
            os.setsid()
            os.dup2(stdout, 1)
            os.dup2(stdout, 2)
            sys.argv = words[2:]
            os._exit(service_main.main() or 0)

    def wait(self):
        os.waitpid(self._pid, 0)

service.subprocess = types.SimpleNamespace(Popen=Forked, DEVNULL=None)
main.main()
"""


def as_user(script: str, base: Path) -> str:
    """Runs a script with a /dev/fuse that users may open; $D is the program as an ordinary user."""
    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is not installed")
    need_namespaces()
    (base / "user.py").write_text(AS_USER)
    bind = f"mknod -m 666 {base}/fuse c 10 229 && mount --bind {base}/fuse /dev/fuse"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f"{bind}\n{script}"],
        env={
            **os.environ,
            "DFUSEPY_HOME": f"{base}/data",
            "D": f"{sys.executable} {base}/user.py",
        },
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.root
def test_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory(prefix="dfusepy-test-") as folder:
        base = Path(folder)
        for path in (base, base / "m", base / "r"):
            path.mkdir(exist_ok=True)
            os.chmod(path, 0o755)
        os.chown(base, 65534, 65534)
        os.chown(base / "m", 65534, 65534)
        said = as_user(
            f"""
            $D pool create demo --size 64M; $D container create demo/data
            $D mount demo/data {base}/m --allow-other || true
            $D mount demo/data {base}/r || true
            $D mount demo/data {base}/m
            cd {base}
            setpriv --reuid 65534 --regid 65534 --clear-groups \
                sh -c 'echo written >m/file; cat m/file'
            $D umount {base}/m
            """,
            base,
        )
    assert "user_allow_other" in said
    assert "not writable" in said
    assert "written\n" in said
    assert f"unmounted from {base}/m" in said


# -- umount and query ----------------------------------------------------------------------------


def test_nothing_to_unmount(unmounted: Mount) -> None:
    assert "nothing is mounted there" in unmounted.home.refuse("umount", unmounted.path)
    assert "nothing is mounted there" in unmounted.home.refuse("umount", "/absent/path")


def test_nothing_to_query(unmounted: Mount) -> None:
    assert "not on a mount of dfusepy" in unmounted.home.refuse("fs", "query", unmounted.path)
    assert "does not exist" in unmounted.home.refuse("fs", "query", "/absent/path")


def test_query_in_plain_words(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"x" * 100_000)
    text = mnt.home.run("fs", "query", mnt.path / "file").stdout
    for word in ("demo/data", "whole", "free", "unwritten data", "arena", "device", "journal"):
        assert word in text
    answer = mnt.query()
    assert answer["mount"]["pid"] == mnt.pid
    assert answer["pool"]["label"] == "demo"
    assert answer["pool"]["damage"] == ""
    assert answer["container"]["label"] == "data"


def test_log_that_cannot_be_written(refused, unmounted: Mount) -> None:
    said = refused(unmounted.name, unmounted.path, "--log-file", "/proc/absent/log")
    assert "log" in said
