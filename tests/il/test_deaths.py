# SPDX-License-Identifier: Apache-2.0
"""What intercepted programs see when the worker, the service or the mount dies under them."""

from __future__ import annotations

import errno
import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Home, Mount, make_container, make_home, why_not
from hooked import hear, start, tell

import dfusepy
from dfusepy import engine, interception


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    yield from make_home(tmp_path)


@pytest.fixture
def mnt(home: Home, library: str, monkeypatch: pytest.MonkeyPatch) -> Mount:
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.setenv("DFUSEPY_HOME", str(home.path))
    mount = make_container(home, "256M")
    mount.mount()
    return mount


# -- the service ----------------------------------------------------------------------------------

READER = """
fd = os.open(sys.argv[1] + "/value", os.O_RDONLY)
seen = memoryview(mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 16)).cast("Q")
attach(os.open(sys.argv[1] + "/other", os.O_RDONLY))
say("reads")
while True:
    try:
        seen[1] = int.from_bytes(os.pread(fd, 8, 0), "little")
    except OSError as err:
        say(errno.errorcode[err.errno])
        break
    seen[0] += 1
sys.stdin.readline()
"""


def test_a_reader_learns_that_supervisor_and_worker_died(
    mnt: Mount, library: str, tmp_path: Path
) -> None:
    """It only reads by leases, and sends nothing that could fail."""
    path, shown = mnt.path / "value", tmp_path / "seen"
    path.touch()
    inode = engine.Inode(path.stat().st_ino)
    with (  # not through the mount, whose kernel would keep pages
        dfusepy.connect(mnt.home.path / "pools" / "demo") as session,
        session.container("data") as cont,
        cont.filesystem() as fs,
    ):
        fs.write(inode, 0, (7).to_bytes(8, "little") + bytes(65528))
    (mnt.path / "other").write_bytes(bytes(65536))
    shown.write_bytes(bytes(16))
    with shown.open("r+b") as file:
        seen = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
    with start(library, READER, mnt.path, shown) as reader:
        try:
            assert hear(reader) == "reads"
            while seen[0] < 1000:
                time.sleep(0.001)
            assert seen[1] == 7
            mnt.kill_service()
            # By its session, or by the mount, which ends without one.
            assert hear(reader, 10) in ("EOWNERDEAD", "ECONNABORTED", "ENOTCONN")
            assert seen[1] == 7
        finally:
            reader.kill()


def test_a_session_learns_that_supervisor_and_worker_died(mnt: Mount) -> None:
    (mnt.path / "f").write_bytes(b"x" * 65536)
    inode = engine.Inode((mnt.path / "f").stat().st_ino)
    with (
        dfusepy.connect(mnt.home.path / "pools" / "demo") as session,
        session.container("data") as cont,
        cont.filesystem() as fs,
    ):
        for _ in range(100):
            assert fs.read(inode, 0, 8) == b"x" * 8
        mnt.kill_service()
        with pytest.raises(OSError) as caught:
            fs.read(inode, 0, 8)
        assert caught.value.errno == errno.EOWNERDEAD


# -- the worker -----------------------------------------------------------------------------------

EVERYTHING = """
path = sys.argv[1]
fd = os.open(path + "/f", os.O_RDWR | os.O_CREAT)
log = os.open(path + "/log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(fd, bytes(1 << 20))
attach(fd)
say("ready")
n = 0
while True:
    n += 1
    line = b"%015d\\n" % n
    assert os.write(log, line) == 16
    assert os.pwrite(fd, line, n % 60000 * 16) == 16
    assert os.pread(fd, 16, n % 60000 * 16) == line
    assert os.lseek(fd, n * 16 % 65536, os.SEEK_SET) >= 0
    assert len(os.read(fd, 16)) == 16
    assert os.write(fd, b"-" * 16) == 16
    if n % 64 == 0:
        os.fsync(fd)
    if n % 128 == 0:
        assert os.fstat(log).st_size == n * 16
        assert os.lseek(log, 0, os.SEEK_END) == n * 16
    if n % 1000 == 0:
        say(n)
        if sys.stdin.readline() == "end\\n":
            break
"""


def test_a_program_goes_on_with_the_next_worker(mnt: Mount, library: str, tmp_path: Path) -> None:
    """Reads, writes, appends and fsync, over five deaths: nothing is lost, doubled or torn."""
    report = tmp_path / "report"
    with start(library, EVERYTHING, mnt.path, report=report) as program:
        try:
            assert hear(program) == "ready"
            for round_number in range(1, 7):
                if round_number < 6:
                    time.sleep(0.02 * round_number)
                    mnt.kill_worker()
                count = int(hear(program))
                tell(program, "end" if round_number == 6 else "go")
            assert program.wait(60) == 0
        finally:
            program.kill()
    lines = (mnt.path / "log").read_bytes().split(b"\n")
    assert lines == [b"%015d" % n for n in range(1, count + 1)] + [b""]
    [account] = interception.read_report(report)
    assert account.attached == 1
    assert account.bypassed["write"].calls > count
    mnt.umount()
    assert mnt.check() == []
