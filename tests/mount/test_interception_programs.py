# SPDX-License-Identifier: Apache-2.0
"""Real programs do the same on the mount, with interception and without it, as on the host's file
system: they tell the same, end alike and leave the same tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import why_not
from scenarios import SCENARIOS, Scenario, Sides, make_sides

from dfusepy import interception

WANTED_SHARE = 0.95

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    if reason := why_not():
        pytest.skip(reason)
    if interception.library_path() is None:
        pytest.skip("the package was built without the interception library")
    with make_sides() as made:
        yield made


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_program(sides: Sides, scenario: Scenario) -> None:
    if scenario.why_not:
        pytest.skip(scenario.why_not)
    sides.compare(scenario)


def test_share_of_bytes_bypassed(sides: Sides) -> None:
    """Over all of the above, in programs that did enough on the mount to open a session."""
    missing = {s.name for s in SCENARIOS if not s.why_not} - sides.accounts.keys()
    if missing:
        pytest.skip(f"without {', '.join(sorted(missing))}")
    share, table = sides.share()
    print(table)
    assert share >= WANTED_SHARE, table
