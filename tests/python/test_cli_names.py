# SPDX-License-Identifier: Apache-2.0
"""Names, labels, sizes and where pools live: what needs no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dfusepy import pools
from dfusepy_cli.common import fields, format_size, parse_size, table


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DFUSEPY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2G", 2 << 30),
        ("512MiB", 512 << 20),
        ("1.5k", 1536),
        ("2GB", 2 * 10**9),
        (" 3 T ", 3 << 40),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "2X", "1e9", "2 G iB", "iB", "5iB", "0x10", "99999P", "٣G", "1.G"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|larger"):
        parse_size(text)


def test_format_size() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 2 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "2.0 GiB",
    ]


def test_columns() -> None:
    assert table([("a", "bbb"), ("cc", "d")], ("X", "Y")) == "X   Y\na   bbb\ncc  d"
    assert fields({"a": "1", "long": "2"}) == "a     1\nlong  2"


@pytest.mark.parametrize("label", ["demo", "A.b-c_9", "_x", "x" * 63])
def test_legal_labels(label: str) -> None:
    assert pools.check_label(label) == label


@pytest.mark.parametrize("label", ["", ".", "..", ".x", "-x", "a/b", "a b", "x" * 64, "ä", "a\n"])
def test_illegal_labels(label: str) -> None:
    with pytest.raises(pools.BadNameError):
        pools.check_label(label)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("demo/data", ("demo", "data")),
        ("/srv/big/data", ("/srv/big", "data")),
        ("./here/data", ("./here", "data")),
        ("~/pools/x/data", ("~/pools/x", "data")),
    ],
)
def test_container_names(name: str, parts: tuple[str, str]) -> None:
    assert pools.split(name) == parts


@pytest.mark.parametrize("name", ["demo", "", "/", "demo/", "/data", "./data", "a/b/c", "demo/.x"])
def test_no_container_names(name: str) -> None:
    with pytest.raises(pools.BadNameError):
        pools.split(name)


def test_claim_is_exclusive(home: Path, tmp_path: Path) -> None:
    first = pools.claim("demo", tmp_path / "one")
    assert first.path == tmp_path / "one"
    with pytest.raises(pools.LabelTakenError):
        pools.claim("demo", tmp_path / "two")
    pools.release(first.path)
    assert pools.claim("demo").path == home / "pools" / "demo"


def test_release_keeps_what_is_there(home: Path, tmp_path: Path) -> None:
    claimed = pools.claim("demo", tmp_path / "one")
    claimed.path.mkdir()
    (claimed.path / "data").touch()
    pools.release(claimed.path)
    assert pools.find("demo").path == claimed.path


def test_find(home: Path, tmp_path: Path) -> None:
    with pytest.raises(pools.NoPoolError, match=str(home)):
        pools.find("demo")
    (tmp_path / "one").mkdir()
    pools.claim("demo", tmp_path / "one")
    assert pools.find("demo").path == tmp_path / "one"
    assert pools.find(str(tmp_path / "one")).path == tmp_path / "one"
    (tmp_path / "one").rmdir()
    with pytest.raises(pools.NoPoolError, match="missing"):
        pools.find("demo")
    assert [pool.label for pool in pools.listing()] == ["demo"]


def test_homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pools.homes() == [tmp_path / "home"]
    monkeypatch.delenv("DFUSEPY_HOME")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert pools.homes() == [pools.SYSTEM_HOME]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/xdg")
    assert pools.homes() == [Path("/srv/xdg/dfusepy"), pools.SYSTEM_HOME]
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert pools.home() == Path.home() / ".local/share/dfusepy"
