# SPDX-License-Identifier: Apache-2.0
"""Scripts that use real programs (in scenarios/), run on the host's file system, on a mount, and on
a mount under interception: each tells the same and leaves the same tree."""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from harness import PROGRAM, Mount, make_home
from programs import PROJECT, Entry, assert_same, environment, fingerprint, make_odd_files, run

from dfusepy import interception

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 900
POSTGRES = Path(shutil.which("initdb") or "/nowhere/initdb").resolve().parent


@dataclass(frozen=True)
class Scenario:
    """A script, and in what its trees may differ."""

    name: str
    programs: tuple[str, ...] = ()  # it is skipped without these,
    module: str | None = None  # and without this one of Python
    varies: tuple[str, ...] = ()  # files whose content tells times, inode numbers and the like
    tree: bool = True  # whether to look at the tree at all
    more: Mapping[str, str] = field(default_factory=dict)  # of the script's environment

    @property
    def why_not(self) -> str:
        missing = [name for name in self.programs if shutil.which(name) is None]
        if self.module and importlib.util.find_spec(self.module) is None:
            missing.append(f"Python's {self.module}")
        return f"{' and '.join(missing)} not installed" if missing else ""


SCENARIOS = (
    Scenario("git", ("git",), varies=("*/.git/index",)),  # it holds inode numbers
    Scenario("tar", ("tar", "gzip"), varies=("tree.tar",)),  # names of sparse files hold a pid
    Scenario("rsync", ("rsync",)),
    Scenario("cp"),
    Scenario("sqlite", ("sqlite3",), varies=("persist.db-journal",)),  # it holds a nonce
    Scenario("make", ("make", "cc", "ar"), varies=("build/*",)),
    Scenario("venv", varies=("*.pyc", "*/RECORD")),
    Scenario("compileall"),
    Scenario("find", ("find", "setfacl")),
    Scenario("bash"),
    Scenario("vim", ("vim",), varies=("*.un~",)),
    Scenario("sed", ("sed", "perl", "getfattr")),
    Scenario("dd"),
    Scenario("fio", ("fio",)),
    Scenario("numpy", module="numpy", varies=("many.npz",)),
    Scenario("torch", module="torch", varies=("model.pt",)),
    Scenario("zip", ("zip", "unzip")),
)
# By hand (scripts/soak programs): they take long, or programs that scripts/setup does not install.
LONG_SCENARIOS = (
    Scenario("postgres", ("initdb", "pgbench"), tree=False),
    Scenario("venv", varies=("*.pyc", "*/RECORD"), more={"VENV": "--symlinks"}),
    Scenario("engine", ("meson", "ninja", "cc")),
)


# -- what the scripts take -------------------------------------------------------------------------


def _make_repository(folder: Path) -> None:
    """The project's own sources in some commits."""
    folder.mkdir()
    date = "2024-01-01T00:00:00Z"
    run("git", "init", "-q", "-b", "main", cwd=folder)
    for name in ("engine", "dfusepy", "cli", "docs"):
        shutil.copytree(
            PROJECT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        run("git", "add", "-A", cwd=folder)
        message = f"with {name}"
        run(
            *("git", "commit", "-qm", message),
            cwd=folder,
            GIT_AUTHOR_DATE=date,
            GIT_COMMITTER_DATE=date,
        )


MAKEFILE = """\
objects := $(patsubst %.c,%.o,$(wildcard engine/base/*.c))
program: program.o libbase.a
\tcc -o $@ $^ -lpthread
libbase.a: $(objects)
\trm -f $@; ar rcD $@ $^
%.o: %.c
\tcc -O1 -D_GNU_SOURCE -Iengine -Iengine/include -c -o $@ $<
clean:
\trm -f program *.o *.a $(objects)
"""
PROGRAM_C = """\
#include <stdio.h>
int main(void)
{
    int lines = 0;
    for (int c; (c = getchar()) != EOF;) {
        lines += c == '\\n';
    }
    printf("%d lines\\n", lines);
    return 0;
}
"""
MESON = """\
project('p', 'c')
p = executable('program', 'program.c')
test('p', p)
"""


def _make_build(folder: Path) -> None:
    folder.mkdir()
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "program.c").write_text(PROGRAM_C)
    (folder / "meson.build").write_text(MESON)


def _make_wheel(folder: Path) -> None:
    name, version = "greeting", "1.0"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "import sys\n\n\ndef main():\n    print('hello', *sys.argv[1:])\n",
        f"{name}/data.txt": "data\n" * 10000,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\ngreet = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def make_source(root: Path) -> None:
    """A tree of Python's modules and odd files, a repository, a wheel, sources in C, bytes."""
    (root / "tree").mkdir(parents=True)
    stdlib = Path(sysconfig.get_path("stdlib"))
    modules = root / "tree/stdlib"
    modules.mkdir()
    for path in sorted(stdlib.glob("*.py")):
        shutil.copy2(path, modules)
    for name in ("json", "email", "encodings", "asyncio"):
        shutil.copytree(stdlib / name, modules / name, ignore=shutil.ignore_patterns("__pycache__"))
    make_odd_files(root / "tree/odd")
    (root / "more").mkdir()
    (root / "more/text").write_bytes(b"".join(b"%d lines\n" % n for n in range(200_000)))
    (root / "random").write_bytes(bytes(n * n % 251 for n in range(3 << 20)))
    _make_repository(root / "repository")
    _make_build(root / "build")
    shutil.copytree(PROJECT / "engine", root / "engine")
    _make_wheel(root)


