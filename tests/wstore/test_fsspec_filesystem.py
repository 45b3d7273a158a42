"""`WStoreFileSystem`: names, atomic files, transactions, ranges, and what others build on it."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import runpy
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
import zarr
from fsspec.callbacks import Callback
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    AlreadyExists,
    DirectoryNotEmpty,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NotFound,
    ObjectChanged,
    UnsupportedOperation,
)
from wstore.fsspec import WStoreFileSystem, names
from wstore.stores.wrap import Fault, Faults, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

_numbers = itertools.count()


@pytest.fixture
def fs() -> Iterator[AbstractFileSystem]:
    yield WStoreFileSystem()
    WStoreFileSystem.clear_instance_cache()


@pytest.fixture
def memory() -> StoragePath:
    return StoragePath(f"memory://fsspec-{next(_numbers)}/base")


@pytest.fixture(scope="module")
def s3_bucket(seaweed: S3Endpoint, bucket: MakeBucket) -> str:
    return bucket(seaweed)


@pytest.fixture(params=["posix", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_environment: UseEndpoint
) -> StoragePath:
    if request.param == "posix":
        return StoragePath(tmp_path / "base")
    s3_environment(request.getfixturevalue("seaweed"))
    return StoragePath(f"s3://{request.getfixturevalue('s3_bucket')}/fs-{next(_numbers)}")


# Names


def test_it_is_registered() -> None:
    (point,) = (p for p in entry_points(group="fsspec.specs") if p.name == "wstore")
    assert point.load() is WStoreFileSystem
    assert fsspec.get_filesystem_class("wstore") is WStoreFileSystem


def test_url_forms(fs: AbstractFileSystem, memory: StoragePath, tmp_path: Path) -> None:
    (memory / "a b%#?").write_bytes(b"remote")
    for url in (f"wstore://{memory.url}/a b%#?", f"wstore::{memory.url}/a b%#?"):
        found, name = fsspec.url_to_fs(url)
        assert isinstance(found, WStoreFileSystem)
        assert found.cat(name) == b"remote"
        assert found.cat(url) == b"remote"
        assert found.unstrip_protocol(name) == f"wstore://{memory.url}/a b%#?"
        assert found.ls(found._parent(name), detail=False) == [name]
        assert found.find(found._parent(name)) == [name]
    (tmp_path / "a%20b").write_bytes(b"local")
    for url in (f"wstore://{tmp_path}/a%20b", f"wstore://file://{tmp_path}/a%2520b"):
        found, name = fsspec.url_to_fs(url)
        assert name == f"{tmp_path}/a%20b"
        assert found.cat(name) == b"local"
    assert fs.cat(memory / "a b%#?") == b"remote"
    assert fs.cat(StoragePath(tmp_path / "a%20b")) == b"local"


@pytest.mark.parametrize(
    ("name", "parent"),
    [
        ("s3://bucket/a/b", "s3://bucket/a"),
        ("s3://bucket/a", "s3://bucket"),
        ("s3://bucket", "s3://bucket"),
        ("wstore://s3://bucket/a/", "s3://bucket"),
        ("/a/b", "/a"),
        ("/a", "/"),
        ("/", "/"),
    ],
)
def test_parent(name: str, parent: str) -> None:
    assert WStoreFileSystem._parent(name) == parent


def test_what_is_refused(fs: AbstractFileSystem, memory: StoragePath) -> None:
    with pytest.raises(InvalidPath, match="relative"):
        fs.cat_file("relative/name")
    with pytest.raises(InvalidPath, match="unknown scheme"):
        fs.cat_file("nonsense://x/y")
    with pytest.raises(InvalidArgument, match="options of the inner") as caught:
        fsspec.url_to_fs("wstore::memory://name/key", memory={"secret": "hidden"})
    assert "hidden" not in str(caught.value)
    with pytest.raises(TypeError):
        fsspec.filesystem("wstore", key="x")


def test_instances_pickle_and_hold_nothing(memory: StoragePath) -> None:
    for url in (f"wstore://{memory.url}/x", f"wstore::{memory.url}/x"):
        fs, name = fsspec.url_to_fs(url)
        fs.pipe(name, b"data")
        again = pickle.loads(pickle.dumps(fs))
        assert again == fs
        assert again.cat(name) == b"data"
        assert json.loads(fs.to_json())["cls"] == "wstore.fsspec.system:WStoreFileSystem"


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


# Writing


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


def test_names_beside_and_below_a_removed_one(fs: AbstractFileSystem, place: StoragePath) -> None:
    for name in ("d/a/x", "d/a/y/z", "d/a-b", "d/z", "d/kept"):
        (place / name).write_bytes(b"")
    gone = [f"{place}/d/{name}" for name in ("a", "a-b", "a/x", "a/y/z", "z")]
    fs.rm(gone, recursive=True)
    assert fs.find(f"{place}") == [f"{place}/d/kept"]


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


# Threads and processes


def test_threads_share_an_instance(fs: AbstractFileSystem, memory: StoragePath) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for count in range(20):
                fs.pipe(f"{memory}/{number}/{count}", str(count).encode())
            assert len(fs.find(f"{memory}/{number}")) == 20
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_after_a_fork(fs: AbstractFileSystem, place: StoragePath) -> None:
    fs.pipe(f"{place}/x", b"data")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if fs.cat(f"{place}/x") == b"data" else 1)
    assert os.waitpid(pid, 0)[1] == 0


# Others


def test_pandas(place: StoragePath, fs: AbstractFileSystem) -> None:
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [0.5, 0.25, 0.125]})
    frame.to_csv(f"wstore://{place}/log.csv", index=False)
    frame.to_json(f"wstore://{place}/log.json", orient="records")
    pd.testing.assert_frame_equal(pd.read_csv(f"wstore://{place}/log.csv"), frame)
    pd.testing.assert_frame_equal(pd.read_json(f"wstore://{place}/log.json"), frame)
    with pytest.raises(FileNotFoundError):
        pd.read_csv(f"wstore://{place}/none.csv")


def test_zarr(place: StoragePath) -> None:
    values = np.arange(600, dtype="f4").reshape(20, 30)
    url = f"wstore://{place}/array.zarr"
    array = zarr.create_array(url, shape=values.shape, chunks=(7, 30), dtype=values.dtype)
    array[:] = values
    array.attrs["step"] = 7
    again = zarr.open_array(url, mode="r")
    assert np.array_equal(again[:], values)
    assert again.attrs["step"] == 7
    group = zarr.open_group(f"wstore://{place}/group.zarr", mode="w")
    group.create_array("w", data=values)
    assert sorted(zarr.open_group(f"wstore://{place}/group.zarr", mode="r").array_keys()) == ["w"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # that is `no_dist`
@pytest.mark.parametrize("form", ["wstore://", "wstore::"])
def test_torch_distributed_checkpoint(place: StoragePath, form: str) -> None:
    weights = {"a": torch.randn(300, 200), "b": torch.arange(7, dtype=torch.bfloat16)}
    url = f"{form}{place.url}/checkpoint"
    save({**weights, "step": 3}, storage_writer=FsspecWriter(url, sync_files=False), no_dist=True)
    target: dict[str, Any] = {name: torch.zeros_like(old) for name, old in weights.items()}
    target["step"] = 0
    load(target, storage_reader=FsspecReader(url), no_dist=True)
    assert all(torch.equal(target[name], old) for name, old in weights.items())
    assert target["step"] == 3
    assert not [path.name for path in (place / "checkpoint").iterdir() if "tmp" in path.name]


@pytest.mark.filterwarnings("ignore:torch.distributed is :UserWarning")
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/storage.md").read_text()
    section = page.partition("## From pandas, torch DCP, zarr")[2].partition("\n## ")[0]
    code = section.partition("```python\n")[2].partition("```")[0]
    log, weights = pd.DataFrame({"loss": [0.5]}), {"w": torch.ones(3)}
    script, run = tmp_path / "page.py", tmp_path / "run"
    script.write_text(code)
    runpy.run_path(str(script), init_globals={"run": run, "log": log, "weights": weights})
    assert sorted(path.name for path in run.iterdir()) == ["log.csv", "moments.zarr", "step_1"]
