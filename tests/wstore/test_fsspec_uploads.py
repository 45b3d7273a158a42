"""Uploads of stores over fsspec: whole contents, renames whose answer is lost, what a sweep removes."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import fsspec
import pytest

from wstore.errors import ConnectionFailed, NotFound, OutcomeUnknown, Unavailable
from wstore.stores.fsspec.fsspec_store import FsspecStore
from wstore.stores.fsspec.protocols import protocol_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsspec import AbstractFileSystem


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
