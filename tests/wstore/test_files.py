"""Objects as file objects."""

from __future__ import annotations

import gc
import io
import itertools
import random
import zipfile
from typing import TYPE_CHECKING

import pytest

from wstore import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    ObjectChanged,
    StoragePath,
    UnsupportedOperation,
)
from wstore.stores.base import MiB, Sweep

if TYPE_CHECKING:
    from pathlib import Path

_count = itertools.count()
BIG = random.Random(3).randbytes(12 * MiB + 77)


@pytest.fixture(params=["memory", "posix"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    base = f"memory://files{next(_count)}" if request.param == "memory" else tmp_path
    return StoragePath(base) / "x"


def test_reading_is_seekable_and_buffered(path: StoragePath) -> None:
    path.write_bytes(BIG)
    with path.open("rb") as file:
        assert file.read(10) == BIG[:10]
        assert file.seek(-7, io.SEEK_END) == len(BIG) - 7
        assert file.read() == BIG[-7:]
        assert file.read(1) == b""
        file.seek(5)
        assert file.tell() == 5
        target = bytearray(9 * MiB)
        assert file.readinto(target) == len(target)  # type: ignore[attr-defined]
        assert target == BIG[5 : 5 + len(target)]
        file.seek(len(BIG) + 10)
        assert file.read() == b""
        with pytest.raises(InvalidArgument):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_random_reads_equal_slices(path: StoragePath) -> None:
    path.write_bytes(BIG)
    rng = random.Random(4)
    with path.open("rb") as file:
        for _ in range(60):
            offset, length = rng.randrange(len(BIG)), rng.choice([0, 1, 100, 70_000])
            file.seek(offset)
            assert file.read(length) == BIG[offset : offset + length]


def test_reading_sees_one_content(path: StoragePath) -> None:
    path.write_bytes(BIG)
    with path.open("rb") as file:
        file.read(10)
        path.write_bytes(BIG[::-1])
        with pytest.raises(ObjectChanged):
            file.read()


def test_a_missing_object_is_not_opened(path: StoragePath) -> None:
    with pytest.raises(NotFound):
        path.open("rb")
    with pytest.raises(FileNotFoundError):
        path.open()


@pytest.mark.parametrize("size", [0, 5, len(BIG)])
def test_writing_publishes_at_the_end(path: StoragePath, size: int) -> None:
    with path.open("wb") as file:
        for start in range(0, size, 70_000):
            assert file.write(BIG[start : min(size, start + 70_000)]) > 0
        assert file.tell() == size
        assert not path.exists()
    assert file.info == path.stat()
    assert path.read_bytes() == BIG[:size]
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


@pytest.mark.parametrize("mode", ["wb", "w", "xb", "xt"])
@pytest.mark.parametrize("size", [4, 12 * MiB])
def test_an_exception_inside_publishes_nothing(path: StoragePath, mode: str, size: int) -> None:
    if "w" in mode:
        path.write_bytes(b"old")

    def write() -> None:
        with path.open(mode) as file:  # type: ignore[call-overload]
            file.write(b"h" * size if "b" in mode else "h" * size)
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert path.exists() == ("w" in mode)
    if "w" in mode:
        assert path.read_bytes() == b"old"
    sweeper = path.store.feature(Sweep)
    assert sweeper is not None
    assert sweeper.sweep("", older_than_s=0) == [] if not path.is_local else True


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_forgotten_file_publishes_nothing(path: StoragePath, mode: str) -> None:
    file = path.open(mode)  # type: ignore[call-overload]
    file.write(b"half" if mode == "wb" else "half")
    del file
    gc.collect()
    assert not path.exists()


def test_abort(path: StoragePath) -> None:
    file = path.open("wb")
    file.write(b"half")
    file.abort()
    file.abort()
    file.close()
    assert file.info is None
    assert not path.exists()


def test_exclusive_creation(path: StoragePath) -> None:
    with path.open("x") as text:
        text.write("first")
    file = path.open("xb")
    file.write(b"second")
    with pytest.raises(AlreadyExists):
        file.close()
    assert file.closed
    assert path.read_text() == "first"


def test_text(path: StoragePath) -> None:
    with path.open("w", encoding="utf-16") as file:
        print("één", "twee", sep="\n", file=file)
    with path.open(encoding="utf-16") as file:
        assert list(file) == ["één\n", "twee\n"]
    path.write_text("a\r\nb", encoding="latin-1")
    assert path.read_bytes() == b"a\r\nb"
    assert path.read_text() == "a\r\nb"


@pytest.mark.parametrize("mode", ["a", "r+", "rb+", "wbt", "", "q", "rw", "br+"])
def test_other_modes_are_refused(path: StoragePath, mode: str) -> None:
    with pytest.raises(UnsupportedOperation):
        path.open(mode)  # type: ignore[call-overload]


def test_a_zip_file_goes_both_ways(path: StoragePath) -> None:
    with path.open("wb") as target, zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a.bin", BIG[:100_000])
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("a.bin") == BIG[:100_000]
