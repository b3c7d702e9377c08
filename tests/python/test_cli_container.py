# SPDX-License-Identifier: Apache-2.0
"""dfusepy container, container snapshot and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dfusepy
from dfusepy import engine

Run = Callable[..., Any]


@pytest.fixture
def data(run: Run, pool: Path) -> Path:
    """A pool with the container demo/data; the pool's directory."""
    run("container", "create", "demo/data")
    return pool


def test_create_list_query_destroy(run: Run, pool: Path) -> None:
    assert "No containers" in run("container", "list", "demo").stdout
    run("container", "create", "demo/data")
    run("container", "create", f"{pool}/bare", "--type", "objects")
    lines = json.loads(run("container", "list", "demo", "--json").stdout)
    assert [line["label"] for line in lines] == ["bare", "data"]
    info = json.loads(run("container", "query", "demo/data", "--json").stdout)
    assert info["label"] == "data"
    assert info["uuid"] in run("container", "query", "demo/data").stdout
    run("container", "destroy", "demo/data", "--force")
    assert "data" not in run("container", "list", "demo").stdout


def test_root_owner_and_mode(run: Run, pool: Path) -> None:
    run("container", "create", "demo/data", "--mode", "1777", "--owner", "12", "34")
    with (
        dfusepy.connect(pool) as handle,
        handle.container("data") as cont,
        cont.filesystem() as fs,
    ):
        attr = fs.getattr(engine.ROOT)
    assert (attr.mode, attr.uid, attr.gid) == (0o41777, 12, 34)


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "demo/new", "--mode", "999"],
        ["create", "demo/new", "--mode", "77777"],
        ["create", "demo/new", "--owner", "-1", "0"],
        ["create", "demo"],
        ["create", "demo/.x"],
        ["create", "demo/new", "--type", "tape"],
        ["set-prop", "demo/data", "label=x"],
        ["set-prop", "demo/data", "colour=x"],
        ["set-prop", "demo/data", "comment"],
        ["set-prop", "demo/data", "comment=a\nb"],
        ["get-prop", "demo/data", "colour"],
        ["snapshot", "create", "demo/data", ".x"],
    ],
)
def test_wrong_usage(run: Run, data: Path, arguments: list[str]) -> None:
    run("container", *arguments, status=2)
    assert [
        line["label"] for line in json.loads(run("container", "list", "demo", "--json").stdout)
    ] == ["data"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "demo/nope"],
        ["destroy", "demo/nope"],
        ["destroy", "demo/nope", "--force"],
        ["check", "demo/nope"],
        ["get-prop", "demo/nope"],
        ["set-prop", "demo/nope", "comment=x"],
        ["snapshot", "list", "demo/nope"],
        ["snapshot", "create", "demo/nope", "s"],
    ],
)
def test_missing_container(run: Run, data: Path, arguments: list[str]) -> None:
    result = run("container", *arguments, status=1)
    assert "there is no container demo/nope" in result.stderr
    assert "dfusepy container list demo" in result.stderr


def test_taken_label(run: Run, data: Path) -> None:
    assert "exists already" in run("container", "create", "demo/data", status=1).stderr


def test_pool_in_use(run: Run, held: Path) -> None:
    for arguments in (["create", "demo/x"], ["list", "demo"], ["query", "demo/x"]):
        assert "in use" in run("container", *arguments, status=1).stderr


def test_destroy_asks(run: Run, data: Path) -> None:
    assert "--force" in run("container", "destroy", "demo/data", status=1).stderr
    run("container", "query", "demo/data")


def test_properties(run: Run, data: Path) -> None:
    values = json.loads(run("container", "get-prop", "demo/data", "--json").stdout)
    assert values["label"] == "data"
    assert values["comment"] == ""
    run("container", "set-prop", "demo/data", "comment=spring = green")
    result = run("container", "get-prop", "demo/data", "comment")
    assert result.stdout == "comment  spring = green\n"
    assert "spring" in run("container", "query", "demo/data").stdout


def test_check(run: Run, data: Path) -> None:
    for extra in ([], ["--data"]):
        result = run("container", "check", "demo/data", *extra, "--json")
        assert json.loads(result.stdout) == {"container": "demo/data", "faults": []}
    assert "no faults" in run("container", "check", "demo/data").stdout


def test_check_finds_damage(run: Run, data: Path) -> None:
    content = os.urandom(1 << 20)
    with (
        dfusepy.connect(data) as handle,
        handle.container("data") as cont,
        cont.filesystem() as fs,
    ):
        ino = fs.mknod(engine.ROOT, b"file", 0o100644).ino
        fs.write(ino, 0, content)
        fs.fsync(ino)
    run("service", "stop", "demo")
    device = data / "data"
    raw = bytearray(device.read_bytes())
    at = raw.find(content[:4096])
    assert at >= 0
    raw[at] ^= 1
    device.write_bytes(raw)
    run("container", "check", "demo/data")
    result = run("container", "check", "demo/data", "--data", status=1)
    assert "1 fault." in result.stdout


def test_snapshots(run: Run, data: Path) -> None:
    snapshot = ("container", "snapshot")
    assert "No snapshots" in run(*snapshot, "list", "demo/data").stdout
    run(*snapshot, "create", "demo/data", "one")
    assert "exists" in run(*snapshot, "create", "demo/data", "one", status=1).stderr
    (line,) = json.loads(run(*snapshot, "list", "demo/data", "--json").stdout)
    assert line["name"] == "one"
    assert "1 snapshots" in run("container", "destroy", "demo/data", status=1).stderr
    assert "no such" in run(*snapshot, "destroy", "demo/data", "two", "--force", status=1).stderr
    assert "--force" in run(*snapshot, "destroy", "demo/data", "one", status=1).stderr
    run(*snapshot, "destroy", "demo/data", "one", "--force")
    assert json.loads(run(*snapshot, "list", "demo/data", "--json").stdout) == []


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(run: Run, shell: str) -> None:
    assert "_DFUSEPY_COMPLETE" in run("completion", shell).stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dfusepy pool query d", ["demo"]),
        ("dfusepy container query d", ["demo/"]),
        ("dfusepy container query demo/", ["demo/data"]),
        ("dfusepy container query nope/", []),
        ("dfusepy contai", ["container"]),
    ],
)
def test_completes(data: Path, words: str, found: list[str]) -> None:
    code = "from dfusepy_cli.main import main; main()"
    environment = {
        **os.environ,
        "_DFUSEPY_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = filter(None, done.stdout.splitlines())
    assert [line.partition(",")[2] for line in lines] == found
