# SPDX-License-Identifier: Apache-2.0
"""scripts/readimage, which knows engine/FORMAT.md only, against what the engine says it wrote."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfusepy import engine
from dfusepy.engine import ROOT, Inode

READIMAGE = Path(__file__).parents[2] / "scripts" / "readimage"
MIB = 1 << 20
REG = stat.S_IFREG | 0o640

Facts = dict[str, Any]


def readimage(pool: Path, *options: str, status: int = 0) -> Facts:
    done = subprocess.run(
        [sys.executable, READIMAGE, pool, "--json", *options], capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    facts: Facts = json.loads(done.stdout)
    return facts


def file(fs: engine.FileSystem, parent: Inode, name: bytes, *parts: tuple[int, bytes]) -> Inode:
    ino = fs.mknod(parent, name, REG, uid=3, gid=4).ino
    for offset, data in parts:
        assert fs.write(ino, offset, data) == len(data)
    return ino


def populate(fs: engine.FileSystem) -> None:
    """Files of every shape: empty, inline, of blocks, with holes, with several names."""
    noise = random.Random(1)
    home = fs.mkdir(ROOT, b"home", 0o750, uid=3, gid=4).ino
    deep = home
    for name in (b"a", b"b\xff", "é".encode()):
        deep = fs.mkdir(deep, name, 0o700).ino
    file(fs, ROOT, b"empty")
    file(fs, ROOT, b"inline", (0, b"few bytes"))
    file(fs, home, b"blocks", (0, noise.randbytes(3 * MIB + 17)))
    sparse = file(fs, home, b"sparse", (5 * MIB, b"x" * 9000), (40 * MIB, noise.randbytes(4096)))
    fs.link(sparse, deep, b"second name")
    fs.setxattr(sparse, b"user.colour", b"blue")
    fs.symlink(deep, b"link", b"../../somewhere")
    fs.mknod(deep, b"pipe", stat.S_IFIFO | 0o600)
    for i in range(300):
        file(fs, deep, b"f%d" % i, (0, b"%d" % i * i))
    for i in range(0, 300, 3):
        fs.unlink(deep, b"f%d" % i)
    fs.rename(deep, b"f1", ROOT, b"moved")


def alter(fs: engine.FileSystem) -> None:
    """Changes after the snapshot, so that old states move to the side tables."""
    home = fs.lookup(ROOT, b"home").ino
    fs.write(fs.lookup(home, b"blocks").ino, MIB + 5, b"overwritten" * 1000)
    fs.write(fs.lookup(ROOT, b"inline").ino, 0, b"other bytes, and more")
    fs.unlink(home, b"sparse")
    fs.unlink(ROOT, b"moved")
    fs.setattr(fs.lookup(home, b"blocks").ino, size=2 * MIB)


def walk(fs: engine.FileSystem) -> Iterator[tuple[str, engine.Attr]]:
    yield "/", fs.getattr(ROOT)
    todo = [("/", ROOT)]
    while todo:
        path, ino = todo.pop()
        cookie = 0
        while entries := fs.readdir(ino, cookie, flags=engine.PLUS):
            for entry in entries:
                full = path + os.fsdecode(entry.name)
                attr = fs.getattr(fs.lookup(ino, entry.name).ino)
                yield full, attr
                if stat.S_ISDIR(attr.mode):
                    todo.append((full + "/", attr.ino))
                cookie = entry.cookie


def content(pool: Path, node: Facts) -> bytes:
    """A file's bytes, put together from the image (inline data is compared by its length only)."""
    data = bytearray(node["size"])
    with (pool / "data").open("rb") as device:
        for extent in node["extents"]:
            assert not extent.get("inline")
            device.seek(extent["block"] * 4096)
            data[extent["offset"] : extent["offset"] + extent["bytes"]] = device.read(
                extent["bytes"]
            )
    return bytes(data[: node["size"]])


