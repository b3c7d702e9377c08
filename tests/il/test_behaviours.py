# SPDX-License-Identifier: Apache-2.0
"""Signals, jumps, descriptors, appends; `dfusepy run` and `dfusepy il explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Home, Mount

from dfusepy import interception


def run(
    program: Path, case: str, where: Path, library: str, report: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = interception.environment(library, None if report is None else str(report))
    done = subprocess.run(
        [program, case],
        cwd=where,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


CASES = ["signals", "longjmps", "own", "stale", "errnos", "appends"]


@pytest.mark.parametrize("case", CASES)
def test_elsewhere(case: str, behaviours: Path, library: str, tmp_path: Path) -> None:
    run(behaviours, case, tmp_path, library)


@pytest.mark.parametrize("case", CASES)
def test_on_the_mount(
    case: str, behaviours: Path, library: str, mount: Mount, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    done = run(behaviours, case, mount.path, library, report)
    [account] = [a for a in interception.read_report(report) if a.exe == str(behaviours)]
    assert account.attached == 1
    assert account.bypassed_bytes > 0
    if case == "own":
        assert int(done.stdout) > 0


def test_run_reports(home: Home, mount: Mount, tmp_path: Path) -> None:
    report = tmp_path / "report"
    code = (
        "import sys; f = open(sys.argv[1], 'wb', buffering=0);"
        " [f.write(b'x' * 4096) for _ in range(200)]"
    )
    home.run("run", "--report", report, "--", sys.executable, "-c", code, mount.path / "written")
    assert (mount.path / "written").read_bytes() == b"x" * 4096 * 200
    told = json.loads(home.run("il", "explain", report, "--json").stdout)
    assert told["total"]["attached"] == 1
    writes = told["total"]["bypassed"]["write"]
    assert writes["calls"] + told["total"]["left"]["write"]["threshold"]["calls"] == 200
    assert "threshold" in home.run("il", "explain", report).stdout


def test_explain_a_live_process(home: Home, mount: Mount, behaviours: Path, library: str) -> None:
    env = interception.environment(library, None)
    with subprocess.Popen(
        [behaviours, "wait"], cwd=mount.path, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            told = home.run("il", "explain", process.pid).stdout
            assert "bypassed" in told
            assert "one session" in told
        finally:
            process.kill()


def test_run_keeps_the_exit_status_and_says_what_it_cannot_run(home: Home) -> None:
    home.run("run", "--", "sh", "-c", "exit 7", status=7)
    for signal in (13, 25):  # SIGPIPE and SIGXFSZ end programs, though Python ignores them
        home.run("run", "--", "sh", "-c", f"kill -{signal} $$", status=-signal)
    assert "No such file" in home.run("run", "--", "/absent/program", status=127).stderr
    assert "explaining" in home.run("il", "explain", os.getpid(), status=1).stderr
    home.run("run", status=2)


def test_off_means_off(mount: Mount, behaviours: Path, library: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    env = {**interception.environment(library, str(report)), "DFUSEPY_IL": "off"}
    subprocess.run([behaviours, "errnos"], cwd=mount.path, env=env, check=True, timeout=60)
    [account] = interception.read_report(report)
    assert not account.bypassed
