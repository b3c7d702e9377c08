# SPDX-License-Identifier: Apache-2.0
"""What `dfusepy bench` measures: workloads on a mount and its peer, and the engine alone."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .bench_base import MIB, Bench, Figure, OurMount, both, mounted, output, seconds

SEQUENTIAL_MIB = 128
TREE_FILES = 10_000
IDLE_S = 10.0
NO_TIMEOUTS = "attr_timeout=0,entry_timeout=0,negative_timeout=0"

# -- metadata ----------------------------------------------------------------------------------


def metadata_round(folder: Path, count: int) -> dict[str, float]:
    """Microseconds an operation, on `count` files of one directory."""
    work = folder / "metadata"
    work.mkdir()
    paths = [os.fspath(work / f"file-{number:06}") for number in range(count)]

    def create() -> None:
        for path in paths:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def stat() -> None:
        for path in paths:
            os.stat(path)

    def unlink() -> None:
        for path in paths:
            os.unlink(path)

    def readdir() -> None:
        assert len(os.listdir(work)) == count

    steps = {"create + close": create, "stat": stat, "readdir": readdir, "unlink": unlink}
    result = {name: seconds(step) * 1e6 / count for name, step in steps.items()}
    work.rmdir()
    return result


def metadata(bench: Bench) -> None:
    """Nothing is remembered by the kernel, so that every request reaches the daemons."""
    count = 2_000 if bench.quick else 10_000
    with both(bench) as pair:
        if not pair:
            return
        samples: list[list[dict[str, float]]] = [[], []]
        for _ in range(bench.rounds):
            for mount, found in zip(pair, samples, strict=True):
                with mounted(mount, NO_TIMEOUTS) as folder:
                    found.append(metadata_round(folder, count))
    for name in samples[0][0]:
        ours, peer = (statistics.median(one[name] for one in found) for found in samples)
        bench.figures.append(
            Figure(f"{name}, {count} files", ours, "us", 0.4, peer, "bindfs", lower_is_better=True)
        )


# -- data --------------------------------------------------------------------------------------


def sequential_round(folder: Path) -> dict[str, float]:
    """MiB/s of 1 MiB calls on a file that has been written and read before."""
    path = folder / "sequential"
    chunk = bytearray(os.urandom(MIB))
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)

    def write() -> None:
        for number in range(SEQUENTIAL_MIB):
            os.pwrite(fd, chunk, number * MIB)

    def read() -> None:
        for number in range(SEQUENTIAL_MIB):
            assert os.preadv(fd, [chunk], number * MIB) == MIB

    try:
        write()
        result = {"write 1 MiB, warm": SEQUENTIAL_MIB / seconds(write)}
        read()
        result["read 1 MiB, warm"] = SEQUENTIAL_MIB / seconds(read)
    finally:
        os.close(fd)
        path.unlink()
    return result


def data(bench: Bench) -> None:
    with both(bench) as pair:
        if not pair:
            return
        samples: list[list[dict[str, float]]] = [[], []]
        for _ in range(bench.rounds):
            for mount, found in zip(pair, samples, strict=True):
                with mounted(mount) as folder:
                    found.append(sequential_round(folder))
    for name in samples[0][0]:
        ours, peer = (statistics.median(one[name] for one in found) for found in samples)
        bench.figures.append(Figure(name, ours, "MiB/s", 1.0, peer, "bindfs"))


# -- a tree of small files ---------------------------------------------------------------------


def make_tree(folder: Path, count: int) -> None:
    """Files of 100 B to 8 KiB, a hundred a directory."""
    noise = os.urandom(8192)
    for number in range(count):
        if number % 100 == 0:
            (folder / f"dir-{number // 100:04}").mkdir(parents=True)
        path = folder / f"dir-{number // 100:04}" / f"file-{number:05}"
        path.write_bytes(noise[: 100 + number * 7919 % 8092])


def read_tree(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            total += len(Path(base, name).read_bytes())
    return total


def tree(bench: Bench) -> None:
    count = 2_000 if bench.quick else TREE_FILES
    source = bench.memory / "source"
    make_tree(source, count)
    copy, cold = [], []
    with both(bench) as pair:
        if not pair:
            return
        for mount in pair:
            with mounted(mount) as folder:
                copy.append(count / seconds(lambda: output("cp", "-a", source, folder / "tree")))
            with mounted(mount) as folder:  # mounted anew: neither side remembers anything
                cold.append(count / seconds(lambda: read_tree(folder / "tree")))
    shutil.rmtree(source)
    for what, (ours, peer) in (("copy in", copy), ("read back, mounted anew", cold)):
        name = f"{what}: {count} small files"
        bench.figures.append(Figure(name, ours, "files/s", 0.8, peer, "bindfs"))


# -- idle --------------------------------------------------------------------------------------


def cpu_ns(pid: int) -> dict[str, int]:
    """Time that each thread of a process has run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {task.parent.name: int(task.read_text().split()[0]) for task in tasks}


