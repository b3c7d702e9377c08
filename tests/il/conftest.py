# SPDX-License-Identifier: Apache-2.0
"""Programs of these tests, compiled once, and a mount whose data a session serves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Home, Mount, make_home, why_not

from dfusepy import interception

HERE = Path(__file__).resolve().parent
ROWS = ("rows.c", "rows_files.c", "rows_processes.c", "rows_trouble.c", "rows_mixed.c")
WARNINGS = ["-Wno-nonnull", "-Wno-deprecated-declarations", "-Wno-unused-result"]


@pytest.fixture(scope="session")
def library() -> str:
    path = interception.library_path()
    if path is None:
        pytest.skip("the package was built without the interception library")
    return path


def _compile(out: Path, *sources: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    command = ["cc", "-D_GNU_SOURCE", "-O1", "-g", *WARNINGS, "-pthread", "-o", str(out)]
    subprocess.run([*command, *(str(HERE / name) for name in sources)], check=True)
    return out


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return _compile(folder / "rows", *ROWS)


@pytest.fixture(scope="session")
def behaviours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compile(tmp_path_factory.mktemp("behaviours") / "behaviours", "behaviours.c")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    yield from make_home(tmp_path_factory.mktemp("il-home"))


@pytest.fixture(scope="session")
def mount(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    if reason := why_not():
        pytest.skip(reason)
    home.run("pool", "create", "il", "--size", "768M")
    home.run("container", "create", "il/data")
    made = Mount(home, "il/data", tmp_path_factory.mktemp("il-mount"))
    made.mount()
    try:
        os.getxattr(made.path, "user.dfusepy.il")
    except OSError:
        made.umount()
        pytest.skip("mounts are not served by sessions here")
    yield made
    made.umount()
