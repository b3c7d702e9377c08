# SPDX-License-Identifier: Apache-2.0
"""Real programs on the mount: what they leave is the same as on the host's file system, and the
same again after the mount was left and made anew."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness import Mount
from programs import PROJECT, assert_same, fingerprint, make_odd_files, run


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard library (without site packages and tests), plus what trees in the field have."""
    root = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        root / "stdlib",
        symlinks=True,
        ignore=shutil.ignore_patterns(
            "site-packages", "dist-packages", "test", "tests", "config-*", "*.a"
        ),
    )
    make_odd_files(root / "odd")
    return root


@pytest.mark.parametrize("how", ["cp", "tar", "rsync"])
def test_tree_copied_whole(mnt: Mount, source_tree: Path, tmp_path: Path, how: str) -> None:
    target = mnt.path / "copy"
    if how == "cp":
        run("cp", "-a", source_tree, target)
    elif how == "tar":
        archive = tmp_path / "tree.tar"
        words = ["--xattrs", "--acls", "--sparse", "--format=posix"]
        run("tar", *words, "-C", source_tree, "-cf", archive, ".")
        target.mkdir()
        run("tar", *words, "--xattrs-include=*", "-C", target, "-xpf", archive)
    else:
        run("rsync", "-aHAX", "--sparse", f"{source_tree}/", f"{target}/")
    expected = fingerprint(source_tree)
    assert_same(fingerprint(target), expected)
    mnt.remount()
    assert_same(fingerprint(target), expected)
    assert os.stat(target / "odd/sparse").st_blocks * 512 < 10 << 20


def test_rsync_sees_nothing_to_do_the_second_time(mnt: Mount, source_tree: Path) -> None:
    run("rsync", "-aHAX", f"{source_tree}/", f"{mnt.path}/copy/")
    mnt.remount()
    assert run("rsync", "-aHAX", "--itemize-changes", f"{source_tree}/", f"{mnt.path}/copy/") == ""


def test_git_clone_commit_gc_fsck(mnt: Mount, tmp_path: Path) -> None:
    origin = PROJECT
    if not (PROJECT / ".git").exists():
        origin = tmp_path / "origin"
        shutil.copytree(PROJECT, origin, ignore=shutil.ignore_patterns(".venv", "build*"))
        run("git", "init", "-q", cwd=origin)
        run("git", "add", "-A", cwd=origin)
        run("git", "commit", "-qm", "all", cwd=origin)
    clone = mnt.path / "clone"
    run("git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", origin, clone)
    (clone / "new file").write_text("hello\n")
    run("git", "add", "-A", cwd=clone)
    run("git", "commit", "-qm", "one more", cwd=clone)
    run("git", "gc", "-q", "--aggressive", "--prune=now", cwd=clone)
    run("git", "fsck", "--full", "--strict", cwd=clone)
    head = run("git", "rev-parse", "HEAD", cwd=clone)
    mnt.remount()
    assert run("git", "status", "--porcelain", cwd=clone) == ""
    assert run("git", "rev-parse", "HEAD", cwd=clone) == head
    run("git", "fsck", "--full", "--strict", cwd=clone)


def test_the_engine_builds_and_passes_its_tests_on_the_mount(mnt: Mount) -> None:
    source = mnt.path / "source"
    source.mkdir()
    for name in ("engine", "tests", "dfusepy", "cli", "meson.build", "meson.options"):
        path = PROJECT / name
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, source / name)
    build, scratch = mnt.path / "build", mnt.path / "tmp"
    scratch.mkdir()
    run("meson", "setup", build, source, "-Dtests=true")
    run("meson", "compile", "-C", build, timeout=600)
    # Those that take little room and time.
    fewer = {"TMPDIR": str(scratch), "DFE_CRASH_SECONDS": "3"}
    told = run(
        "meson", "test", "-C", build, "--no-rebuild", "--suite", "alone", **fewer, timeout=900
    )
    passed = re.search(r"^Ok:\s+(\d+)", told, re.MULTILINE)
    assert passed is not None
    assert int(passed.group(1)) >= 20


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(mnt: Mount, journal: str) -> None:
    database = mnt.path / "data.db"
    with sqlite3.connect(database) as db:
        assert db.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
        db.execute("create table t(k integer primary key, v blob)")
        for start in range(0, 2000, 200):
            with db:
                db.executemany(
                    "insert into t values(?, ?)",
                    [(k, bytes([k % 256]) * (k % 3000)) for k in range(start, start + 200)],
                )
        with db:
            db.execute("delete from t where k % 3 = 0")
        db.execute("vacuum")
        # A second connection reads while the first one writes.
        other = sqlite3.connect(database)
        with db:
            db.execute("insert into t values(100000, 'new')")
        assert other.execute("select count(*) from t where k = 100000").fetchone() == (1,)
        other.close()
    db.close()
    mnt.remount()
    with sqlite3.connect(database) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = db.execute("select k, v from t where k < 100000 order by k").fetchall()
    db.close()
    assert rows == [(k, bytes([k % 256]) * (k % 3000)) for k in range(2000) if k % 3]


