# SPDX-License-Identifier: Apache-2.0
"""Services: found, started once, stopped, activated, refused in words."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from dfusepy import engine, mounts, service

Run = Callable[..., Result]

SMALL = 64 << 20


@pytest.fixture
def served(pool: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pool whose services end with the test."""
    monkeypatch.setenv("DFUSEPY_SERVICE_IDLE_S", "30")
    yield pool
    if pool.exists():
        service.stop(pool)


def connect(path: str | Path, pool: Path) -> engine.Pool:
    return engine.Pool.open(pool, socket=path)


def test_starts_once_and_stops(served: Path) -> None:
    assert service.find(served) is None
    assert service.running(served) is None
    path = service.ensure(served, arena=SMALL)
    assert service.ensure(served) == path == str(service.find(served))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    record = service.running(served)
    assert record is not None
    assert record.arena_bytes == SMALL
    with connect(path, served) as one, connect(path, served) as other:
        one.container_create("c")
        assert [info.label for info in other.containers()] == ["c"]
        assert one.service().supervisor_pid == record.pid
    assert service.stop(served)
    assert not service.stop(served)
    assert not os.path.exists(path)
    assert mounts.process_started(record.pid) is None
    with engine.Pool.open(served, arena=SMALL) as alone:
        assert [info.label for info in alone.containers()] == ["c"]


def test_starts_at_once_make_one(served: Path) -> None:
    code = "import sys; from dfusepy import service; print(service.ensure(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(served)]
    starters = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(6)]
    said = {starter.communicate(timeout=60)[0] for starter in starters}
    assert len(said) == 1
    with connect(service.ensure(served), served) as pool:
        assert pool.service().restarts == 0
    log = service.log_path("demo").read_text()
    assert log.count("serves pool") == 1


def test_ends_when_idle(served: Path) -> None:
    path = service.ensure(served, arena=SMALL, idle_s=0.5)
    record = service.running(served)
    assert record is not None
    with connect(path, served):
        time.sleep(1.0)
        assert service.find(served) is not None
    assert service.wait_for_end(record.pid, 10)
    assert service.find(served) is None
    assert not service.record_path(Path(path)).exists()


def test_comings_and_goings(served: Path) -> None:
    """Sessions that come while a service ends find the next one."""
    for _ in range(8):
        service.ensure(served, arena=SMALL, idle_s=0.05)
        time.sleep(0.05)
        with service.open_session(served) as pool:
            assert pool.query().label == "demo"


def test_a_pool_in_use_is_told(held: Path) -> None:
    with pytest.raises(service.ServiceError) as caught:
        service.ensure(held)
    assert caught.value.errno == errno.EBUSY
    lock = service.socket_path(held).with_suffix(".lock")
    end = time.monotonic() + 10  # the process that told the reason has yet to end
    while lock.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not lock.exists()


def test_a_held_pool_is_waited_for(served: Path) -> None:
    pool = engine.Pool.open(served, arena=SMALL)
    timer = threading.Timer(0.7, pool.close)
    timer.start()
    assert service.ensure(served, arena=SMALL)
    timer.join()


def test_a_pool_that_is_none(tmp_path: Path, home: Path) -> None:
    with pytest.raises(OSError) as caught:
        service.ensure(tmp_path)
    assert caught.value.errno in (errno.ENOENT, errno.EUCLEAN)


def test_a_damaged_pool_is_told_in_words(served: Path) -> None:
    for path in (served / "index").iterdir():
        path.write_bytes(b"\x5a" * path.stat().st_size)
    with pytest.raises(OSError) as caught:
        service.ensure(served)
    assert caught.value.strerror
    assert "log" not in caught.value.strerror  # the reason itself
    assert service.find(served) is None


def test_a_killed_worker_is_replaced(served: Path) -> None:
    path = service.ensure(served, arena=SMALL)
    with connect(path, served) as pool:
        pool.container_create("before")
        for round_ in range(1, 4):
            os.kill(pool.service().worker_pid, signal.SIGKILL)
            pool.container_create(f"after{round_}")
            assert pool.service().restarts == round_
        labels = [info.label for info in pool.containers()]
    assert labels == ["after1", "after2", "after3", "before"]


def test_a_killed_supervisor_leaves_no_process(served: Path) -> None:
    path = service.ensure(served, arena=SMALL)
    with connect(path, served) as pool:
        info = pool.service()
        pool.container_create("kept")
    os.kill(info.supervisor_pid, signal.SIGKILL)
    assert service.wait_for_end(info.worker_pid, 20)
    assert service.find(served) is None
    with service.open_session(served) as pool:  # in the place of the dead one's socket
        assert [info.label for info in pool.containers()] == ["kept"]


def test_the_supervisor_holds_nothing_of_the_pool(served: Path) -> None:
    with connect(service.ensure(served, arena=SMALL), served) as pool:
        pid = pool.service().supervisor_pid
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert [link for link in links if link.startswith(str(served))] == []
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


