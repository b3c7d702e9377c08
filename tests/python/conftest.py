# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python tests: a data directory of the test's own, and the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dfusepy
from dfusepy import engine, service

Run = Callable[..., Result]

HOLD = """
import sys
import dfusepy
from dfusepy import engine, service
with engine.Pool.open(sys.argv[1], arena=64 << 20):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory of the test's own; the services of its pools end with the test."""
    path = tmp_path / "home"
    monkeypatch.setenv("DFUSEPY_HOME", str(path))
    monkeypatch.setenv("DFUSEPY_SERVICE_IDLE_S", "30")
    yield path
    for folder in (path / "run", service.short_dir()):
        for file in folder.glob("*.service"):
            record = service.read_record(file)
            if record is not None and record.pool.startswith(f"{os.path.realpath(path)}/"):
                os.kill(record.pid, signal.SIGTERM)
                assert service.wait_for_end(record.pid, 30)


@pytest.fixture
def run(home: Path) -> Run:
    """run(*arguments, status=0, input=None): the program's result, its exit status checked."""
    from dfusepy_cli.main import cli

    def call(*arguments: str | os.PathLike[str], status: int = 0, **kwargs: str) -> Result:
        words = [os.fspath(word) for word in arguments]
        result = CliRunner().invoke(
            cli,
            words,
            prog_name="dfusepy",
            **kwargs,  # type: ignore[arg-type]
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return call


@pytest.fixture
def pool(run: Run, home: Path) -> Path:
    """A small pool with the label `demo`; its directory."""
    run("pool", "create", "demo", "--size", "64M")
    return home / "pools" / "demo"


@pytest.fixture
def held(pool: Path) -> Iterator[Path]:
    """The pool, held open by another process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(pool)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        yield pool
        holder.stdin.close()


@pytest.fixture(params=["in-process", "session"])
def engine_pool(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[engine.Pool]:
    """A small pool of the engine, open in this process or through a service; its directory is
    tmp_path / "store"."""
    path = tmp_path / "store"
    engine.pool_create(path, "store", 64 << 20)
    if request.param == "in-process":
        with engine.Pool.open(path, arena=64 << 20, hugepages=False) as opened:
            yield opened
        return
    monkeypatch.setenv("DFUSEPY_HOME", str(tmp_path / "home"))
    service.ensure(path, arena=64 << 20)
    try:
        with dfusepy.connect(path) as opened:
            yield opened
    finally:
        service.stop(path)


@pytest.fixture
def objects(engine_pool: engine.Pool) -> Iterator[engine.Container]:
    """A container without a file system."""
    engine_pool.container_create("objects", posix=False)
    with engine_pool.container("objects") as container:
        yield container


@pytest.fixture
def fs(engine_pool: engine.Pool) -> Iterator[engine.FileSystem]:
    """The file system of the container `files`, whose root belongs to user 7, group 8."""
    engine_pool.container_create("files", uid=7, gid=8)
    with engine_pool.container("files") as container, container.filesystem() as opened:
        yield opened
