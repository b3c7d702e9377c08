# SPDX-License-Identifier: Apache-2.0
"""The suites of scripts/test: each with a time budget, counted into one summary line."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
JOBS = str(os.cpu_count() or 1)
# By hand, with pytest or scripts/soak, until the fault that it finds is mended: see README, Limits.
BY_HAND = "--deselect=tests/mount/test_hostile.py::test_hostile_clients"
SLOW_CRASH_S = 6  # of random crashes under sanitizers; the plain tests take their 20


@dataclass
class Count:
    """Outcome of a suite, or of all."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def run(command: Sequence[str], deadline: float, quiet: bool = False) -> int:
    """Runs until the deadline (time.monotonic); then interrupts, then kills its whole group."""
    log = subprocess.PIPE if quiet else None
    with subprocess.Popen(
        command, cwd=ROOT, stdout=log, stderr=log and subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            print(f"over its time budget: {' '.join(command)}")
            os.killpg(process.pid, signal.SIGINT)
            try:
                # Long enough to unmount what is mounted.
                output, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            process.returncode = process.returncode or 124
        if quiet and process.returncode:
            print("\n".join(output.decode(errors="replace").splitlines()[-60:]))
        return process.returncode


def check(*command: str) -> Callable[[float], Count]:
    """A suite that is one command: it passes or fails; without its program it is skipped."""

    def suite(deadline: float) -> Count:
        if shutil.which(command[0]) is None and not (ROOT / command[0]).exists():
            return Count(skipped=[f"{command[0]} is not installed"])
        status = run(command, deadline)
        return Count(failed=[f"it ended with {status}"]) if status else Count(passed=1)

    return suite


def shell_scripts(deadline: float) -> Count:
    """shellcheck over everything that starts with a shell's #! line."""
    files = [
        str(path.relative_to(ROOT))
        for folder in ("scripts", ".ci")
        for path in sorted((ROOT / folder).iterdir())
        if path.is_file() and path.read_bytes().startswith(b"#!/bin/bash")
    ]
    return check("shellcheck", *files)(deadline)


def no_randomisation() -> list[str]:
    """gcc 12's thread sanitizer cannot live with the address layouts of newer kernels."""
    wrapper = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*wrapper, "true"]).returncode == 0
    return ["--wrapper", " ".join(wrapper)] if works else []


def c_tests(name: str, sanitizer: str) -> Callable[[float], Count]:
    """Builds the C tests in build/NAME, runs them, and counts meson's own log."""

    def suite(deadline: float) -> Count:
        folder = BUILD / name
        if not (folder / "build.ninja").exists():
            shutil.rmtree(folder, ignore_errors=True)
            setup = ["meson", "setup", str(folder), "-Dtests=true", f"-Db_sanitize={sanitizer}"]
            if run([*setup, "-Db_lundef=false"], deadline, quiet=True):
                return Count(failed=["meson setup"])
        build = ["ninja", "-C", str(folder), "-j", JOBS, "meson-test-prereq"]
        if run(build, deadline, quiet=True):
            return Count(failed=["the build"])
        for log in (folder / "meson-logs").glob("testlog*.json"):
            log.unlink()
        command = ["meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs"]
        if sanitizer != "none":
            command = ["env", f"DFE_CRASH_SECONDS={SLOW_CRASH_S}", *command]
            command += ["--timeout-multiplier", "4"]
        if sanitizer == "thread":
            command += ["--no-suite", "alone", *no_randomisation()]
        status = run(command, deadline)
        return count_meson(folder / "meson-logs", status)

    return suite


