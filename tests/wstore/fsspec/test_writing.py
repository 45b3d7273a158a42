"""`WStoreFileSystem`: atomic files, transactions, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pandas as pd
import pytest
from fsspec.callbacks import Callback

from wstore.errors import AlreadyExists, NotFound, UnsupportedOperation

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from wstore import StoragePath


# Files


def _write_half(fs: AbstractFileSystem, path: str, mode: str) -> None:
    with fs.open(path, mode) as file:
        file.write("half" if mode == "w" else b"half")
        assert not fs.exists(path)
        raise ZeroDivisionError


@pytest.mark.parametrize("mode", ["wb", "w", "xb"])
def test_an_exception_publishes_nothing(
    fs: AbstractFileSystem, place: StoragePath, mode: str
) -> None:
    path = f"{place}/x"
    with pytest.raises(ZeroDivisionError):
        _write_half(fs, path, mode)
    assert not fs.exists(path)
    with fs.open(path, mode) as file:
        file.write("whole" if mode == "w" else b"whole")
    assert fs.cat(path) == b"whole"
    assert not [entry for entry in fs.ls(str(place), detail=False) if entry != path]


class Unprintable:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_exception_publishes_nothing_for_those_who_just_close(
    fs: AbstractFileSystem, place: StoragePath, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{place}/x"
    url = fs.unstrip_protocol(path)
    half, whole = ("half", "whole") if mode == "w" else (b"half", b"whole")

    def write_half() -> None:
        with fsspec.open(url, mode) as file:
            file.write(half)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert f"{place.url}/x is not published" in caplog.text
    with pytest.raises(ZeroDivisionError):
        pd.DataFrame({"a": [1, Unprintable()]}).to_csv(url)
    assert not fs.exists(path)
    try:
        raise ValueError
    except ValueError:  # handled already when the file was opened
        with fsspec.open(url, mode) as file:
            file.write(whole)
    assert fs.cat(path) == b"whole"


def test_create_only(fs: AbstractFileSystem, memory: StoragePath) -> None:
    path = f"{memory}/x"
    with fs.open(path, "xb") as file:
        file.write(b"first")
    with pytest.raises(AlreadyExists):
        fs.open(path, "xb")
    fs.rm(path)
    late = fs.open(path, "xb")
    fs.pipe(path, b"meanwhile", mode="create")
    with pytest.raises(AlreadyExists):
        late.close()
    with pytest.raises(AlreadyExists):
        fs.put_file(__file__, path, mode="create")
    assert fs.cat(path) == b"meanwhile"


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "w+", "rw"])
def test_modes_that_change_in_place(fs: AbstractFileSystem, memory: StoragePath, mode: str) -> None:
    fs.pipe(f"{memory}/x", b"data")
    with pytest.raises(UnsupportedOperation, match="replaced whole"):
        fs.open(f"{memory}/x", mode)


def test_text_and_compression(fs: AbstractFileSystem, memory: StoragePath) -> None:
    with fs.open(f"{memory}/t", "w", encoding="utf-16", newline="\r\n") as file:
        file.write("é\n")
    assert fs.cat(f"{memory}/t") == "é\r\n".encode("utf-16")
    assert fs.read_text(f"{memory}/t", encoding="utf-16") == "é\n"
    with fsspec.open(f"wstore://{memory}/t.gz", "wt", compression="gzip") as file:
        file.write("text")
    with fs.open(f"{memory}/t.gz", "rt", compression="gzip") as file:
        assert file.read() == "text"
    with pytest.raises(UnsupportedOperation, match=r"fsspec\.open"):
        fs.open(f"{memory}/t.gz", "wb", compression="gzip")
    file.close()


def test_files_between_places(fs: AbstractFileSystem, memory: StoragePath, tmp_path: Path) -> None:
    seen = Callback()
    (tmp_path / "up").write_bytes(b"data")
    fs.put_file(tmp_path / "up", f"{memory}/x", callback=seen)
    assert (seen.size, seen.value) == (4, 4)
    fs.get_file(f"{memory}/x", tmp_path / "new" / "down", callback=seen)
    assert (tmp_path / "new" / "down").read_bytes() == b"data"
    into = io.BytesIO()
    fs.get_file(f"{memory}/x", into)
    assert into.getvalue() == b"data"
    with pytest.raises(NotFound):
        fs.get_file(f"{memory}/none", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    fs.mv(f"{memory}/x", str(tmp_path / "moved"))
    assert (tmp_path / "moved").read_bytes() == b"data"
    assert not fs.exists(f"{memory}/x")


# Transactions


def test_a_transaction_publishes_at_its_end(fs: AbstractFileSystem, place: StoragePath) -> None:
    with fs.transaction:
        with fs.open(f"{place}/text", "w") as text:
            text.write("text")
        fs.pipe(f"{place}/piped", b"bytes")
        fs.put_file(__file__, f"{place}/put")
        with fsspec.open(f"wstore://{place}/opened", "wb") as other:
            other.write(b"by url")
        with pytest.raises(ZeroDivisionError):
            _write_half(fs, f"{place}/failed", "wb")
        assert fs.find(str(place)) == []
    assert [Path(name).name for name in fs.find(str(place))] == ["opened", "piped", "put", "text"]
    assert fs.cat(f"{place}/opened") == b"by url"


def test_a_failed_transaction_publishes_nothing(fs: AbstractFileSystem, place: StoragePath) -> None:
    def fail() -> None:
        with fs.transaction:
            with fs.open(f"{place}/large", "wb") as file:
                file.write(bytes(20 << 20))
            with fsspec.open(f"wstore://{place}/opened", "wb") as other:
                other.write(b"by url")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert fs.find(str(place)) == []
    assert place.sweep(older_than=0) == []
    fs.pipe(f"{place}/after", b"now")
    assert fs.exists(f"{place}/after")


def test_put_in_a_transaction_creates_or_replaces(
    fs: AbstractFileSystem, place: StoragePath, tmp_path: Path
) -> None:
    local, steps = tmp_path / "local", list[tuple[int, int]]()
    callback = Callback(hooks={"step": lambda size, value, **_: steps.append((value, size))})
    local.write_bytes(bytes(range(256)) * 5000)
    with fs.transaction:
        fs.put_file(local, f"{place}/x", mode="create", callback=callback)
        assert not (place / "x").exists()
    assert (place / "x").read_bytes() == local.read_bytes()
    assert steps[-1] == (1_280_000, 1_280_000)
    with fs.transaction:
        fs.put_file(__file__, f"{place}/x")
    assert (place / "x").read_bytes() == Path(__file__).read_bytes()

    def late() -> None:
        with fs.transaction:
            fs.put_file(local, f"{place}/y", mode="create")
            (place / "y").write_bytes(b"another's")

    with pytest.raises(AlreadyExists):
        late()
    assert (place / "y").read_bytes() == b"another's"
