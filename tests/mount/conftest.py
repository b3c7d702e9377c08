# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that mount: a data directory, a pool and a mount of the test's own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Home, Mount, make_container, make_home, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses a mount is skipped, with the reason, where there can be none."""
    reason = why_not()
    for item in items:
        if "home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.mount)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A data directory without pools; the mount point `m` is beside it."""
    yield from make_home(tmp_path)


@pytest.fixture
def unmounted(home: Home) -> Mount:
    """A small pool with one container, not mounted."""
    return make_container(home, "128M")


@pytest.fixture
def mnt(home: Home) -> Mount:
    """A pool of its own, mounted."""
    mount = make_container(home)
    mount.mount()
    return mount


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    yield from make_home(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def shared(module_home: Home) -> Mount:
    """One mount for all tests of a file."""
    if reason := why_not():
        pytest.skip(reason)
    mount = make_container(module_home)
    mount.mount("--allow-other") if os.geteuid() == 0 else mount.mount()
    return mount


@pytest.fixture
def work(shared: Mount, request: pytest.FixtureRequest) -> Path:
    """An empty directory on the shared mount."""
    path = shared.path / f"{request.node.name[:40].replace('/', '_')}.{os.urandom(4).hex()}"
    path.mkdir()
    return path


@pytest.fixture
def seed() -> int:
    value = int(os.environ.get("DFUSEPY_SEED") or time.time_ns() % 2**32)
    print(f"DFUSEPY_SEED={value}")
    return value


@pytest.fixture
def served(unmounted: Mount, monkeypatch: pytest.MonkeyPatch) -> Mount:
    """A mount that is a session; this process finds its service, too."""
    monkeypatch.setenv("DFUSEPY_HOME", str(unmounted.home.path))
    unmounted.mount()
    return unmounted
