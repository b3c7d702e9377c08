# SPDX-License-Identifier: Apache-2.0
"""Interception by users who own neither the pool nor the mount: what a descriptor allows is theirs,
and nothing else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Mount, make_container, make_home, why_not
from hooked import hear, start, tell

from dfusepy import interception

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ANNE, BEN = 1001, 1002


@pytest.fixture
def mnt() -> Iterator[Mount]:
    """Where other users may walk: pytest's folders are their owner's alone."""
    if reason := why_not():
        pytest.skip(reason)
    base = Path(tempfile.mkdtemp(prefix="dfusepy-users-"))
    base.chmod(0o755)
    try:
        for home in make_home(base):
            mount = make_container(home, "256M")
            mount.mount("--allow-other")
            yield mount
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def report() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="dfusepy-report-") as file:
        os.chmod(file.name, 0o666)
        yield Path(file.name)


def make(path: Path, text: bytes, mode: int, uid: int = 0) -> None:
    path.write_bytes(text)
    os.chown(path, uid, uid)
    path.chmod(mode)


def attached(report: Path) -> list[interception.Account]:
    """Of the users' processes; not of those that only became them."""
    return [account for account in interception.read_report(report) if account.attached]


GIVEN = """
fd, where = int(sys.argv[1]), sys.argv[2]
own = os.open(where + "/open", os.O_RDWR)
attach(own)
say(os.pread(fd, 6, 0).decode())
attach(fd)
say(os.pwrite(fd, b"by anne", 0))
say(os.pread(fd, 7, 0).decode())
say(attempt(os.open, where + "/secret", os.O_RDONLY))
say(attempt(os.open, where + "/below/deep", os.O_RDONLY))
"""


def test_a_descriptor_that_was_given_is_as_good_as_a_right(
    mnt: Mount, library: str, report: Path
) -> None:
    """Of a file that the user could not open; others of its kind stay closed."""
    make(mnt.path / "open", b"o" * 8192, 0o666)
    make(mnt.path / "secret", b"secret" * 1000, 0o600)
    (mnt.path / "below").mkdir(0o700)
    make(mnt.path / "below/deep", b"deep" * 1000, 0o666)
    fd = os.open(mnt.path / "secret", os.O_RDWR)
    with start(library, GIVEN, fd, mnt.path, report=report, uid=ANNE, fds=[fd]) as anne:
        heard = [hear(anne) for _ in range(5)]
        assert heard == ["secret", "7", "by anne", "EACCES", "EACCES"]
        assert anne.wait(60) == 0
    os.close(fd)
    assert (mnt.path / "secret").read_bytes()[:7] == b"by anne"
    [account] = attached(report)
    assert account.attached == 1
    assert account.bypassed["pread"].calls > 100
    assert account.bypassed["pwrite"].calls == 1


READ_ONLY = """
fd = int(sys.argv[1])
attach(fd)
say(attempt(os.pwrite, fd, b"x", 0))
say(os.pread(fd, 6, 0).decode())
"""


def test_a_descriptor_gives_no_more_than_it_allows(mnt: Mount, library: str) -> None:
    make(mnt.path / "secret", b"secret" * 1000, 0o600)
    fd = os.open(mnt.path / "secret", os.O_RDONLY)
    with start(library, READ_ONLY, fd, uid=ANNE, fds=[fd]) as anne:
        assert [hear(anne), hear(anne)] == ["EBADF", "secret"]
        assert anne.wait(60) == 0
    os.close(fd)


SHARING = """
where, me = sys.argv[1], sys.argv[2].encode()
fd = os.open(where + "/shared", os.O_RDWR)
own = os.open(where + "/of-" + sys.argv[2], os.O_RDWR)
log = os.open(where + "/log", os.O_WRONLY | os.O_APPEND)
attach(fd)
attach(own)
say("ready")
for n in range(500):
    assert os.write(log, b"%s %010d\\n" % (me, n)) == len(me) + 12
    assert os.pwrite(own, b"%016d" % n, n * 16) == 16
    assert os.pread(own, 16, n * 16) == b"%016d" % n
told()
os.pwrite(fd, me, 0)
say("wrote")
told()
say(os.pread(fd, 4, 0).decode())
say(attempt(os.open, where + "/of-" + told(), os.O_RDONLY))
"""


def test_two_users_at_once(mnt: Mount, library: str, report: Path) -> None:
    for name in ("shared", "log"):
        make(mnt.path / name, b"" if name == "log" else bytes(65536), 0o666)
    make(mnt.path / "of-anne", bytes(65536), 0o600, ANNE)
    make(mnt.path / "of-ben_", bytes(65536), 0o600, BEN)
    with (
        start(library, SHARING, mnt.path, "anne", report=report, uid=ANNE) as anne,
        start(library, SHARING, mnt.path, "ben_", report=report, uid=BEN) as ben,
    ):
        assert [hear(anne), hear(ben)] == ["ready", "ready"]
        for writer, name in ((anne, "anne"), (ben, "ben_")):
            tell(writer)
            assert hear(writer) == "wrote"
            assert (mnt.path / "shared").read_bytes()[:4] == name.encode()
        for reader, other in ((anne, "ben_"), (ben, "anne")):
            tell(reader)
            assert hear(reader) == "ben_"
            tell(reader, other)
            assert hear(reader) == "EACCES"
        assert [anne.wait(60), ben.wait(60)] == [0, 0]
    lines = (mnt.path / "log").read_bytes().splitlines()
    for who in (b"anne", b"ben_"):
        wanted = [b"%s %010d" % (who, n) for n in range(500)]
        assert [line for line in lines if line.startswith(who)] == wanted
    assert len(lines) == 1000
    assert [account.attached for account in attached(report)] == [1, 1]


BECOMES = """
where = sys.argv[1]
fd = os.open(where + "/secret", os.O_RDWR)
attach(fd)
os.setresuid(1001, 1001, 1001)
say(os.pread(fd, 6, 0).decode())
say(os.pwrite(fd, b"change", 0))
say(attempt(os.open, where + "/secret", os.O_RDONLY))
own = os.open(where + "/open", os.O_RDWR)
attach(own)
say(os.pwrite(own, b"after", 0))
if os.fork() == 0:
    attach(own)
    attach(fd)
    os._exit(0 if os.pread(fd, 6, 0) == b"change" and os.pread(own, 5, 0) == b"after" else 1)
say(os.wait()[1])
"""


def test_who_becomes_another_user_keeps_what_is_open(mnt: Mount, library: str) -> None:
    make(mnt.path / "open", b"o" * 8192, 0o666)
    make(mnt.path / "secret", b"secret" * 1000, 0o600)
    with start(library, BECOMES, mnt.path) as program:
        heard = [hear(program) for _ in range(5)]
        assert heard == ["secret", "6", "EACCES", "5", "0"]
        assert program.wait(60) == 0
