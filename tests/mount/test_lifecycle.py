# SPDX-License-Identifier: Apache-2.0
"""From mount to unmount: persistence, signals, death, and what is said about it."""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import PROGRAM, Home, Mount, make_container, wait_for_end

from dfusepy import mounts


def mounted(path: Path) -> bool:
    return mounts.kernel_mount_at(os.path.realpath(path)) is not None


# -- what is written stays -----------------------------------------------------------------------


def test_everything_is_there_after_a_remount(mnt: Mount) -> None:
    root = mnt.path
    (root / "file").write_bytes(b"data" * 1000)
    (root / "large").write_bytes(bytes(range(256)) * 12_000)
    (root / "d").mkdir(mode=0o711)
    (root / "d" / "below").write_text("below")
    os.link(root / "file", root / "d" / "link")
    os.symlink("d/below", root / "symlink")
    os.mkfifo(root / "fifo", 0o600)
    os.setxattr(root / "file", "user.x", b"value")
    os.chmod(root / "file", 0o640)
    os.utime(root / "file", ns=(123_456_789_012, 987_654_321_098))

    def state() -> object:
        names = sorted(path for path in root.rglob("*"))
        stats = [os.lstat(path) for path in names]
        return [
            (p.name, s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            for p, s in zip(names, stats, strict=True)
        ]

    before = state()
    mnt.remount()
    assert state() == before
    assert (root / "d" / "link").read_bytes() == b"data" * 1000
    assert (root / "large").read_bytes() == bytes(range(256)) * 12_000
    assert (root / "symlink").read_text() == "below"
    assert os.getxattr(root / "file", "user.x") == b"value"


@pytest.mark.parametrize("cache", ["keep", "auto", "direct"])
def test_cache_modes(unmounted: Mount, cache: str) -> None:
    unmounted.mount("--cache", cache)
    path = unmounted.path / "file"
    for version in range(5):
        path.write_bytes(b"%d" % version * 10_000)
        assert path.read_bytes() == b"%d" % version * 10_000
        with open(path, "r+b") as writer, open(path, "rb") as reader:
            writer.write(b"start")
            writer.flush()
            assert reader.read(5) == b"start"
    assert unmounted.query()["mount"]["cache"] == cache


def test_zero_timeouts(unmounted: Mount) -> None:
    zero = [f"--{name}-timeout=0" for name in ("attr", "entry", "negative")]
    unmounted.mount(*zero)
    assert unmounted.query()["mount"]["attr_timeout"] == 0
    path = unmounted.path / "file"
    assert not path.exists()
    path.write_bytes(b"x")
    assert path.stat().st_size == 1
    path.unlink()
    assert not path.exists()


# -- unmounting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_whole(mnt: Mount, number: int) -> None:
    (mnt.path / "file").write_bytes(b"kept" * 100_000)
    mnt.signal(number)
    assert not mounted(mnt.path)
    assert list((mnt.home.path / "run").glob("*.json")) == []
    mnt.mount()
    assert (mnt.path / "file").read_bytes() == b"kept" * 100_000


def test_more_signals_lose_nothing(mnt: Mount) -> None:
    for number in range(200):
        (mnt.path / str(number)).write_bytes(os.urandom(64_000))
    pid = mnt.pid
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP) * 5:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    assert wait_for_end(pid)
    mnt.mount()
    assert len(os.listdir(mnt.path)) == 200
    assert all((mnt.path / str(n)).stat().st_size == 64_000 for n in range(200))


def test_a_signal_ends_a_mount_in_use(mnt: Mount) -> None:
    path = mnt.path / "mapped"
    path.write_bytes(bytes(1 << 20))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:6] = b"mapped"  # dirty in the kernel only
        mnt.signal(signal.SIGTERM)
        with pytest.raises(OSError):
            os.pwrite(file.fileno(), b"late", 0)
    mnt.mount()
    assert path.read_bytes()[:6] == b"mapped"


def test_umount_of_a_mount_in_use_is_refused(mnt: Mount) -> None:
    path = mnt.path / "file"
    with open(path, "wb") as file:
        said = mnt.home.refuse("umount", mnt.path)
        assert "in use by" in said
        assert str(os.getpid()) in said
        assert "--lazy" in said
        file.write(b"goes on")
    assert path.read_bytes() == b"goes on"


def test_lazy_umount(mnt: Mount) -> None:
    pid = mnt.pid
    with open(mnt.path / "file", "wb") as file:
        file.write(b"before")
        assert "detached" in mnt.home.run("umount", "--lazy", mnt.path).stdout
        assert not mounted(mnt.path)
        file.write(b" and after")
    assert wait_for_end(pid)
    mnt.mount()
    assert (mnt.path / "file").read_bytes() == b"before and after"


@pytest.mark.root
def test_umount_8_flushes_too(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"x" * 300_000)
    pid = mnt.pid
    subprocess.run(["umount", mnt.path], check=True)
    assert wait_for_end(pid)
    mnt.mount()
    assert (mnt.path / "file").stat().st_size == 300_000


