# SPDX-License-Identifier: Apache-2.0
"""The table of symbols is what the library exports, and each row has a test."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dfusepy import interception

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "engine/il/symbols.def").read_text()
REASONS = (ROOT / "engine/il/reasons.def").read_text()
ROWS = re.findall(r'^(HOOK|LEFT)\((\w+), (\w+), "(.+)"\)$', TABLE, re.MULTILINE)


def test_every_line_is_a_row() -> None:
    assert len(ROWS) == len(re.findall(r"^(?:HOOK|LEFT)", TABLE, re.MULTILINE))
    names = [name for _, name, _, _ in ROWS]
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")
def test_exports_are_the_hooked_rows_and_libc_is_enough(library: str) -> None:
    symbols = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    exported = {line.split()[-1] for line in symbols.splitlines()}
    assert exported == {name for kind, name, _, _ in ROWS if kind == "HOOK"}
    dynamic = subprocess.check_output(["readelf", "-d", library], text=True)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert {name for name in needed if not name.startswith("ld-linux")} == {"libc.so.6"}


def test_each_row_has_a_case_that_uses_it(rows: Path) -> None:
    cases = set(subprocess.check_output([rows, "--list"], text=True).split())
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("rows*.c"))
    for _, name, case, _ in ROWS:
        if case != "none":
            assert case in cases, name
            assert re.search(rf"\b{name}\b", source), f"{name} is used by no case"


def test_reasons_have_words_for_people() -> None:
    assert dict(re.findall(r'^REASON\((\w+), "(.+)"\)$', REASONS, re.MULTILINE)) == dict(
        interception.REASONS
    )
