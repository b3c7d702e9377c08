# SPDX-License-Identifier: Apache-2.0
"""Each row of the table behaves with the library as without it, on the mount and elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import Mount

from dfusepy import interception

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = sorted(
    set(
        re.findall(
            r"^(?:HOOK|LEFT)\(\w+, (\w+),",
            (ROOT / "engine/il/symbols.def").read_text(),
            re.MULTILINE,
        )
    )
    - {"none"}
)
CASES += [
    case
    for name in ("rows_trouble.c", "rows_mixed.c")
    for case in re.findall(r'^    {"(\w+)",', (HERE / name).read_text(), re.MULTILINE)
    if case not in CASES
]
# Where our file system and ext4 may differ by design: in what a file system tells about itself.
OWN_ANSWERS = {"allocate", "handle", "copy"}


def run(rows: Path, case: str, where: Path, env: dict[str, str]) -> str:
    where.mkdir()
    done = subprocess.run(
        [rows, case],
        cwd=where,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.stdout.decode(errors="replace") + f"status {done.returncode}\n"


@pytest.mark.parametrize("case", CASES)
def test_elsewhere(case: str, rows: Path, library: str, tmp_path: Path) -> None:
    plain = run(rows, case, tmp_path / "plain", dict(os.environ))
    hooked = run(rows, case, tmp_path / "hooked", interception.environment(library, None))
    assert hooked == plain


@pytest.mark.parametrize("case", CASES)
def test_on_the_mount(case: str, rows: Path, library: str, mount: Mount, tmp_path: Path) -> None:
    other = run(rows, case, tmp_path / "plain", dict(os.environ))
    plain = run(rows, case, mount.path / f"{case}-plain", dict(os.environ))
    hooked = run(rows, case, mount.path / f"{case}-hooked", interception.environment(library, None))
    assert hooked == plain
    if case not in OWN_ANSWERS:
        assert plain == other