def test_umount_frees_the_pool(mnt: Mount) -> None:
    mnt.umount()
    assert mnt.home.run("container", "list", "demo").returncode == 0


def test_unlinked_files_leave_no_orphans(mnt: Mount) -> None:
    for number in range(3000):
        (mnt.path / str(number)).touch()
    assert len(os.listdir(mnt.path)) == 3000
    with open(mnt.path / "0", "rb"):
        for number in range(3000):
            (mnt.path / str(number)).unlink()
        time.sleep(0.5)
        assert mnt.query()["fs"]["orphans"] == 1
    for _ in range(50):
        if mnt.query()["fs"]["orphans"] == 0:
            break
        time.sleep(0.1)
    assert mnt.query()["fs"]["orphans"] == 0


# -- death ---------------------------------------------------------------------------------------


def test_a_dead_mount_is_cleaned_away(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"x")
    os.sync()
    mnt.kill()
    with pytest.raises(OSError) as caught:
        os.listdir(mnt.path)
    assert caught.value.errno == errno.ENOTCONN
    assert "dead" in mnt.home.refuse("fs", "query", mnt.path)
    said = mnt.home.refuse("mount", mnt.name, mnt.path)
    assert "dead mount" in said
    assert "dfusepy umount" in said
    assert "dead mount is gone" in mnt.home.run("umount", mnt.path).stdout
    assert not mounted(mnt.path)
    mnt.mount()


def test_a_dead_mount_in_use_is_cleaned_away(mnt: Mount) -> None:
    fd = os.open(mnt.path / "file", os.O_CREAT | os.O_WRONLY)
    os.stat(mnt.path)  # the kernel remembers this and would go on answering
    mnt.kill()
    assert "dead mount" in mnt.home.refuse("mount", mnt.name, mnt.path)
    assert "dead mount is gone" in mnt.home.run("umount", mnt.path).stdout
    mnt.mount()
    with pytest.raises(OSError):
        os.fsync(fd)
    with pytest.raises(OSError):
        os.close(fd)


def test_a_stale_record_is_removed(mnt: Mount) -> None:
    [record] = (mnt.home.path / "run").glob("*.json")
    mnt.kill()
    assert record.exists()
    mnt.home.run("pool", "list")
    assert not record.exists()


# -- in the foreground ---------------------------------------------------------------------------


def test_foreground(unmounted: Mount) -> None:
    env = {**os.environ, "DFUSEPY_HOME": str(unmounted.home.path)}
    words = [PROGRAM, "mount", "--foreground", unmounted.name, str(unmounted.path)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert b"is mounted on" in server.stdout.readline()
        (unmounted.path / "file").write_bytes(b"x")
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
    assert server.returncode == 0
    assert b"flushed and closed" in said
    assert not mounted(unmounted.path)


def test_background_leaves_the_command_s_pipes(unmounted: Mount) -> None:
    # `run` waits for the end of both pipes: it would hang if the mount kept them.
    started = time.monotonic()
    unmounted.mount()
    assert time.monotonic() - started < 30
    pid = unmounted.pid
    links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)}
    assert links == {"/dev/null", str(unmounted.home.path / "log" / "demo-data.log")}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_log_file(unmounted: Mount, tmp_path: Path) -> None:
    unmounted.mount("--log-file", str(tmp_path / "own.log"), "--debug")
    os.listdir(unmounted.path)
    unmounted.umount()
    text = (tmp_path / "own.log").read_text()
    assert "mounted demo/data" in text
    assert "LOOKUP" in text or "OPENDIR" in text
    assert not (unmounted.home.path / "log" / "demo-data.log").exists()


# -- who has the pool ----------------------------------------------------------------------------


def test_a_mount_in_process_has_the_pool_to_itself(unmounted: Mount, tmp_path: Path) -> None:
    mnt = unmounted
    mnt.mount("--in-process")
    other = tmp_path / "other"
    other.mkdir()
    for container in ("demo/data", "demo/second"):
        said = mnt.home.refuse("mount", container, other)
        assert f"mount of demo/data on {mnt.path}" in said
        assert str(mnt.pid) in said
        assert f"dfusepy umount {mnt.path}" in said
    assert str(mnt.path) in mnt.home.refuse("container", "create", "demo/second")
    (mnt.path / "still").write_bytes(b"works")


def test_commands_work_while_it_is_mounted(unmounted: Mount) -> None:
    home = unmounted.home
    unmounted.mount()
    (unmounted.path / "file").write_bytes(b"data" * 10_000)
    home.run("container", "create", "demo/second")
    assert len(json.loads(home.run("container", "list", "demo", "--json").stdout)) == 2
    assert json.loads(home.run("pool", "query", "demo", "--json").stdout)["containers"] == 2
    home.run("container", "snapshot", "create", "demo/data", "monday")
    home.run("container", "check", "demo/data", "--data")
    home.run("container", "set-prop", "demo/data", "comment=mounted")
    home.run("container", "destroy", "demo/second", "--force")
    assert str(unmounted.path) in home.refuse("pool", "destroy", "demo", "--force")
    assert str(unmounted.path) in home.refuse("service", "stop", "demo")
    said = home.refuse("container", "destroy", "demo/data", "--force")
    assert "container data is open" in said
    assert str(unmounted.path) in said
    assert (unmounted.path / "file").read_bytes() == b"data" * 10_000
    state = json.loads(home.run("service", "status", "demo", "--json").stdout)
    assert [mount["mountpoint"] for mount in state["mounted"]] == [str(unmounted.path)]
    unmounted.umount()
    home.run("pool", "destroy", "demo", "--force")
    assert home.services() == []