# -- the three sides -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    status: int
    output: str
    tree: dict[str, Entry]


@dataclass
class Sides:
    """Folders on the host and on the mount, and what intercepted programs have reported."""

    base: Path
    mount: Mount
    source: Path
    start_ns: int = 0
    accounts: dict[str, list[interception.Account]] = field(default_factory=dict)

    def _play(self, scenario: Scenario, root: Path, *prefix: object) -> Outcome:
        root.mkdir(mode=0o755, parents=True)
        script = HERE / "scenarios" / f"{scenario.name}.sh"
        short = self.base / "s"  # sockets have short names
        more = {
            **scenario.more,
            "SOURCE": self.source,
            "PROJECT": PROJECT,
            "PYTHON": sys.executable,
            "PG": POSTGRES,
            "SHORT": short,
            "TMPDIR": root,
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "DFUSEPY_HOME": self.mount.home.path,
        }
        done = subprocess.run(
            [*map(str, prefix), "bash", "-eu", "-o", "pipefail", str(script)],
            cwd=root,
            env={**environment(), **{name: str(value) for name, value in more.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
        output = done.stdout.decode(errors="backslashreplace").replace(str(root), "ROOT")
        tree = self._tree(scenario, root) if scenario.tree else {}
        shutil.rmtree(root)
        return Outcome(done.returncode, output, tree)

    def _tree(self, scenario: Scenario, root: Path) -> dict[str, Entry]:
        """Times count where a program has set them: those before the start."""
        tree = fingerprint(root)
        for name, entry in tree.items():
            if any(fnmatch(name, pattern) for pattern in scenario.varies):
                entry = entry._replace(content=None, size=None)
            if entry.mtime_ns is not None and entry.mtime_ns >= self.start_ns:
                entry = entry._replace(mtime_ns=None)
            tree[name] = entry
        return tree

    def compare(self, scenario: Scenario) -> None:
        """Runs the script on all sides. AssertionError: they differ."""
        report = self.base / f"{scenario.name}.report"
        report.touch()
        report.chmod(0o666)  # for programs that change their user
        expected = self._play(scenario, self.base / "h/a" / scenario.name)
        assert expected.status == 0, f"on the host:\n{expected.output}"
        runs: dict[str, Callable[[], Outcome]] = {
            "mount": lambda: self._play(scenario, self.base / "m/a" / scenario.name),
            "interception": lambda: self._play(
                scenario,
                self.base / "m/b" / scenario.name,
                *(PROGRAM, "run", "--report", report, "--"),
            ),
        }
        for side, play in runs.items():
            found = play()
            told = difflib.unified_diff(expected.output.splitlines(), found.output.splitlines())
            assert found.output == expected.output, "\n".join([side, *told])
            assert found.status == 0, side
            assert_same(found.tree, expected.tree)
        self.accounts[scenario.name] = interception.read_report(report)

    def share(self) -> tuple[float, str]:
        """The share of bytes bypassed in programs that opened a session, and a table of it."""
        lines = []
        whole = interception.Account()
        for name, accounts in self.accounts.items():
            past = interception.total(a for a in accounts if a.attached)
            whole.add(past)
            lines.append(
                f"{name:12} {len(accounts):5} programs, {past.attached:4} sessions, "
                f"{_bytes(past)}; left: {_reasons(past)}"
            )
        lines.append(f"all: {_bytes(whole)}; left: {_reasons(whole)}")
        return _share(whole), "\n".join(lines)


def _share(account: interception.Account) -> float:
    whole = account.bypassed_bytes + account.left_bytes
    return account.bypassed_bytes / whole if whole else 1.0


def _bytes(account: interception.Account) -> str:
    whole = account.bypassed_bytes + account.left_bytes
    return f"{100 * _share(account):5.1f} % of {whole / 1e6:6.1f} MB bypassed"


def _reasons(account: interception.Account) -> str:
    found: dict[str, int] = {}
    for call, reasons in account.left.items():
        for reason, tally in reasons.items():
            found[f"{call} {reason}"] = tally.bytes
    largest = sorted(found.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {count / 1e6:.2f} MB" for name, count in largest if count)


@contextmanager
def make_sides() -> Iterator[Sides]:
    """A folder that all users may enter, with a served mount for all of them."""
    base = Path(tempfile.mkdtemp(prefix="dfusepy-programs-"))
    base.chmod(0o755)
    try:
        for home in make_home(base):
            home.run("pool", "create", "demo", "--size", "960M")
            home.run("container", "create", "demo/data")
            mount = Mount(home, "demo/data", base / "m")
            mount.mount(*(["--allow-other"] if os.geteuid() == 0 else []))
            (base / "s").mkdir()
            (base / "s").chmod(0o1777)
            make_source(base / "source")
            time.sleep(0.05)  # the clock of file systems ticks slowly
            sides = Sides(base, mount, base / "source", time.time_ns() - 25_000_000)
            yield sides
            mount.umount()
            assert mount.check() == []
    finally:
        shutil.rmtree(base, ignore_errors=True)


def soak() -> str:
    """All scripts, also the long ones. AssertionError: the sides differ."""
    with make_sides() as sides:
        for scenario in (*SCENARIOS, *LONG_SCENARIOS):
            start = time.monotonic()
            if scenario.why_not:
                print(f"{scenario.name}: skipped, {scenario.why_not}", flush=True)
                continue
            sides.compare(scenario)
            print(f"{scenario.name}: {time.monotonic() - start:.1f} s", flush=True)
        share, table = sides.share()
        return f"{100 * share:.1f} % of the bytes bypassed\n{table}"