ACTIVATE = """
import os, socket, sys
path, pool = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as given:
    given.bind(path)
    given.listen()
    os.chmod(path, 0o666)
    print("listens", flush=True)
    os.dup2(given.fileno(), 3)
    os.set_inheritable(3, True)
    os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    words = ["-m", "dfusepy.service_main", pool, "--idle", "0.5"]
    os.execv(sys.executable, [sys.executable, *words])
"""


def test_socket_activation(served: Path) -> None:
    path = service.socket_path(served)
    service.make_runtime_dir(path.parent)
    words = [sys.executable, "-c", ACTIVATE, str(path), str(served)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        assert manager.stdout.readline() == b"listens\n"
        with connect(service.ensure(served), served) as pool:
            assert pool.service().supervisor_pid == manager.pid
        assert manager.wait(20) == 0
    assert path.exists()  # its maker's to remove
    path.unlink()


def test_a_wrong_socket_is_refused(served: Path) -> None:
    code = ACTIVATE.replace("AF_UNIX, socket.SOCK_SEQPACKET", "AF_INET")
    code = code.replace("given.bind(path)", "").replace("os.chmod(path, 0o666)", "")
    done = subprocess.run(
        [sys.executable, "-c", code, "-", str(served)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "SOCK_SEQPACKET" in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_does_not_start_it(served: Path) -> None:
    for folder in (served, *served.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = """
import os, sys
from dfusepy import engine, service
os.setgid(65534); os.setuid(65534)
try:
    service.ensure(sys.argv[1])
except OSError as err:
    print(err.errno, err.strerror)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(served)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{errno.EACCES} ")
    assert service.find(served) is None


def test_says_what_is_kept_for_a_restart(served: Path) -> None:
    """What was written and is not on the device counts, and counts no more when it is."""
    with connect(service.ensure(served, arena=SMALL), served) as pool:
        assert pool.service().keep_bytes >= 32 << 20  # two logs
        pool.container_create("c")
        with pool.container("c") as cont, cont.filesystem() as fs:
            attr = fs.mknod(engine.ROOT, b"file", 0o100644)
            fs.sync()

            def write() -> int:
                fs.write(attr.ino, 0, bytes(range(256)) * 1000)
                return int(pool.service().keep_used_bytes)

            # Again, since a busy machine may have it on the device before the question.
            assert any(write() > 256_000 for _ in range(10))
            fs.sync()
            end = time.monotonic() + 20
            while pool.service().keep_used_bytes >= 256_000:
                assert time.monotonic() < end, "it keeps what is on the device"
                time.sleep(0.01)


# -- the commands --------------------------------------------------------------------------------


def test_commands(run: Run, served: Path) -> None:
    assert "not running" in run("service", "status", "demo").output
    assert "No pool is served" in run("service", "status").output
    assert "is served on" in run("service", "start", "demo", "--arena", "64M").output
    assert "runs already" in run("service", "start", "demo").output
    state = json.loads(run("service", "status", "demo", "--json").output)
    assert state["running"] is True
    assert state["mounted"] == []
    assert state["sessions"] == 0
    assert state["arena_bound_bytes"] == SMALL
    text = run("service", "status", "demo").output
    for word in ("process", "worker", "workers lost", "queue", "kept for a restart", "arena"):
        assert word in text
    assert "demo" in json.loads(run("service", "status", "--json").output)
    assert "has ended" in run("service", "stop", "demo").output
    assert "not running" in run("service", "stop", "demo").output


def test_foreground(served: Path) -> None:
    words = [sys.executable, "-m", "dfusepy_cli.main", "service", "start", "demo", "--foreground"]
    with subprocess.Popen([*words, "--arena", "64M"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"serves pool" in process.stderr.readline()
        with connect(service.ensure(served), served) as pool:
            assert pool.service().supervisor_pid == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert b"all is written" in process.stderr.read()


def test_units(run: Run, served: Path) -> None:
    text = run("service", "units", "demo").output
    assert f"ListenSequentialPacket={service.socket_path(served)}" in text
    assert f'-m dfusepy.service_main "{served}"' in text
    assert "$" not in text


def test_pool_destroy_ends_an_idle_service(run: Run, served: Path) -> None:
    path = service.ensure(served, arena=SMALL)
    with connect(path, served):
        said = run("pool", "destroy", "demo", "--force", status=1).output
        assert "1 other program uses the pool" in said
    run("pool", "destroy", "demo", "--force")
    assert not served.exists()
    assert not os.path.exists(path)


def test_wrong_usage(run: Run, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("service", "start", "demo", "--arena", "64M", "--dirty", "1G", status=2)
    run("service", "start", "demo", "--idle", "-1", status=2)
    run("service", "start", "none", status=1)
    monkeypatch.setenv("DFUSEPY_SERVICE_IDLE_S", "soon")
    for command in (["service", "start"], ["container", "list"]):
        assert "DFUSEPY_SERVICE_IDLE_S" in run(*command, "demo", status=2).output


def test_a_runtime_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(service.ServiceError) as caught:
        service.make_runtime_dir(tmp_path / "file" / "run")
    assert str(tmp_path) in (caught.value.strerror or "")
