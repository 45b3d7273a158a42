"""Known misbehaviour of storage libraries, writes: on a local disk (L), moto (M), SeaweedFS (W), and where
it was seen on an emulator of Google Cloud Storage, on one (X)."""

from __future__ import annotations

import io
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from wstore import AlreadyExists, PreconditionFailed, StoragePath, UnsupportedOperation
from wstore.stores.base import Sweep
from wstore.testing.conformance.place import together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.sources import Data

MiB = 1 << 20


also_on_gcs = pytest.mark.parametrize("base", ["local", "moto", "seaweed", "gcs"], indirect=True)


class _Halfway(Exception):
    """Raised by a source in the middle."""


def _write_and_fail(path: StoragePath, size: int) -> None:
    with path.open("wb") as file:
        file.write(bytes(size))
        raise _Halfway


def _no_debris(base: StoragePath) -> None:
    sweeper = base.store.feature(Sweep)
    assert sweeper is not None
    assert sweeper.sweep(f"{base.key}/", older_than_s=-2) == []


@also_on_gcs
@pytest.mark.parametrize("size", [4, 12 * MiB])
@pytest.mark.parametrize("old", [None, b"old"])
def test_t16_exception_inside_a_writer(base: StoragePath, size: int, old: bytes | None) -> None:
    """T16 (P1): a writer left by an exception publishes nothing and leaves nothing, small or large."""
    path = base / "object"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(_Halfway):
        _write_and_fail(path, size)
    assert (path.read_bytes() if path.exists() else None) == old
    assert [child.name for child in base.glob("*")] == ([] if old is None else ["object"])
    _no_debris(base)


def test_t19_source_that_raises(base: StoragePath) -> None:
    """T19 (P1): a source whose read fails half-way, as a file and as an iterable."""

    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise _Halfway

    def pieces() -> Iterator[bytes]:
        yield bytes(6 * MiB)
        raise _Halfway

    path = base / "object"
    path.write_bytes(b"old")
    sources: list[Data] = [io.BufferedReader(Broken()), pieces()]
    for source in sources:
        with pytest.raises(_Halfway):
            path.write_file(source, piece_size=5 * MiB)
        assert path.read_bytes() == b"old"
    _no_debris(base)


@also_on_gcs
def test_t22_t35_odd_names(base: StoragePath) -> None:
    """T22, T35 (P8): the name is kept to the letter, in writing, listing and reading."""
    odd = [
        "a b",
        "a%20b",
        "a%b",
        "a+b",
        "é/ü",
        "a#1",
        "ckpt#1",
        "a?b",
        "a&b=c",
        "x:y",
        "q'\"<>",
        "emoji😀",
        "br[1]*?.txt",
        "sub dir/x",
        "sub%20dir/x",
    ]
    for name in odd:
        (base / name).write_bytes(name.encode())
    listed = {path.relative_to(base): path for path in base.rglob("*") if path.is_file()}
    assert sorted(listed) == sorted(odd)
    for name in odd:
        assert listed[name].read_bytes() == name.encode()
        assert (base / name).read_text() == name


def test_t23_create_race(base: StoragePath) -> None:
    """T23 (P10): sixteen threads create one key; one wins, fifteen see FileExistsError."""
    path = base / "once"
    bodies = [bytes([n]) * 1024 for n in range(16)]
    results = together([partial(path.write_file, body, if_absent=True) for body in bodies])
    errors = [result for result in results if isinstance(result, BaseException)]
    assert len(errors) == 15
    assert all(isinstance(error, AlreadyExists) for error in errors), errors
    winner = next(n for n, r in enumerate(results) if not isinstance(r, BaseException))
    assert path.read_bytes() == bodies[winner]


def test_t23_large_create(base: StoragePath) -> None:
    """T23 (P10): 12 MiB created once; a second, sequential writer is refused."""
    path = base / "large"
    path.write_file(bytes(12 * MiB), if_absent=True)
    with pytest.raises(AlreadyExists):
        path.write_file(b"x" * 12 * MiB, if_absent=True)
    assert path.read_range(0, 4) == bytes(4)


def test_t24_replace_by_tag(base: StoragePath) -> None:
    """T24 (P10): with the present tag, then a stale one; on a missing key; unsupported on files."""
    path = base / "cas"
    tag = path.write_bytes(b"one").tag
    if base.is_local:
        with pytest.raises(UnsupportedOperation):
            path.write_bytes(b"two", if_match=tag)
        assert path.read_bytes() == b"one"
        return
    new = path.write_bytes(b"two", if_match=tag).tag
    with pytest.raises(PreconditionFailed):
        path.write_bytes(b"three", if_match=tag)
    with pytest.raises(PreconditionFailed):
        (base / "missing").write_bytes(b"x", if_match=new)
    assert path.read_bytes() == b"two"
    assert not (base / "missing").exists()


@also_on_gcs
def test_t28_pieces_of_nothing(base: StoragePath) -> None:
    """T28 (P1): nothing, in pieces, from memory, a stream or an iterator, is an empty object."""
    sources: list[Data] = [b"", iter(()), iter([b"", b""]), io.BytesIO()]
    for number, nothing in enumerate(sources):
        path = base / f"empty-{number}"
        assert path.write_file(nothing, piece_size=5 * MiB).size == 0
        assert path.read_bytes() == b""


def test_t33_pieces_of_every_source(base: StoragePath) -> None:
    """T33 (P3): an object of several pieces, written from memory and from a stream, is exact."""
    data = random.Random(33).randbytes(11 * MiB + 3)
    sources: list[Data] = [data, io.BytesIO(data)]
    for number, source in enumerate(sources):
        path = base / f"object-{number}"
        path.write_file(source, piece_size=5 * MiB, concurrency=2)
        assert path.read_bytes() == data
