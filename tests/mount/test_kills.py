# SPDX-License-Identifier: Apache-2.0
"""kill -9 of clients and of the service's worker, at random moments, under load.

DFUSEPY_SEED replays a run; scripts/soak makes long ones.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from harness import Mount
from kill_rounds import ClientKills, fio_while_killed, storms_while_killed

CLIENTS = 300
WORKERS = 15

pytestmark = pytest.mark.slow


@pytest.fixture
def seed() -> int:
    value = int(os.environ.get("DFUSEPY_SEED") or time.time_ns() % 2**32)
    print(f"DFUSEPY_SEED={value}")
    return value


@pytest.fixture
def served(unmounted: Mount, monkeypatch: pytest.MonkeyPatch) -> Mount:
    """A mount that is a session; this process finds its service, too."""
    unmounted.home.env["DFUSEPY_MOUNT_SESSION"] = "1"
    monkeypatch.setenv("DFUSEPY_HOME", str(unmounted.home.path))
    unmounted.mount()
    return unmounted


def finish(mount: Mount) -> None:
    mount.umount()
    assert mount.check() == []


def test_killed_clients_leave_nothing(served: Mount, seed: int, tmp_path: Path) -> None:
    print(ClientKills(served, tmp_path, seed).run(CLIENTS))
    finish(served)


@pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")
@pytest.mark.parametrize("hooked", [False, True], ids=["mount", "interception"])
def test_killed_workers_cost_no_byte(served: Mount, seed: int, hooked: bool) -> None:
    print(fio_while_killed(served, seed, WORKERS, hooked))
    finish(served)


def test_killed_workers_cost_no_name(served: Mount, seed: int) -> None:
    print(storms_while_killed(served, seed, WORKERS))
    finish(served)
