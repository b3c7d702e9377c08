# SPDX-License-Identifier: Apache-2.0
"""What `dfusepy bench` measures of sessions: the ring, and programs under interception.

Ours and the peers take turns, so that both meet the same machine, and the round counts whose ratio
is in the middle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from dfusepy import engine, interception

from .bench_base import MIB, Bench, Figure, OurMount, mounted, output

DIRECT = "mount, direct I/O"
LOAN_MIB = 16


class Sessions:
    """A mount that is a session, the probe, and the library that programs preload."""

    def __init__(self, bench: Bench, mount: OurMount, probe: Path, library: str) -> None:
        self.bench, self.mount, self.folder = bench, mount, mount.path
        self._probe = probe
        self._library = library
        self._reports = 0

    def probe(self, *words: str | Path, **environment: str) -> dict[str, Any]:
        found = output(self._probe, *words, env={**os.environ, **environment})
        result: dict[str, Any] = json.loads(found)
        return result

    def preloaded(self, report: Path | None = None) -> dict[str, str]:
        """An environment with the library."""
        return interception.environment(self._library, str(report) if report else None)

    def new_report(self) -> Path:
        self._reports += 1
        return self.bench.disk / f"report-{self._reports}"


@contextlib.contextmanager
def sessions(bench: Bench) -> Iterator[Sessions | None]:
    """None, and a word about it, where there can be no mount or no library."""
    library = interception.library_path()
    if library is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        why = "was built without the library" if library is None else "may not open /dev/fuse"
        if f"sessions: dfusepy {why}" not in bench.skipped:
            bench.skipped.append(f"sessions: dfusepy {why}")
        yield None
        return
    mount = OurMount(bench)
    try:
        with as_file(files("dfusepy_cli") / "bench_probe") as probe, mounted(mount):
            yield Sessions(bench, mount, probe, library)
    finally:
        mount.remove()


# -- the ring ----------------------------------------------------------------------------------


def ring(bench: Bench) -> None:
    """A request that does nothing, to the service and back."""
    count = 20_000 if bench.quick else 100_000
    with sessions(bench) as given:
        if given is None:
            return
        rounds = [given.probe("ring", given.mount.socket, str(count)) for _ in range(bench.rounds)]
    for what, load, which, wanted in (
        ("null request, median", "idle", "p50", 0.4),
        ("null request, mean, other processors busy", "busy", "mean", 6.0),
    ):
        value = statistics.median(found[load][which] for found in rounds) / 1000
        bench.figures.append(Figure(what, value, "us", wanted, lower_is_better=True))


# -- data calls --------------------------------------------------------------------------------

# What -> (ours, the peer's call, the peer, at least). Places are those of calls().
CALLS = (
    ("pread 4 KiB, hot", "pread_4k", "pread_4k", "tmpfs", 3.0),
    ("pread 4 KiB, hot", "pread_4k", "pread_4k", DIRECT, 30.0),
    ("read 4 KiB sequentially", "read_4k", "read_4k", "tmpfs", 1.5),
    ("pwrite 4 KiB, hot", "pwrite_4k", "pwrite_4k", "tmpfs", 1.0),
    ("pread 1 MiB, hot", "pread_1m", "memcpy_1m", "memcpy", 0.8),
    ("fread 4 KiB", "fread_4k", "read_4k", DIRECT, 10.0),
)


def calls(bench: Bench) -> None:
    """Data calls of a program under interception, beside tmpfs, our mount and memcpy."""
    rounds: list[dict[str, dict[str, float]]] = []
    with sessions(bench) as given:
        if given is None:
            return
        path, peer = given.folder / "calls", bench.memory / "calls"
        for _ in range(4 * bench.rounds + 1):
            ours = given.probe("calls", path, "40", **given.preloaded())
            rounds.append(
                {
                    "ours": ours,
                    "memcpy": ours,  # in the same process, of as much memory
                    "tmpfs": given.probe("calls", peer, "40"),
                    DIRECT: given.probe("calls", path, "40", "direct"),
                }
            )
    for what, call, peer_call, place, wanted in CALLS:
        pairs = [(found["ours"][call], found[place][peer_call]) for found in rounds]
        ns, peer_ns = sorted(pairs, key=lambda pair: pair[1] / pair[0])[len(pairs) // 2]
        name = f"{what}, interception"
        bench.figures.append(
            Figure(name, ns / 1000, "us", wanted, peer_ns / 1000, place, lower_is_better=True)
        )


# -- beginnings and ends -----------------------------------------------------------------------


def run_ms(environment: dict[str, str]) -> float:
    """Milliseconds that `true` takes."""
    program = shutil.which("true") or "/bin/true"
    start = time.perf_counter()
    pid = os.posix_spawn(program, ["true"], environment)
    os.waitpid(pid, 0)
    return (time.perf_counter() - start) * 1000


def start(bench: Bench) -> None:
    """Attaching, preloading, and the first write that the kernel has to hear of."""
    with sessions(bench) as given:
        if given is None:
            return
        report = given.new_report()
        writes = [
            given.probe("first", given.folder, "32", **given.preloaded(report))["first_write"]
            for _ in range(3 * bench.rounds)
        ]
        attaches = [one.attach_us / 1000 for one in interception.read_report(report)]
        plain, loaded = dict(os.environ), given.preloaded()
        extra = [run_ms(loaded) - run_ms(plain) for _ in range(40 * bench.rounds)]
    for what, value, unit, wanted in (
        ("attach to the service", statistics.median(attaches), "ms", 1.0),
        ("`true`: extra start-up, preloaded", statistics.median(extra), "ms", 1.0),
        ("first write to a file that the kernel has", statistics.median(writes) / 1000, "us", 100),
    ):
        bench.figures.append(Figure(what, value, unit, wanted, lower_is_better=True))


HOLDER = f"""
import sys
from dfusepy import engine
path, socket = sys.argv[1:]
pool = engine.Pool.open(path, socket=socket)
container = pool.container("data")
fs = container.filesystem()
ino = fs.lookup(engine.ROOT, b"held").ino
held = [fs.read(ino, i << 20, 1 << 20) for i in range({LOAN_MIB})]
print(len(held), flush=True)
sys.stdin.read()
"""


def held(pool: engine.Pool) -> tuple[int, int, int, int]:
    """What the service has for sessions."""
    info = pool.service()
    return info.sessions, info.channels, info.loans, info.loan_bytes


def death_ms(given: Sessions, watch: engine.Pool) -> float:
    """From the SIGKILL of a process that holds a session and loans until nothing is left of it."""
    before = held(watch)
    where = [str(given.mount.pool), str(given.mount.socket)]
    words = [sys.executable, "-P", "-c", HOLDER, *where]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = held(watch)
        start = time.perf_counter()
        child.kill()
        while held(watch) != before and time.perf_counter() - start < 10:
            time.sleep(0.0005)
        took = time.perf_counter() - start
    assert during > before, "the holder had no session"
    return took * 1000


def death(bench: Bench) -> None:
    """A client that is killed while it holds loans; the slowest round counts."""
    with sessions(bench) as given:
        if given is None:
            return
        (given.folder / "held").write_bytes(os.urandom(LOAN_MIB * MIB))
        with engine.Pool.open(given.mount.pool, socket=given.mount.socket) as watch:
            slowest = max(death_ms(given, watch) for _ in range(4 * bench.rounds))
    what = f"a killed client's session and {LOAN_MIB} MiB of loans are reclaimed"
    bench.figures.append(Figure(what, slowest, "ms", 100, lower_is_better=True))


# -- programs ----------------------------------------------------------------------------------

# In a folder of the mount that has a copy of Python's library in `tree`.
PROGRAMS = (
    "cp -a tree copied",
    "tar cf tree.tar tree",
    "mkdir untar && tar xf tree.tar -C untar",
    "gzip -1 -k tree.tar",
    "gzip -t tree.tar.gz",
    "zip -q -r -1 tree.zip tree",
    "unzip -q -t tree.zip",
    "rsync -a tree/ synced/",
    "rsync -a --checksum tree/ synced/",
    "sha256sum tree.tar tree.zip",
    "sort -o sorted tree/words tree/words",
    "grep -c e sorted",
    "dd if=tree.tar of=dd-small bs=4k status=none",
    "dd if=tree.tar of=dd-large bs=4M status=none",
    "cmp tree.tar dd-small",
    f"{sys.executable} -m compileall -q tree",
    "sqlite3 db 'create table t (a, b); insert into t select value, hex(randomblob(500))"
    " from generate_series(1, 20000); create index i on t (b)'",
    "git init -q repo && cp -a tree repo/ && cd repo && git add . &&"
    " git -c user.name=b -c user.email=b@example.invalid commit -q -m all && git gc -q",
)  # fmt: skip


def make_source(folder: Path, files_wanted: int) -> None:
    """Modules of Python's library, and a file of lines."""
    folder.mkdir(parents=True)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files_wanted]
    for path in sources:
        shutil.copyfile(path, folder / path.name)
    (folder / "words").write_bytes(b"".join(path.read_bytes() for path in sources))


def programs(bench: Bench) -> None:
    """Of the bytes that programs read and wrote, those that bypassed the kernel: in processes that
    did enough for a session."""
    with sessions(bench) as given:
        if given is None:
            return
        report = given.new_report()
        work = given.folder / "programs"
        make_source(work / "tree", 50 if bench.quick else 200)
        ran = 0
        for command in PROGRAMS:
            if shutil.which(command.split()[0]) is None:
                bench.skipped.append(f"programs: {command.split()[0]} is not installed")
                continue
            output("sh", "-c", command, cwd=work, env=given.preloaded(report))
            ran += 1
        accounts = [one for one in interception.read_report(report) if one.attached]
    whole = interception.total(accounts)
    share = 100 * whole.bypassed_bytes / max(1, whole.bypassed_bytes + whole.left_bytes)
    bench.figures.append(Figure(f"bytes bypassed by {ran} programs", share, "%", 95))
