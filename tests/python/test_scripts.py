# SPDX-License-Identifier: Apache-2.0
"""The checks of layers and lengths find what they are for."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import types
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load(name: str) -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def tidy() -> types.ModuleType:
    return load("tidy")


SPDX_C = "/* SPDX-License-Identifier: Apache-2.0 */\n"
SPDX_PY = "# SPDX-License-Identifier: Apache-2.0\n"


def test_tidy_is_content(tidy: types.ModuleType) -> None:
    body = "int f(void)\n{\n" + "    x();\n" * 78 + "}\n"
    assert list(tidy.faults(Path("a.c"), SPDX_C + body)) == []
    function = "def f():\n" + "    x()\n" * 59
    assert list(tidy.faults(Path("a.py"), SPDX_PY + function)) == []
    assert list(tidy.faults(Path("data.json"), "x" * 200)) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.c", "int x;\n", "1: no line"),
        ("a.c", SPDX_C + "int f(void)\n{\n" + "    x();\n" * 79 + "}\n", "81 lines in a function"),
        ("a.c", SPDX_C + "\n" * 800, "801 lines in a file"),
        ("a.h", SPDX_C + "x" * 101 + "\n", "101 columns"),
        ("a.py", SPDX_PY + "def f():\n" + "    x()\n" * 60, "61 lines in a function"),
        ("a.py", SPDX_PY + "\n" * 600, "601 lines in a file"),
        ("setup", "#!/bin/bash\n" + SPDX_PY + "x" * 101, "101 columns"),
    ],
)
def test_tidy_finds(tidy: types.ModuleType, name: str, text: str, fault: str) -> None:
    (found,) = tidy.faults(Path(name), text)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("engine/queue/a.c", '#include "obj/obj.h"', "not below"),
        ("engine/base/a.c", "#  include <ns/ns.h>", "not below"),
        ("engine/obj/a.c", "#include <dfe.h>", "public API"),
        ("engine/obj/a.c", '#include "queue/queue.h"', ""),
        ("engine/api/a.c", "#include <dfe.h>", ""),
        ("dfusepy/mount.py", "from dfusepy import _engine", "_engine"),
        ("dfusepy/mount.py", "from ._engine import ffi", "_engine"),
        ("dfusepy/pools.py", "import dfusepy_cli", "command line"),
        ("cli/pool.py", "import cffi", "cffi"),
        ("dfusepy/fs.py", "import subprocess", "too much"),
        ("dfusepy/engine_base.py", "from dfusepy._engine import ffi", ""),
    ],
)
def test_layers(tmp_path: Path, file: str, text: str, fault: str) -> None:
    layers = load("check-layers")
    for layer in layers.LAYERS:
        (tmp_path / "engine" / layer).mkdir(parents=True)
    layers.ROOT = tmp_path
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    check = layers.bad_includes if path.suffix == ".c" else layers.bad_imports
    found = list(check(path))
    assert bool(found) == bool(fault), found
    assert all(fault in one for one in found)