def test_pool_list_names_the_mount(mnt: Mount) -> None:
    [line] = json.loads(mnt.home.run("pool", "list", "--json").stdout)
    assert line["mountpoints"] == [str(mnt.path)]


# -- read-only and snapshots ---------------------------------------------------------------------


def test_read_only(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"data")
    mnt.remount("--read-only")
    assert (mnt.path / "file").read_bytes() == b"data"
    for change in (
        lambda: (mnt.path / "file").write_bytes(b"x"),
        lambda: (mnt.path / "new").mkdir(),
        lambda: os.unlink(mnt.path / "file"),
        lambda: os.chmod(mnt.path / "file", 0),
        lambda: os.setxattr(mnt.path / "file", "user.x", b""),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert mnt.query()["mount"]["read_only"] is True


def test_snapshot(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"then")
    (mnt.path / "gone").write_bytes(b"still here then")
    mnt.umount()
    mnt.home.run("container", "snapshot", "create", "demo/data", "monday")
    mnt.mount()
    (mnt.path / "file").write_bytes(b"now, and longer")
    (mnt.path / "gone").unlink()
    (mnt.path / "new").touch()
    mnt.remount("--snapshot", "monday")
    assert sorted(os.listdir(mnt.path)) == ["file", "gone"]
    assert (mnt.path / "file").read_bytes() == b"then"
    with pytest.raises(OSError) as caught:
        (mnt.path / "file").write_bytes(b"x")
    assert caught.value.errno == errno.EROFS
    source = mounts.kernel_mount_at(os.path.realpath(mnt.path))
    assert source is not None
    assert source.source == "demo/data@monday"
    mnt.remount()
    assert (mnt.path / "file").read_bytes() == b"now, and longer"


# -- rest ----------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_mount_rests(mnt: Mount) -> None:
    (mnt.path / "file").write_bytes(b"x" * 100_000)
    time.sleep(3)  # write-back and checkpoint of that
    before = cpu_seconds(mnt.pid)
    time.sleep(5)
    # One clock tick is 0.2 % of these five seconds; the figure itself is the benchmark's.
    assert cpu_seconds(mnt.pid) - before < 0.1


def test_slow_calls_do_not_hold_up_others(mnt: Mount) -> None:
    stop = threading.Event()

    def sync() -> None:
        with open(mnt.path / "synced", "wb") as file:
            while not stop.is_set():
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        for number in range(200):
            (mnt.path / str(number)).touch()
        assert len(os.listdir(mnt.path)) == 201
    finally:
        stop.set()
        thread.join()


@pytest.mark.root
def test_sequential_reads_use_large_requests(mnt: Mount) -> None:
    mount = mounts.kernel_mount_at(os.path.realpath(mnt.path))
    assert mount is not None
    assert Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").read_text().strip() == "1024"


@pytest.mark.root
def test_other_users(home: Home) -> None:
    mount = make_container(home, "128M")

    def stat_as_nobody() -> bool:
        command = ["/usr/bin/stat", "."]
        return subprocess.run(command, cwd=mount.path, user=65534, check=False).returncode == 0

    mount.mount()
    assert not stat_as_nobody()
    mount.remount("--allow-other")
    assert stat_as_nobody()


# -- a failing device -----------------------------------------------------------------------------


@pytest.mark.root
def test_a_failing_device_is_told_by_fsync_and_umount(mnt: Mount) -> None:
    mnt.remount("--in-process")
    (mnt.path / "before").write_bytes(b"safe")
    os.sync()
    mnt.remount("--in-process")
    # Every write of the mount's process into the device then fails with EFBIG.
    resource.prlimit(mnt.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    with open(mnt.path / "lost", "wb") as file:
        file.write(b"x" * 300_000)
        file.flush()
        for _ in range(2):  # until the data has been rewritten
            with pytest.raises(OSError) as caught:
                os.fsync(file.fileno())
            assert caught.value.errno in (errno.EIO, errno.EFBIG, errno.EROFS)
    assert mnt.query()["pool"]["io_errors"] != 0
    said = mnt.home.refuse("umount", mnt.path)
    assert "flushing the file system" in said
    assert "may be lost" in said
    assert not mounted(mnt.path)
    mnt.mount("--in-process")
    assert (mnt.path / "before").read_bytes() == b"safe"
    assert mnt.query()["pool"]["damage"] == ""
