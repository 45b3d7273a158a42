"""`WStoreFileSystem`: listings, walks and directories, without a cache, and reads of many ranges."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import fsspec
import pytest

from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    NotFound,
    ObjectChanged,
)
from wstore.fsspec import names
from wstore.stores.wrap import Fault, Faults, fail

if TYPE_CHECKING:
    from pathlib import Path

    from fsspec import AbstractFileSystem


# What is there


def test_listings(fs: AbstractFileSystem, place: StoragePath) -> None:
    base = str(place)
    fs.pipe({f"{base}/a.txt": b"1", f"{base}/sub/b.txt": b"22", f"{base}/sub/deep/c.bin": b"333"})
    assert fs.ls(base, detail=False) == [f"{base}/a.txt", f"{base}/sub"]
    assert [entry["type"] for entry in fs.ls(base)] == ["file", "directory"]
    assert fs.ls(f"{base}/a.txt") == [fs.info(f"{base}/a.txt")]
    assert fs.find(base) == [f"{base}/a.txt", f"{base}/sub/b.txt", f"{base}/sub/deep/c.bin"]
    assert set(fs.find(base, withdirs=True)) - set(fs.find(base)) == {
        base, f"{base}/sub", f"{base}/sub/deep",
    }  # fmt: skip
    assert fs.find(f"{base}/a.txt") == [f"{base}/a.txt"]
    assert fs.find(base, maxdepth=1) == [f"{base}/a.txt"]
    assert fs.find(f"{base}/none") == []
    assert fs.glob(f"{base}/**/*.txt") == [f"{base}/a.txt", f"{base}/sub/b.txt"]
    assert [names for _, names, _ in fs.walk(base)] == [["sub"], ["deep"], []]
    assert fs.du(base) == 6
    assert fs.isdir(f"{base}/sub")
    assert not fs.isdir(f"{base}/a.txt")
    assert fs.isfile(f"{base}/a.txt")
    assert fs.exists(f"{base}/sub")
    assert not fs.exists(f"{base}/su")
    for call in (fs.info, fs.ls, fs.modified, fs.rm):
        with pytest.raises(NotFound):
            call(f"{base}/none")
    fs.rm(f"{base}/sub", recursive=True)
    assert fs.find(base) == [f"{base}/a.txt"]


def test_walk(fs: AbstractFileSystem, place: StoragePath) -> None:
    for name in ("a/b/x", "a/y", "c/z", "w"):
        (place / name).write_bytes(b"")
    found = [(name, sorted(dirs), sorted(files)) for name, dirs, files in fs.walk(f"{place}")]
    deep = [(f"{place}/a", ["b"], ["y"]), (f"{place}/a/b", [], ["x"]), (f"{place}/c", [], ["z"])]
    assert found == [(f"{place}", ["a", "c"], ["w"]), *deep]
    assert [name for name, _, _ in fs.walk(f"{place}", topdown=False)] == [
        f"{place}/{name}".rstrip("/") for name in ("a/b", "a", "c", "")
    ]
    assert [name for name, _, _ in fs.walk(f"{place}", maxdepth=2)] == [
        f"{place}/{name}".rstrip("/") for name in ("", "a", "c")
    ]
    for name, dirs, files in fs.walk(f"{place}", detail=True):
        assert all(info["name"] == f"{name}/{key}" for key, info in {**dirs, **files}.items())
    pruned = fs.walk(f"{place}")
    next(pruned)[1].remove("a")
    assert [name for name, _, _ in pruned] == [f"{place}/c"]
    assert list(fs.walk(f"{place}/none")) == []
    with pytest.raises(ValueError, match="maxdepth"):
        list(fs.walk(f"{place}", maxdepth=0))


def test_nothing_is_cached(fs: AbstractFileSystem, memory: StoragePath) -> None:
    fs.pipe(f"{memory}/a", b"1")
    assert len(fs.ls(str(memory))) == 1
    other: AbstractFileSystem = fsspec.filesystem("wstore", skip_instance_cache=True)
    other.pipe(f"{memory}/b", b"2")
    assert len(fs.ls(str(memory))) == 2
    before = fs.ukey(f"{memory}/a"), fs.checksum(f"{memory}/a")
    assert before == (other.ukey(f"{memory}/a"), other.checksum(f"{memory}/a"))
    other.pipe(f"{memory}/a", b"3")
    assert fs.ukey(f"{memory}/a") != before[0]
    assert fs.checksum(f"{memory}/a") != before[1]
    assert fs.created(f"{memory}/a") == fs.modified(f"{memory}/a") == (memory / "a").stat().modified


def test_an_object_that_is_also_a_prefix(fs: AbstractFileSystem, memory: StoragePath) -> None:
    fs.pipe({f"{memory}/a": b"file", f"{memory}/a/b": b"below"})
    assert fs.info(f"{memory}/a")["type"] == "file"
    assert [entry["type"] for entry in fs.ls(str(memory))] == ["file", "directory"]
    assert fs.find(str(memory)) == [f"{memory}/a", f"{memory}/a/b"]
    fs.rm(f"{memory}/a", recursive=True)
    assert fs.find(str(memory)) == []


def test_directories(fs: AbstractFileSystem, tmp_path: Path, memory: StoragePath) -> None:
    fs.mkdir(f"{tmp_path}/a/b")
    with pytest.raises(AlreadyExists):
        fs.makedirs(f"{tmp_path}/a/b")
    fs.makedirs(f"{tmp_path}/a/b", exist_ok=True)
    with pytest.raises(DirectoryNotEmpty):
        fs.rmdir(f"{tmp_path}/a")
    with pytest.raises(IsADirectory):
        fs.rm(f"{tmp_path}/a")
    fs.rmdir(f"{tmp_path}/a/b")
    assert fs.ls(f"{tmp_path}/a") == []
    fs.makedirs(f"{memory}/a")
    fs.pipe(f"{memory}/a/x", b"")
    with pytest.raises(DirectoryNotEmpty):
        fs.rmdir(f"{memory}/a")


@pytest.mark.parametrize("kind", ["posix", "memory"])
def test_a_directory_that_cannot_be_listed_is_not_empty(
    fs: AbstractFileSystem,
    memory: StoragePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    base = memory if kind == "memory" else StoragePath(tmp_path / "base")
    for name in ("d/lost/x", "d/y", "z"):
        (base / name).write_bytes(b"data")

    def located(name: str, *, cut: str, client: str | None) -> StoragePath:
        denied = Fault(
            fail(lambda: AccessDenied("no")),
            lambda call: call.op == "list" and call.key.endswith("/lost/"),
            times=99,
        )
        return StoragePath(name, store=Faults(StoragePath(name).store, [denied]))

    monkeypatch.setattr(names, "located", located)
    target = tmp_path / "target"
    for look in (
        lambda: list(fs.walk(f"{base}")),
        lambda: fs.find(f"{base}", maxdepth=3),
        lambda: fs.glob(f"{base}/*/*/*"),
        lambda: fs.cat(f"{base}", recursive=True, maxdepth=3),
        lambda: fs.get(f"{base}", f"{target}", recursive=True, maxdepth=3),
        lambda: fs.rm(f"{base}", recursive=True, maxdepth=3),
    ):
        with pytest.raises(AccessDenied):
            look()
    assert not target.exists()
    seen: list[OSError] = []
    top = [name for name, _, _ in fs.walk(f"{base}", on_error="omit")]
    assert [name for name, _, _ in fs.walk(f"{base}", on_error=seen.append)] == top
    assert top == [f"{base}", f"{base}/d"]
    assert [type(error) for error in seen] == [AccessDenied]


def test_names_beside_and_below_a_removed_one(fs: AbstractFileSystem, place: StoragePath) -> None:
    for name in ("d/a/x", "d/a/y/z", "d/a-b", "d/z", "d/kept"):
        (place / name).write_bytes(b"")
    gone = [f"{place}/d/{name}" for name in ("a", "a-b", "a/x", "a/y/z", "z")]
    fs.rm(gone, recursive=True)
    assert fs.find(f"{place}") == [f"{place}/d/kept"]


# Reading


def test_slices(fs: AbstractFileSystem, memory: StoragePath) -> None:
    data = bytes(range(100))
    fs.pipe(f"{memory}/x", data)
    bounds = (None, 0, 3, 50, 99, 100, 101, -1, -50, -100, -101)
    pairs = list(itertools.product(bounds, bounds))
    for start, end in pairs:
        assert fs.cat_file(f"{memory}/x", start, end) == data[start:end], (start, end)
    starts, ends = zip(*pairs, strict=True)
    found = fs.cat_ranges([f"{memory}/x"] * len(pairs), list(starts), list(ends))
    assert found == [data[start:end] for start, end in pairs]
    assert all(type(part) is bytes for part in found)


def test_cat_ranges_of_many_files(fs: AbstractFileSystem, place: StoragePath) -> None:
    paths = [f"{place}/{number}" for number in range(5)]
    fs.pipe({path: path.encode() * 10 for path in paths})
    asked = [paths[number % 5] for number in range(20)]
    found = fs.cat_ranges(asked, list(range(20)), 30)
    assert found == [(path.encode() * 10)[start:30] for start, path in enumerate(asked)]
    assert fs.cat(paths) == {path: path.encode() * 10 for path in paths}
    assert fs.cat(str(place), recursive=True) == fs.cat(paths)
    missing = fs.cat_ranges([paths[0], f"{place}/none"], 0, 2)
    assert missing[0] == paths[0][:2].encode()
    assert isinstance(missing[1], NotFound)
    with pytest.raises(NotFound):
        fs.cat_ranges([paths[0], f"{place}/none"], 0, 2, on_error="raise")
    assert list(fs.cat([*paths, f"{place}/none"], on_error="omit")) == paths
    with pytest.raises(ValueError, match="shorter"):
        fs.cat_ranges(paths, [0], 1)


def test_the_reader_sees_one_content(fs: AbstractFileSystem, memory: StoragePath) -> None:
    fs.pipe(f"{memory}/x", b"old" * 3_000_000)
    with fs.open(f"{memory}/x") as file:
        assert file.read(3) == b"old"
        fs.pipe(f"{memory}/x", b"new" * 3_000_000)
        file.seek(8_000_000)
        with pytest.raises(ObjectChanged):
            file.read(3)
