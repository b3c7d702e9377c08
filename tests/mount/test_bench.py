# SPDX-License-Identifier: Apache-2.0
"""dfusepy bench: its groups of sessions run, say what they measured, and leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness import why_not

from dfusepy import interception, mounts

if reason := why_not():
    pytest.skip(reason, allow_module_level=True)
if interception.library_path() is None:
    pytest.skip("the package was built without the interception library", allow_module_level=True)


@pytest.mark.parametrize(("group", "figures"), [("ring", 2), ("start", 3), ("death", 1)])
def test_groups(group: str, figures: int, tmp_path: Path) -> None:
    code = "from dfusepy_cli.main import main; main()"
    words = ["bench", "--quick", "--only", group, "--json", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["skipped"] == []
    assert len(result["figures"]) == figures
    assert list(tmp_path.iterdir()) == []
    assert not any(str(tmp_path) in mount.mountpoint for mount in mounts.kernel_mounts())