def compare(pool: Path, tree: list[Facts], fs: engine.FileSystem, data: bool = True) -> None:
    nodes = {node["path"]: node for node in tree}
    expected = dict(walk(fs))
    assert nodes.keys() == expected.keys()
    for path, attr in expected.items():
        node = nodes[path]
        for name in ("ino", "mode", "uid", "gid", "nlink", "size", "mtime_ns"):
            assert node[name] == getattr(attr, name), (path, name)
        if stat.S_ISLNK(attr.mode):
            assert os.fsencode(node["target"]) == fs.readlink(attr.ino)
        for xattr in fs.listxattr(attr.ino):
            assert bytes.fromhex(node["xattrs"][xattr.decode()]) == fs.getxattr(attr.ino, xattr)
        if data and stat.S_ISREG(attr.mode) and not any("inline" in e for e in node["extents"]):
            assert content(pool, node) == bytes(fs.read(attr.ino, 0, attr.size))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A pool with a file system, a snapshot of it, and an object of keys; closed."""
    path = tmp_path / "store"
    engine.pool_create(path, "store", 128 * MIB)
    with engine.Pool.open(path, arena=64 * MIB, hugepages=False) as pool:
        pool.container_create("files", uid=7, gid=8)
        pool.container_create("objects", posix=False)
        with pool.container("files") as files, files.filesystem() as fs:
            populate(fs)
            fs.sync()
            files.snapshot_create("before")
            alter(fs)
        with pool.container("objects") as objects:
            objects.kv_put(engine.ObjectId(1, 2), b"d\0key", b"value", b"akey")
    return path


def test_a_closed_pool(store: Path) -> None:
    facts = readimage(store, "--data")
    assert facts["faults"] == []
    assert facts["pool"]["label"] == "store"
    assert facts["superblock"]["uuid"] == facts["pool"]["uuid"]
    files, objects = facts["containers"]
    assert (files["label"], objects["label"], objects["objects"]) == ("files", "objects", 1)
    with engine.Pool.open(store, arena=64 * MIB, hugepages=False, read_only=True) as pool:
        with pool.container("files") as live, live.filesystem() as fs:
            compare(store, files["tree"], fs)
        with pool.container("files", "before") as old, old.filesystem() as fs:
            assert [snap["name"] for snap in files["snapshots"]] == ["before"]
            compare(store, files["snapshots"][0]["tree"], fs)


CRASH = """
import sys
sys.path[:0] = [sys.argv[2]]
from dfusepy import engine
import test_readimage as t
engine.pool_create(sys.argv[1], "store", 128 << 20)
pool = engine.Pool.open(sys.argv[1], arena=64 << 20, hugepages=False)
pool.container_create("files", uid=7, gid=8)
fs = pool.container("files").filesystem()
t.populate(fs)
fs.sync()
pool.checkpoint()
t.alter(fs)
small = t.file(fs, t.ROOT, b"small", (0, b"s" * 9000))
fs.fsync(small)
fs.sync()
print("there", flush=True)
sys.stdin.read()
"""


def test_after_a_crash(tmp_path: Path) -> None:
    """What replay makes of the journal is what the engine's recovery makes of it."""
    path = tmp_path / "store"
    command = [sys.executable, "-c", CRASH, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"there\n"
        writer.send_signal(signal.SIGKILL)
    facts = readimage(path, "--data")
    assert facts["faults"] == []
    assert facts["journal"]["records"] > 0
    with (
        engine.Pool.open(path, arena=64 * MIB, hugepages=False) as pool,
        pool.container("files") as files,
        files.filesystem() as fs,
    ):
        compare(path, facts["containers"][0]["tree"], fs, data=False)
        assert fs.lookup(ROOT, b"small").size == 9000
    again = readimage(path, "--data")
    assert again["faults"] == []
    assert again["containers"][0]["tree"] == facts["containers"][0]["tree"]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as image:
        image.seek(offset)
        byte = image.read(1)[0]
        image.seek(offset)
        image.write(bytes([byte ^ 0x10]))


def test_damage_is_told(store: Path) -> None:
    whole = readimage(store)
    flip(store / "data", 100)
    assert readimage(store, status=1)["faults"] == ["superblock: copy 0 is damaged"]
    flip(store / "data", 100)
    tree = whole["containers"][0]["tree"]
    block = next(node for node in tree if node["path"] == "/home/blocks")["extents"][0]["block"]
    flip(store / "data", block * 4096 + 77)
    assert readimage(store)["faults"] == []
    (fault,) = readimage(store, "--data", status=1)["faults"]
    assert f"data checksum, block {block} on" in fault
    flip(store / "data", block * 4096 + 77)
    index = store / "index" / "data.mdb"
    for match in re.finditer(rb"files\0", index.read_bytes()):  # older pages have it too
        flip(index, match.start())
    assert any("checksum" in fault for fault in readimage(store, status=1)["faults"])


def test_refusals(store: Path, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        done = subprocess.run([sys.executable, READIMAGE, path], capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr

    assert "No such file" in refused(tmp_path / "none")
    with engine.Pool.open(store, arena=64 * MIB, hugepages=False):
        assert "is open" in refused(store)
    (store / "pool").write_text("dfusepy pool\nformat=2\nuuid=x\nlabel=l\ndevice=data\n")
    assert "newer version" in refused(store)
