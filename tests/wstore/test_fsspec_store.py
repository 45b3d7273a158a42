"""Stores over fsspec: choice of protocol, what each can write, secrets, connections, forks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.asyn import get_loop
from fsspec.config import conf

from tests.children import wait_for
from tests.wstore.sftp_server import PASSWORD, sftp_server
from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    CredentialsMissing,
    InvalidPath,
    IsADirectory,
    MissingPackage,
    NotADirectory,
    NotFound,
    ObjectChanged,
    StoreError,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import Expect, Multipart, Sweep
from wstore.stores.fsspec import scheme_of
from wstore.stores.fsspec.bridging import run_on
from wstore.stores.fsspec.fsspec_store import FsspecStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


@pytest.fixture(scope="module")
def sftp() -> Iterator[str]:
    with sftp_server() as root:
        yield root


# Protocols


def test_any_protocol_by_its_url(sftp: str, tmp_path: Path) -> None:
    path = StoragePath(f"sftp://{sftp}{tmp_path}") / "deep" / "file é"
    data = os.urandom(20 << 20)
    path.write_file([data[: 9 << 20], data[9 << 20 :]])
    assert (tmp_path / "deep" / "file é").read_bytes() == data
    assert path.read_range(5 << 20, 1000) == data[5 << 20 : (5 << 20) + 1000]
    assert [entry.name for entry in path.parent.iterdir()] == ["file é"]
    assert os.listdir(tmp_path / "deep") == ["file é"]
    path.remove()
    assert not path.exists()
    path.store.close()


def test_the_client_of_a_path() -> None:
    path = StoragePath("memory://client-test/a/b", client="fsspec")
    path.write_bytes(b"1")
    assert fsspec.filesystem("memory").cat_file("/client-test/a/b") == b"1"
    assert not StoragePath("memory://client-test/a/b").exists()


def test_local_files_through_fsspec(tmp_path: Path) -> None:
    path = StoragePath(tmp_path / "x" / "y", client="fsspec")
    path.write_bytes(b"one")
    tag = path.stat().tag
    path.write_bytes(b"two")
    assert path.stat().tag != tag
    assert (tmp_path / "x" / "y").read_bytes() == b"two"
    assert os.listdir(tmp_path / "x") == ["y"]


@pytest.mark.long
def test_s3fs(seaweed: S3Endpoint, bucket: MakeBucket, s3_environment: UseEndpoint) -> None:
    s3_environment(seaweed)
    path = StoragePath(f"s3://{bucket(seaweed)}/a/b", client="fsspec")
    data = os.urandom(1000)
    path.write_bytes(data)
    assert path.read_range(990, 100) == data[990:]
    tag = path.stat().tag
    path.write_bytes(b"other")
    with pytest.raises(ObjectChanged):
        path.store.read(path.key, 0, 1, tag=tag)
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]
    with pytest.raises(NotFound):
        list(StoragePath("s3://no-such-bucket/x", client="fsspec").iterdir())
    path.store.close()


def test_an_unknown_protocol() -> None:
    with pytest.raises(InvalidPath, match="nonsense"):
        StoragePath("nonsense://x/y")
    with pytest.raises(InvalidPath, match="nonsense"):
        scheme_of("nonsense")


@pytest.mark.parametrize(
    ("scheme", "module", "package"),
    [("sftp", "paramiko", "paramiko"), ("gs", "gcsfs", r"wstore\[gcs\]")],
)
def test_a_missing_package_is_named(
    scheme: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith((module, "wstore.stores.fsspec.gcs", "fsspec.implementations.sftp")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(MissingPackage, match=f"pip install '?{package}"):
        scheme_of(scheme)


def test_a_protocol_without_atomic_writes_is_read_only() -> None:
    store = FsspecStore("hf", "datasets")
    assert store.feature(Multipart) is None
    assert store.feature(Sweep) is None
    for call in (lambda: store.write("a/b", memoryview(b"x")), lambda: store.upload("a/b")):
        with pytest.raises(UnsupportedOperation, match="read-only"):
            call()


# Keys


def test_conditions_are_refused() -> None:
    store = FsspecStore("memory", "conditions")
    for expect in (Expect.ABSENT, "tag"):
        with pytest.raises(UnsupportedOperation, match="one publisher"):
            store.write("k", memoryview(b"x"), expect=expect)
    assert list(store.list("", recursive=True)) == []


@pytest.mark.parametrize("key", ["a//b", "a/./b", "a/../b", "a/", "/a", "\ud800", "x" * 5000])
def test_keys_that_fsspec_would_change(key: str) -> None:
    store = FsspecStore("memory", "keys")
    with pytest.raises(InvalidPath):
        store.write(key, memoryview(b"x"))
    with pytest.raises(InvalidPath):
        store.stat(key)


def test_nothing_is_written_where_a_directory_is(sftp: str, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    stores = [FsspecStore("file", ""), FsspecStore("sftp", sftp), FsspecStore("memory", "taken")]
    key = f"{tmp_path}/dir"[1:]
    stores[2].write(f"{key}/child", memoryview(b"x"))
    for store in stores:
        with pytest.raises(IsADirectory):
            store.write(key, memoryview(b"x"))
        upload = store.upload(key)
        upload.put(1, 0, memoryview(b"x"))
        with pytest.raises(IsADirectory):
            upload.complete()
        upload.abort()
        store.close()
    assert os.listdir(tmp_path / "dir") == []
    assert os.listdir(tmp_path) == ["dir"]


def test_nothing_is_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    store = FsspecStore("memory", "")
    store.write("top-level-file", memoryview(b"x"))
    assert list(store.list("top-level-file/", recursive=True)) == []
    assert list(FsspecStore("file", "").list(f"{tmp_path}/f/"[1:], recursive=True)) == []


def test_a_write_below_a_file_names_its_key_and_why(sftp: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    stores = [FsspecStore("file", ""), FsspecStore("sftp", sftp)]
    for store in stores:
        for key in (f"{tmp_path}/f/k"[1:], f"{tmp_path}/f/deep/er/k"[1:]):
            with pytest.raises(NotADirectory) as caught:
                store.write(key, memoryview(b"x"))
            assert caught.value.url == store.url_of(key)
            with pytest.raises(NotADirectory) as caught:
                store.upload(key)
            assert caught.value.url == store.url_of(key)
        store.close()


def test_a_parent_that_may_not_be_made_is_a_refusal(
    sftp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "mkdir", refuse)  # as for others than root
    store, key = FsspecStore("sftp", sftp), f"{tmp_path}/none/k"[1:]
    with pytest.raises(AccessDenied) as caught:
        store.write(key, memoryview(b"x"))
    assert caught.value.url == store.url_of(key)
    store.close()


# Connections


def test_no_secret_anywhere(sftp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conf, "sftp", {**conf["sftp"], "password": "wrong " + PASSWORD})
    store = FsspecStore("sftp", sftp)
    with pytest.raises(CredentialsMissing) as caught:
        store.stat("tmp")
    assert PASSWORD not in f"{caught.value}{caught.value!r}{store!r}"
    with pytest.raises(TypeError):
        store.__reduce__()


def test_a_lost_connection_is_made_anew(sftp: str, tmp_path: Path) -> None:
    store = FsspecStore("sftp", sftp)
    key = f"{tmp_path}/k"[1:]
    store.write(key, memoryview(b"x"))
    with store._clients.get().use() as files:
        files.client.close()
    with pytest.raises(WStoreError) as caught:
        store.stat(key)
    assert caught.value.retryable
    assert store.stat(key).size == 1
    store.close()


def test_a_forked_child_connects_by_itself(sftp: str, tmp_path: Path) -> None:
    store = FsspecStore("sftp", sftp)
    key = f"{tmp_path}/k"[1:]
    store.write(key, memoryview(b"x"))
    pid = os.fork()
    if not pid:
        try:
            store.write(key, memoryview(b"child"))
        finally:
            os._exit(0)
    wait_for(pid)
    assert bytes(store.read(key, 0, 9).data) == b"child"
    store.close()


def test_the_local_file_of_an_upload(
    sftp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no name; an upload that cannot have one leaves nothing on the server; a child that ends
    takes nothing away."""
    spools, remote = tmp_path / "spools", tmp_path / "remote"
    for directory in (spools, remote):
        directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    for scheme, root in (("file", ""), ("sftp", sftp), ("memory", "spools")):
        store = FsspecStore(scheme, root)
        upload = store.upload(f"{remote}/k"[1:])
        assert os.listdir(spools) == []
        pid = os.fork()
        if not pid:
            try:
                upload.__del__()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        upload.put(1, 0, memoryview(b"data"))
        upload.complete()
        assert bytes(store.read(f"{remote}/k"[1:], 0, 9).data) == b"data"
        store.close()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="local file"):
        FsspecStore("file", "").upload(f"{remote}/other"[1:])
    assert os.listdir(remote) == ["k"]


