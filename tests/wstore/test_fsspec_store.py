"""Stores over fsspec: choice of protocol, what each can write, errors, secrets, forks."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.config import conf

from tests.wstore.sftp_server import PASSWORD, sftp_server
from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    InvalidPath,
    MissingPackage,
    NoSpace,
    NotADirectory,
    NotFound,
    ObjectChanged,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import Expect, Multipart, Sweep
from wstore.stores.fsspec import scheme_of
from wstore.stores.fsspec.descriptions import described
from wstore.stores.fsspec.failures import meaning
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
    deadline = time.monotonic() + 60
    while os.waitpid(pid, os.WNOHANG)[0] != pid:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.02)
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