def test_sparse_file_of_one_tebibyte(mnt: Mount) -> None:
    path = mnt.path / "sparse"
    size = 1 << 40
    marks = {0: b"start", (size // 2) - 3: b"across a boundary", size - 3: b"end"}
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    for offset, data in marks.items():
        assert os.pwrite(fd, data, offset) == len(data)
    os.fsync(fd)
    os.close(fd)
    mnt.remount()
    status = os.stat(path)
    assert status.st_size == size
    assert status.st_blocks * 512 <= 1 << 20
    fd = os.open(path, os.O_RDWR)
    for offset, data in marks.items():
        assert os.pread(fd, len(data), offset) == data
    assert os.pread(fd, 1 << 20, size // 3) == bytes(1 << 20)
    os.ftruncate(fd, 10)
    assert os.pread(fd, 100, 0) == b"start" + bytes(5)
    os.close(fd)


def test_large_directory_listed_while_half_of_it_goes(mnt: Mount) -> None:
    folder = mnt.path / "large"
    folder.mkdir()
    count = 100_000
    for number in range(count):
        os.close(os.open(folder / f"{number}", os.O_CREAT | os.O_WRONLY))
    seen: list[str] = []
    with os.scandir(folder) as entries:
        for position, entry in enumerate(entries):
            seen.append(entry.name)
            if position % 1000 == 999:
                for number in range(position - 999, position + 1):
                    if number % 2:
                        os.unlink(folder / f"{number}")
    for number in range(1, count, 2):
        (folder / f"{number}").unlink(missing_ok=True)
    assert len(seen) == len(set(seen)), "an entry was listed twice"
    stayed = {f"{number}" for number in range(0, count, 2)}
    assert stayed <= set(seen), "an entry that stayed was missed"
    assert set(os.listdir(folder)) == stayed
    mnt.remount()
    assert set(os.listdir(folder)) == stayed


def test_files_used_after_unlink_and_rename_over(mnt: Mount) -> None:
    def use(fd: int, expected: bytes) -> None:
        assert os.pread(fd, 100, 0) == expected
        os.pwrite(fd, b"more", len(expected))
        os.ftruncate(fd, 1 << 20)
        assert os.pread(fd, 100, 0).startswith(expected + b"more")
        with mmap.mmap(fd, 1 << 20) as view:
            assert view[: len(expected)] == expected
        os.fsync(fd)

    first = os.open(mnt.path / "first", os.O_RDWR | os.O_CREAT)
    os.write(first, b"first")
    os.unlink(mnt.path / "first")
    assert os.fstat(first).st_nlink == 0
    use(first, b"first")

    old = os.open(mnt.path / "kept", os.O_RDWR | os.O_CREAT)
    os.write(old, b"old")
    (mnt.path / "new").write_bytes(b"new")
    os.rename(mnt.path / "new", mnt.path / "kept")
    use(old, b"old")
    assert (mnt.path / "kept").read_bytes() == b"new"
    os.close(old)
    os.close(first)
    mnt.remount()
    assert os.listdir(mnt.path) == ["kept"]


def test_fio_verifies_random_writes(mnt: Mount) -> None:
    words = [
        "--directory",
        str(mnt.path),
        "--size=64m",
        "--io_size=48m",
        "--rw=randwrite",
        "--bsrange=512-128k",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--randseed=7",
        "--fallocate=none",
        "--fsync=200",
        "--group_reporting",
        "--ioengine=psync",
    ]
    for name, more in {
        "one": ["--numjobs=1"],
        "two": ["--numjobs=2", "--direct=1", "--bsrange=4k-128k"],
    }.items():
        run("fio", "--name", name, *words, *more)


CPYTHON_TESTS = ["test_os", "test_pathlib", "test_shutil", "test_tempfile", "test_mmap"]


def cpython_failures(folder: Path) -> set[str]:
    """Names of CPython's own tests that fail with their temporary directory in `folder`."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "test", "--tempdir", str(folder), "-v", *CPYTHON_TESTS],
        env=os.environ | {"TMPDIR": str(folder)},
        cwd=folder,
        text=True,
        timeout=900,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert re.search(r"Total tests: run=|Ran \d+ tests", done.stdout), done.stdout[-3000:]
    assert len(re.findall(r"\.\.\. ok$", done.stdout, re.MULTILINE)) > 500
    return set(re.findall(r"^(?:FAIL|ERROR): (.*)$", done.stdout, re.MULTILINE))


def test_cpython_s_own_tests(mnt: Mount, tmp_path: Path) -> None:
    if subprocess.run(
        [sys.executable, "-c", "import test.test_os"], capture_output=True
    ).returncode:
        pytest.skip("this Python comes without its test package")
    here = cpython_failures(tmp_path / "reference")
    there = cpython_failures(mnt.path / "tmp")
    assert there - here == set()