def test_a_call_from_fsspec_s_own_loop_does_not_wait_for_itself() -> None:
    loop = get_loop()

    async def inner() -> int:
        return 1

    async def outer() -> int:
        return run_on(loop, inner())

    with pytest.raises(UnsupportedOperation, match="loop"):
        asyncio.run_coroutine_threadsafe(outer(), loop).result(30)
    assert run_on(loop, inner()) == 1


# A hub


class _Hub(BaseHTTPRequestHandler):
    """A repository and a bucket, each with one file."""

    exists = False

    def do_GET(self) -> None:
        place = self.path.partition("?")[0].rstrip("/").removeprefix("/api/")
        file = {"type": "file", "path": "f", "size": 3, "oid": "1" * 40}
        held: dict[str, object] = {
            "datasets/u/r": {"id": "u/r", "_id": "1", "sha": "2" * 40},
            "datasets/u/r/revision/main": {"id": "u/r", "_id": "1", "sha": "2" * 40},
            "datasets/u/r/tree/main": [file],
            "buckets/u/b": {
                "id": "u/b",
                "private": False,
                "createdAt": "2026-11-30T12:00:00Z",
                "size": 3,
                "totalFiles": 1,
            },
            "buckets/u/b/tree": [
                {**file, "xetHash": "3" * 64, "mtime": "2026-11-30T12:00:00.000Z"}
            ],
        }
        found = held.get(place) if type(self).exists else None
        body = json.dumps(found or {}).encode()
        self.send_response_only(404 if found is None else 200)
        if found is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def _hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("root", ["datasets", "buckets"])
def test_a_hub_is_asked_each_time(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "u/r/f" if root == "datasets" else "u/b/f"
    with _hub() as url:
        monkeypatch.setitem(conf, "hf", {"endpoint": url, "token": False})
        monkeypatch.setattr(_Hub, "exists", False)
        store = FsspecStore("hf", root)
        with pytest.raises(NotFound):
            store.stat(key)
        monkeypatch.setattr(_Hub, "exists", True)
        assert store.stat(key).size == 3
        monkeypatch.setattr(_Hub, "exists", False)
        with pytest.raises(NotFound):
            store.stat(key)
        store.close()
