# SPDX-License-Identifier: Apache-2.0
"""dfusepy pool: what it does, and what it says and leaves behind when it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dfusepy import engine

Run = Callable[..., Any]


def tree(path: Path) -> list[str]:
    """Everything below a directory."""
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


# -- what it does ----------------------------------------------------------------------------------


def test_create_list_query_destroy(run: Run, home: Path) -> None:
    assert "No pools" in run("pool", "list").stdout
    run("pool", "create", "demo", "--size", "64M")
    (line,) = json.loads(run("pool", "list", "--json").stdout)
    assert line["label"] == "demo"
    assert line["path"] == str(home / "pools" / "demo")
    assert line["error"] == ""
    assert line["mountpoints"] == []
    info = json.loads(run("pool", "query", "demo", "--json").stdout)
    assert info["size_bytes"] == 64 << 20
    assert info["damage"] == ""
    assert info["uuid"] == line["uuid"]
    assert "whole" in run("pool", "query", "demo").stdout
    run("pool", "destroy", "demo")
    assert tree(home / "pools") == []


def test_path_and_label(run: Run, tmp_path: Path, home: Path) -> None:
    run("pool", "create", "far", "--size", "64M", "--path", tmp_path / "far")
    by_label = json.loads(run("pool", "query", "far", "--json").stdout)
    by_path = json.loads(run("pool", "query", tmp_path / "far", "--json").stdout)
    assert by_label["uuid"] == by_path["uuid"]
    run("pool", "destroy", tmp_path / "far")
    assert tree(home / "pools") == []


def test_own_device(run: Run, tmp_path: Path) -> None:
    device = tmp_path / "device"
    with device.open("wb") as file:
        file.truncate(64 << 20)
    run("pool", "create", "dev", "--device", f"file:{device}")
    assert str(device) in run("pool", "query", "dev").stdout
    run("pool", "destroy", "dev")
    assert device.exists(), "the device is the user's"


def test_json_of_create(run: Run, home: Path) -> None:
    made = json.loads(run("pool", "create", "demo", "--size", "64M", "--json").stdout)
    assert made == {"label": "demo", "path": str(home / "pools" / "demo")}


@pytest.mark.parametrize("command", ["create", "list", "query", "destroy"])
def test_help_has_examples(run: Run, command: str) -> None:
    assert "Example" in run("pool", command, "--help").stdout


# -- bad names and sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["query"], ["destroy"], ["destroy", "--force"]])
def test_missing_pool(run: Run, home: Path, arguments: list[str]) -> None:
    result = run("pool", *arguments, "nope", status=1)
    assert "no pool has this label" in result.stderr
    assert str(home) in result.stderr
    assert "dfusepy pool list" in result.stderr


def test_no_pool_at_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("mine")
    for command in (["query"], ["destroy", "--force"]):
        run("pool", *command, tmp_path / "plain", status=1)
        run("pool", *command, tmp_path / "nothing", status=1)
    assert tree(tmp_path / "plain") == ["file"]


@pytest.mark.parametrize("label", [".x", "a b", "x" * 64, "a/b", ""])
def test_illegal_label(run: Run, home: Path, label: str) -> None:
    result = run("pool", "create", label, "--size", "64M", status=2)
    assert "label" in result.stderr
    assert not home.exists()


def test_taken_label(run: Run, pool: Path, tmp_path: Path) -> None:
    before = tree(pool)
    for path in ([], ["--path", tmp_path / "other"]):
        result = run("pool", "create", "demo", "--size", "64M", *path, status=1)
        assert "the label belongs to" in result.stderr
    assert tree(pool) == before
    assert not (tmp_path / "other").exists()


def test_occupied_path(run: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    result = run("pool", "create", "x", "--size", "64M", "--path", tmp_path / "full", status=1)
    assert "not an empty directory" in result.stderr
    assert tree(tmp_path / "full") == ["file"]
    assert not home.exists()


@pytest.mark.parametrize(
    ("size", "status", "text"),
    [
        ("lots", 2, "not a size"),
        ("-1", 2, "size"),
        ("0", 2, "makes no sense"),
        ("1K", 1, ""),
        ("99999P", 2, "larger than any device"),
        ("900P", 1, "do not fit"),
    ],
)
def test_sizes_without_sense(run: Run, home: Path, size: str, status: int, text: str) -> None:
    result = run("pool", "create", "x", f"--size={size}", status=status)
    assert text in result.stderr
    assert "pools/x" not in tree(home)


def test_after_a_killed_creation(run: Run, home: Path) -> None:
    run("pool", "create", "x", "--size=64M")
    (home / "pools/x").rename(home / "pools/.x.making")
    (home / "pools/.x.making/pool").unlink()
    assert "No pools" in run("pool", "list").stdout
    run("pool", "create", "x", "--size=64M")
    assert os.listdir(home / "pools") == ["x"]


def test_no_size(run: Run, home: Path) -> None:
    assert "--size" in run("pool", "create", "x", status=2).stderr
    assert not home.exists()


def test_home_not_writable(run: Run, home: Path, tmp_path: Path) -> None:
    home.write_text("a file, not a directory")
    result = run("pool", "create", "x", "--size", "64M", status=1)
    assert "DFUSEPY_HOME" in result.stderr
    assert home.read_text() == "a file, not a directory"


# -- devices ---------------------------------------------------------------------------------------


def device_file(path: Path, size: int) -> str:
    with path.open("wb") as file:
        file.truncate(size)
    return f"file:{path}"


def test_device_too_small(run: Run, home: Path, tmp_path: Path) -> None:
    uri = device_file(tmp_path / "small", 1 << 20)
    result = run("pool", "create", "x", "--device", uri, status=1)
    assert "cannot create pool 'x'" in result.stderr
    assert tree(home / "pools") == []
    assert not any((tmp_path / "small").read_bytes())


def test_device_smaller_than_asked(run: Run, home: Path, tmp_path: Path) -> None:
    uri = device_file(tmp_path / "small", 64 << 20)
    result = run("pool", "create", "x", "--device", uri, "--size", "1G", status=1)
    assert "cannot create pool 'x'" in result.stderr
    assert tree(home / "pools") == []


def test_device_of_another_pool(run: Run, home: Path, tmp_path: Path) -> None:
    uri = device_file(tmp_path / "device", 64 << 20)
    run("pool", "create", "first", "--device", uri)
    before = (tmp_path / "device").read_bytes()
    result = run("pool", "create", "second", "--device", uri, status=1)
    assert "pool" in result.stderr
    assert (tmp_path / "device").read_bytes() == before
    assert "pools/second" not in tree(home)
    run("pool", "query", "first")


def test_device_of_a_file_system(run: Run, home: Path, tmp_path: Path) -> None:
    mkfs = shutil.which("mkfs.ext4") or "/sbin/mkfs.ext4"
    if not os.access(mkfs, os.X_OK):
        pytest.skip("no mkfs.ext4")
    uri = device_file(tmp_path / "device", 64 << 20)
    assert os.spawnv(os.P_WAIT, mkfs, [mkfs, "-q", "-F", str(tmp_path / "device")]) == 0
    result = run("pool", "create", "x", "--device", uri, status=1)
    assert "already holds something: ext" in result.stderr
    assert "wipefs" in result.stderr


def test_missing_device(run: Run, home: Path, tmp_path: Path) -> None:
    run("pool", "create", "x", "--device", tmp_path / "nothing", status=1)
    assert tree(home / "pools") == []


# -- pools that cannot be opened, or only read -----------------------------------------------------


def test_open_elsewhere(run: Run, held: Path) -> None:
    before = tree(held)
    for command in (["query"], ["destroy"], ["destroy", "--force"]):
        assert "in use by another process" in run("pool", *command, "demo", status=1).stderr
    assert tree(held) == before


def test_newer_format(run: Run, pool: Path) -> None:
    record = (pool / "pool").read_text()
    assert "format=1\n" in record
    (pool / "pool").write_text(record.replace("format=1\n", "format=999\n"))
    result = run("pool", "query", "demo", status=1)
    assert "newer dfusepy" in result.stderr
    assert "error" not in run("pool", "list").stdout


def overwrite(path: Path, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * length)


def test_damaged_superblocks(run: Run, pool: Path) -> None:
    for copy in (0, 4096):
        overwrite(pool / "data", copy + 16, 64)
    result = run("pool", "query", "demo")
    assert "damaged and open read-only: both superblocks" in result.stderr
    assert "--force" in run("pool", "destroy", "demo", status=1).stderr
    run("pool", "destroy", "demo", "--force")
    assert not pool.exists()


def test_erased_superblocks(run: Run, pool: Path) -> None:
    overwrite(pool / "data", 0, 8192)
    before = tree(pool)
    result = run("pool", "query", "demo", status=1)
    assert "holds no pool" in result.stderr
    run("pool", "destroy", "demo", status=1)
    assert tree(pool) == before


def test_one_damaged_superblock(run: Run, pool: Path) -> None:
    overwrite(pool / "data", 0, 4096)
    run("pool", "query", "demo")


DIE = """
import os, signal, sys
from dfusepy import engine
pool = engine.Pool.open(sys.argv[1], arena=64 << 20)
for number in range(20):
    pool.container_create(f"c{number}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_damaged_journal(run: Run, pool: Path) -> None:
    subprocess.run([sys.executable, "-c", DIE, str(pool)], check=False)
    blocks = (pool / "data").read_bytes()[8192 : 8192 + (4 << 20)]
    used = [at for at in range(0, len(blocks), 4096) if any(blocks[at : at + 4096])]
    overwrite(pool / "data", 8192 + used[len(used) // 2], 4096)
    result = run("pool", "query", "demo")
    assert "damaged and open read-only" in result.stderr
    assert "journal" in result.stdout
    result = run("container", "create", "demo/new", status=1)
    assert "read-only" in result.stderr
    assert "only be read" in result.stderr


def test_damaged_index(run: Run, pool: Path) -> None:
    run("container", "create", "demo/data")
    run("service", "stop", "demo")
    index = pool / "index" / "data.mdb"
    overwrite(index, 0, index.stat().st_size)
    before = index.read_bytes()
    result = run("pool", "query", "demo", status=1)
    assert "index" in result.stderr
    assert index.read_bytes() == before


def test_wrong_device(run: Run, pool: Path, home: Path) -> None:
    run("pool", "create", "other", "--size", "64M")
    shutil.copyfile(home / "pools" / "other" / "data", pool / "data")
    result = run("pool", "query", "demo", status=1)
    assert "belong together" in result.stderr


def test_old_index(run: Run, pool: Path, tmp_path: Path) -> None:
    shutil.copytree(pool / "index", tmp_path / "index")
    for number in range(3):
        with engine.Pool.open(pool, arena=64 << 20) as handle:
            handle.container_create(f"c{number}")
            handle.checkpoint()
    shutil.rmtree(pool / "index")
    shutil.copytree(tmp_path / "index", pool / "index")
    result = run("pool", "query", "demo", status=1)
    assert "old copy" in result.stderr


# -- destroying ------------------------------------------------------------------------------------


def test_destroy_asks(run: Run, pool: Path) -> None:
    run("container", "create", "demo/data")
    result = run("pool", "destroy", "demo", status=1)
    assert "--force" in result.stderr
    assert "data" in result.stderr
    run("pool", "query", "demo")
    run("pool", "destroy", "demo", "--force")
    assert not pool.exists()