def idle(bench: Bench) -> None:
    with both(bench) as pair:
        if not pair:
            return
        ours = pair[0]
        assert isinstance(ours, OurMount)
        with mounted(ours) as folder:
            (folder / "file").write_bytes(b"x")
            time.sleep(3)  # what was written is published by then
            pids = ours.pids
            start = [cpu_ns(pid) for pid in pids]
            time.sleep(IDLE_S)
            ran = sum(
                ns - before.get(task, 0)
                for pid, before in zip(pids, start, strict=True)
                for task, ns in cpu_ns(pid).items()
            )
            share = ran / (IDLE_S * 1e9) * 100
    bench.figures.append(Figure("an idle mount", share, "% cpu", 0.5, lower_is_better=True))


# -- the engine alone --------------------------------------------------------------------------

# Name in bench_engine's output -> (what, wanted, lower is better, peer).
ENGINE = {
    "fsync_overwrite": ("write 4 KiB + fsync, overwriting", 1.0, True, "the disk's own"),
    "fsync_append": ("write 4 KiB + fsync, appending", 1.0, True, "the disk's own"),
    "sequential_write": ("write 1 MiB sequentially, engine", 0.9, False, "fio"),
    "sequential_read": ("read 1 MiB sequentially, engine", 0.9, False, "fio"),
    "creates": ("creates, one thread, memory", 200_000.0, False, ""),
    "inode_memory": ("memory of a cached inode", 600.0, True, ""),
    "index_per_file": ("index of an empty file", 400.0, True, ""),
    "checkpoint_stall": ("longest stall in a checkpoint", 5.0, True, ""),
    "open_after_kill": ("open after kill -9", 5.0, True, ""),
}


def fio(bench: Bench, rw: str) -> float:
    """MiB/s of 1 MiB requests, direct, on a file that is written already."""
    found = output(
        "fio", "--name=peer", f"--filename={bench.disk / 'fio'}", f"--rw={rw}", "--bs=1M",
        "--size=192M", "--ioengine=io_uring", "--direct=1", "--iodepth=8", "--end_fsync=1",
        "--output-format=json",
    )  # fmt: skip
    job = json.loads(found)["jobs"][0]
    return float(job["read" if rw == "read" else "write"]["bw_bytes"]) / MIB


def engine_lines(bench: Bench, name: str, count: int) -> list[dict[str, Any]]:
    assert bench.engine_program is not None
    found = output(bench.engine_program, bench.disk, str(count), name)
    return [json.loads(line) for line in found.splitlines()]


def sequential(bench: Bench) -> list[dict[str, Any]]:
    """Ours and fio's in turn, so that both meet the same disk; the medians of the rounds."""
    has_fio = shutil.which("fio") is not None
    ours, peers = [], []
    try:
        if has_fio:
            fio(bench, "write")  # its file is there before it is measured, as ours is
        for _ in range(1 if bench.quick else 3):
            if has_fio:
                peers.append([fio(bench, "write"), fio(bench, "read")])
            ours.append(engine_lines(bench, "sequential", 0))
    finally:
        (bench.disk / "fio").unlink(missing_ok=True)
    lines = ours[0]
    for i, line in enumerate(lines):
        line["value"] = statistics.median(one[i]["value"] for one in ours)
        if peers:
            line["peer"] = statistics.median(one[i] for one in peers)
    return lines


def engine(bench: Bench) -> None:
    """Runs bench_engine; each figure that has a peer is measured beside it."""
    if bench.engine_program is None:
        bench.skipped.append("the engine alone: scripts/bench builds the program that measures it")
        return
    files = {"recovery": 100_000 if bench.quick else 1_000_000}
    for name in ("fsync", "sequential", "creates", "stall", "recovery"):
        count = files.get(name, 50_000 if bench.quick else 200_000)
        lines = sequential(bench) if name == "sequential" else engine_lines(bench, name, count)
        for found in lines:
            what, wanted, lower, peer_name = ENGINE[found["name"]]
            if name in ("creates", "stall", "recovery"):
                what = f"{what}, {count} files"
            bench.figures.append(
                Figure(
                    what, found["value"], found["unit"], wanted, found.get("peer"), peer_name, lower
                )
            )


GROUPS: dict[str, Callable[[Bench], None]] = {
    "metadata": metadata,
    "data": data,
    "tree": tree,
    "idle": idle,
    "engine": engine,
}