def count_meson(logs: Path, status: int) -> Count:
    """Reads meson's testlog.json (its name holds the wrapper's): one JSON value a line."""
    count = Count()
    lines = [line for log in logs.glob("testlog*.json") for line in log.read_text().splitlines()]
    for line in lines:
        test = json.loads(line)
        if test["result"] in ("OK", "EXPECTEDFAIL"):
            count.passed += 1
            continue
        output = f"{test.get('stdout', '')}\n{test.get('stderr', '')}".strip().splitlines()
        if test["result"] == "SKIP":
            count.skipped.append(f"{test['name']}: {output[-1] if output else 'no reason given'}")
        else:
            # The seed and the first complaint are near the start, what killed it is at the end.
            shown = output if len(output) <= 24 else [*output[:4], "...", *output[-19:]]
            took = f"{test['result']} after {test['duration']:.0f} s"
            count.failed.append("\n    ".join([f"{test['name']}: {took}", *shown]))
    if status and not count.failed:
        count.failed.append(f"meson test ended with {status}")
    return count


def pytest(folder: str, *options: str) -> Callable[[float], Count]:
    """Runs a folder of tests/ under pytest and counts its JUnit file."""

    def suite(deadline: float) -> Count:
        if not any((ROOT / "tests" / folder).glob("test_*.py")):
            return Count(skipped=[f"tests/{folder} holds no test"])
        report = BUILD / f"pytest-{folder}.xml"
        report.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "--durations=8",
            f"--junitxml={report}",
        ]
        status = run([*command, *options, f"tests/{folder}"], deadline)
        return count_junit(report, status)

    return suite


def count_junit(report: Path, status: int) -> Count:
    count = Count()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                count.failed.append(f"{case.get('classname')}::{case.get('name')}")
            elif skip is not None:
                count.skipped.append(f"{case.get('name')}: {skip.get('message')}")
            else:
                count.passed += 1
    if status and not count.failed:
        count.failed.append(f"pytest ended with {status}")
    return count


@dataclass(frozen=True)
class Suite:
    name: str
    group: str
    budget_s: int
    run: Callable[[float], Count]


# What a suite may take where it hangs. All together take less than 30 minutes on 2 cores.
SUITES = (
    Suite("layers", "checks", 10, check("scripts/check-layers")),
    Suite("tidy", "checks", 10, check("scripts/tidy")),
    Suite(
        "mypy",
        "checks",
        60,
        check("mypy", "dfusepy", "cli", "scripts/suites.py", "scripts/image.py"),
    ),
    Suite("ruff", "checks", 10, check("ruff", "check", "-q", ".")),
    Suite("ruff-format", "checks", 10, check("ruff", "format", "-q", "--check", ".")),
    Suite("shellcheck", "checks", 20, shell_scripts),
    Suite("c-plain", "c", 300, c_tests("c-plain", "none")),
    Suite("c-address", "c", 450, c_tests("c-address", "address,undefined")),
    Suite("c-thread", "c", 600, c_tests("c-thread", "thread")),
    Suite("python", "python", 240, pytest("python")),
    Suite("il", "il", 240, pytest("il")),
    Suite("mount", "mount", 1150, pytest("mount", BY_HAND)),
)


def chosen(names: Sequence[str]) -> list[Suite]:
    known = {suite.name for suite in SUITES} | {suite.group for suite in SUITES}
    for name in names:
        if name not in known:
            sys.exit(f"scripts/test: there is no suite '{name}'; --list shows them")
    return [suite for suite in SUITES if not names or suite.name in names or suite.group in names]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="a suite or a group of suites")
    parser.add_argument("--list", action="store_true", help="list suites and groups, and exit")
    options = parser.parse_args()
    if options.list:
        for suite in SUITES:
            print(f"{suite.name:12} group {suite.group:8} at most {suite.budget_s} s")
        return 0
    BUILD.mkdir(exist_ok=True)
    total, lines = Count(), []
    for suite in chosen(options.suites):
        print(f"== {suite.name}", flush=True)
        start = time.monotonic()
        count = suite.run(start + suite.budget_s)
        count.failed = [f"{suite.name}: {what}" for what in count.failed]
        lines.append(f"{suite.name:12} {time.monotonic() - start:6.1f} s  {count}")
        total.add(count)
    print("== summary")
    for reason in total.skipped:
        print(f"SKIPPED {reason}")
    for what in total.failed:
        print(f"FAILED {what}")
    print("\n".join(lines))
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
