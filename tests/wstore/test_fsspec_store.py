"""Stores over fsspec: choice of protocol, what each can write, errors, secrets, forks."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager
from datetime import UTC, datetime
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
    ConnectionFailed,
    CredentialsMissing,
    InvalidPath,
    IsADirectory,
    MissingPackage,
    NoSpace,
    NotADirectory,
    NotFound,
    ObjectChanged,
    OutcomeUnknown,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import Expect, Multipart, Sweep
from wstore.stores.fsspec import scheme_of
from wstore.stores.fsspec.bridging import run_on
from wstore.stores.fsspec.descriptions import described
from wstore.stores.fsspec.failures import meaning, translated
from wstore.stores.fsspec.fsspec_store import FsspecStore
from wstore.stores.fsspec.protocols import protocol_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fsspec import AbstractFileSystem

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


@pytest.fixture(scope="module")
def sftp() -> Iterator[str]:
    with sftp_server() as root:
        yield root


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


class SSHException(Exception):
    """Named as paramiko's."""


class NoCredentialsError(Exception):
    """Named as botocore's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), NotFound),
        (PermissionError("x"), AccessDenied),
        (FileExistsError("x"), NotADirectory),
        (TimeoutError(), StoreTimeout),
        (ConnectionResetError(), ConnectionFailed),
        (EOFError(), ConnectionFailed),
        (SSHException("x"), ConnectionFailed),
        (NoCredentialsError("x"), CredentialsMissing),
        (ImportError("pip install x"), MissingPackage),
        (NotImplementedError(), UnsupportedOperation),
        (OSError(errno.ENOSPC, "full"), NoSpace),
        (OSError(errno.EBUSY, "slow down"), Unavailable),
        (OSError(errno.EINVAL, "odd"), StoreError),
        (ValueError("a secret"), StoreError),
    ],
)
def test_what_an_error_means(error: Exception, kind: type[WStoreError]) -> None:
    found = meaning(error, "sftp://h/k")
    assert type(found) is kind
    assert found.url == "sftp://h/k"
    assert "secret" not in str(found)


def test_descriptions_of_many_protocols() -> None:
    then = datetime(2026, 11, 30, 12, tzinfo=UTC)
    s3 = described({"size": 3, "ETag": '"e"', "LastModified": then}, "u")
    assert (s3.size, s3.tag, s3.modified) == (3, "e", then)
    sftp_file = described({"size": 3, "mtime": then.replace(tzinfo=None)}, "u")
    assert sftp_file.modified == then
    assert sftp_file.tag == described({"size": 3, "mtime": then.timestamp()}, "u").tag
    assert described({"size": 3, "mtime": then.timestamp() + 1}, "u").tag != sftp_file.tag
    assert described({"size": 3, "modify": "20261130120000"}, "u").modified == then
    with pytest.raises(StoreError):
        described({"size": None}, "u")
    assert (
        described({"size": 3, "modify": "20261130120000.250"}, "u").modified.microsecond == 250_000
    )
    hdfs = described({"size": 3, "modificationTime": int(then.timestamp() * 1000) + 7}, "u")
    assert hdfs.modified == then.replace(microsecond=7000)
    http = described({"size": 3, "Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT"}, "u")
    assert http.modified == then


@pytest.mark.parametrize("raw", [{}, {"modify": "Jan 12 10:30"}, {"ETag": "", "mtime": None}])
def test_contents_that_cannot_be_told_apart(raw: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="told from another"):
        described({"size": 3, **raw}, "u")


def test_an_upload_to_memory_appears_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader sees at any moment is one of the two contents."""
    store = FsspecStore("memory", "whole")
    store.write("k", memoryview(b"old"))
    files = fsspec.filesystem("memory")
    data = os.urandom(9 << 20)
    upload = store.upload("k")
    upload.put(1, 0, memoryview(data))
    seen = set()
    kind = type(files.store["/whole/k"])
    write = kind.write

    def watched(self: object, block: bytes) -> int:
        seen.add(files.info("/whole/k")["size"])
        done: int = write(self, block)
        return done

    monkeypatch.setattr(kind, "write", watched)
    upload.complete()
    assert seen <= {3, len(data)}
    assert files.cat_file("/whole/k") == data


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


def test_a_rename_into_a_directory_that_came_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "temp").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    move = protocol_of("local").move
    with pytest.raises(IsADirectoryError):
        move(fsspec.filesystem("file"), str(tmp_path / "temp"), str(tmp_path / "dir"))


def _lossy(store: FsspecStore, then: Callable[[str], None]) -> None:
    """The answer to the store's first rename is lost, after it took place and `then` was done."""
    move = store.protocol.move

    def moved(files: AbstractFileSystem, path: str, target: str) -> None:
        store.protocol = dataclasses.replace(store.protocol, move=move)
        move(files, path, target)
        then(target)
        raise ConnectionResetError

    store.protocol = dataclasses.replace(store.protocol, move=moved)


