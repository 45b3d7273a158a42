"""`WStoreFileSystem`: registration, forms of names, and what its instances hold."""

from __future__ import annotations

import json
import os
import pickle
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import fsspec
import pytest

from wstore import StoragePath
from wstore.errors import InvalidArgument, InvalidPath
from wstore.fsspec import WStoreFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from fsspec import AbstractFileSystem


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