def test_a_rename_whose_answer_is_lost(tmp_path: Path) -> None:
    store, key = FsspecStore("file", ""), f"{tmp_path}/k"[1:]
    _lossy(store, lambda target: None)
    upload = store.upload(key)
    upload.put(1, 0, memoryview(b"mine"))
    with pytest.raises(ConnectionFailed):
        upload.complete()
    assert upload.complete() == store.stat(key)
    assert os.listdir(tmp_path) == ["k"]

    def replaced(target: str) -> None:
        (tmp_path / "k").write_bytes(b"another's")

    for then in (replaced, os.unlink):
        _lossy(store, then)
        upload = store.upload(key)
        upload.put(1, 0, memoryview(b"mine"))
        with pytest.raises(ConnectionFailed):
            upload.complete()
        with pytest.raises(OutcomeUnknown):
            upload.complete()
        upload.abort()


def test_a_swept_upload_and_a_lost_connection_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = FsspecStore("file", ""), f"{tmp_path}/k"[1:]
    upload = store.upload(key)
    upload.put(1, 0, memoryview(b"mine"))
    with store._clients.get().use() as files, monkeypatch.context() as patch:

        def info(path: str) -> dict[str, object]:
            raise ConnectionResetError

        patch.setattr(files, "info", info)
        with pytest.raises(ConnectionFailed):
            upload.complete()
    assert [entry.key for entry in store.all_entries(f"{tmp_path}/"[1:])]
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    with pytest.raises(NotFound, match="swept"):
        upload.complete()


def test_whole_seconds_that_cannot_be_set(tmp_path: Path) -> None:
    """As on FTP: a second content in one second is refused, and may be sent again."""
    store, key = FsspecStore("file", ""), f"{tmp_path}/k"[1:]
    move = store.protocol.move
    now = [1_000]

    def send(files: AbstractFileSystem, path: str, content: bytes) -> None:
        files.pipe_file(path, content)
        os.utime(path, (now[0], now[0]))

    store.protocol = dataclasses.replace(protocol_of("ftp"), send=send, move=move)
    first = store.write(key, memoryview(b"one"))
    with pytest.raises(Unavailable) as caught:
        store.write(key, memoryview(b"two"))
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, 1.0)
    assert (tmp_path / "k").read_bytes() == b"one"
    now[0] += 1
    assert store.write(key, memoryview(b"two")).tag != first.tag
    assert os.listdir(tmp_path) == ["k"]


def test_seconds_between_overwrites() -> None:
    told = {name: protocol_of(name).whole_seconds for name in ("ftp", "sftp", "file", "memory")}
    assert told == {"ftp": True, "sftp": True, "file": False, "memory": False}


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


def test_parts_that_s3fs_sends_at_once() -> None:
    class Files:
        def put_file(self, local: str, path: str, *, max_concurrency: int) -> None:
            assert (local, path) == ("/spool", "b/k")
            assert max_concurrency * (50 << 20) <= 256 << 20

    for scheme in ("s3", "s3a"):
        protocol_of(scheme).put(Files(), "b/k", "/spool")


def test_a_sweep_names_what_it_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, prefix = FsspecStore("file", ""), f"{tmp_path}/"[1:]
    names = [f".wstore-{digit * 32}.tmp" for digit in "ab"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with store._clients.get().use() as files:
        remove = files.rm_file

        def rm_file(path: str) -> None:
            if path.endswith(names[0]):
                raise PermissionError(path)
            remove(path)

        monkeypatch.setattr(files, "rm_file", rm_file)
    assert store.sweep(prefix, older_than_s=-1) == [prefix + names[1]]
    assert os.listdir(tmp_path) == [names[0]]


def test_nothing_is_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    store = FsspecStore("memory", "")
    store.write("top-level-file", memoryview(b"x"))
    assert list(store.list("top-level-file/", recursive=True)) == []
    assert list(FsspecStore("file", "").list(f"{tmp_path}/f/"[1:], recursive=True)) == []


def test_a_cause_is_not_shown_by_a_traceback() -> None:
    with pytest.raises(StoreError) as caught, translated("u"):
        raise ValueError("a secret")
    error = caught.value
    assert error.__cause__ is error.__context__ is None
    shown = "".join(traceback.format_exception(error))
    assert "ValueError: " not in shown
    assert "test_a_cause_is_not_shown" in shown


def test_a_call_from_fsspec_s_own_loop_does_not_wait_for_itself() -> None:
    loop = get_loop()

    async def inner() -> int:
        return 1

    async def outer() -> int:
        return run_on(loop, inner())

    with pytest.raises(UnsupportedOperation, match="loop"):
        asyncio.run_coroutine_threadsafe(outer(), loop).result(30)
    assert run_on(loop, inner()) == 1


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
