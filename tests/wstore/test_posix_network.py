"""Network file systems: what a client remembers is asked again, and so is a mount that is away."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.wstore.posix_keys import listed, write
from wstore import errors
from wstore.stores import posix_looking
from wstore.stores.base import Expect, capabilities_at
from wstore.stores.mounts import FileSystem
from wstore.stores.posix_store import PosixStore
from wstore.stores.wrap import Retry, RetryPolicy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path))


def test_cached_absence_is_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that caches "no such file" until the parent directory is read."""
    write(store, "d/marker", b"x")
    hidden = True
    real_stat, real_open, real_scandir = os.stat, os.open, os.scandir
    path = os.fsencode(tmp_path / "d/marker")

    def stat_cached(name: bytes, **options: bool) -> os.stat_result:
        if hidden and name == path:
            raise FileNotFoundError(2, "No such file or directory")
        return real_stat(name, **options)

    def open_cached(name: bytes, flags: int) -> int:
        if hidden and name == path:
            raise OSError(116, "Stale file handle")
        return real_open(name, flags)

    def scandir(name: bytes) -> object:
        nonlocal hidden
        hidden = hidden and name != os.path.dirname(path)
        return real_scandir(name)

    monkeypatch.setattr(os, "stat", stat_cached)
    monkeypatch.setattr(os, "open", open_cached)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(errors.NotFound):  # local: believed at once
        store.stat("d/marker")
    with pytest.raises(errors.Unavailable):
        store.read("d/marker", 0, 1)
    assert hidden
    monkeypatch.setattr(posix_looking, "file_system_of", lambda path: FileSystem("nfs4"))
    assert store.stat("d/marker").size == 1
    hidden = True
    assert bytes(store.read("d/marker", 0, 1).data) == b"x"


def test_a_directory_whose_absence_is_cached_is_listed(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "run/d/marker", b"x")
    hidden, real_scandir = True, os.scandir

    def scandir(name: bytes) -> object:
        nonlocal hidden
        if hidden and name == os.fsencode(tmp_path / "run"):
            raise FileNotFoundError(2, "No such file or directory")
        hidden = hidden and name != os.fsencode(tmp_path)
        return real_scandir(name)

    monkeypatch.setattr(os, "scandir", scandir)
    assert listed(store, "run/") == []  # local: believed at once
    assert hidden
    monkeypatch.setattr(posix_looking, "file_system_of", lambda path: FileSystem("nfs4"))
    assert listed(store, "run/") == ["run/d/marker"]


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.seaweedfs"])
def test_cached_attributes_are_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A client that gives the attributes of a replaced file until they are asked from the server."""
    write(store, "x", b"old")
    old, real_stat, asked = os.stat(tmp_path / "x"), os.stat, list[bytes | int]()
    write(store, "x", b"newer")
    path = os.fsencode(tmp_path / "x")

    def stat_cached(name: bytes, **options: bool) -> os.stat_result:
        return old if name == path and not asked else real_stat(name, **options)

    monkeypatch.setattr(os, "stat", stat_cached)
    monkeypatch.setattr(posix_looking, "ask_attributes", asked.append)
    assert store.stat("x").size == 3  # local: believed
    monkeypatch.setattr(posix_looking, "file_system_of_device", lambda device: FileSystem(kind))
    tag = store.stat("x").tag
    assert bytes(store.read("x", 0, 9, tag=tag).data) == b"newer"


def test_what_a_mount_that_is_away_can_do_is_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "mount/x", b"data")
    real_stat, away = os.stat, 2

    def stat_away(name: bytes, **options: bool) -> os.stat_result:
        nonlocal away
        if away and os.fsencode(name).startswith(os.fsencode(tmp_path / "mount")):
            away -= 1
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return real_stat(name, **options)

    monkeypatch.setattr(os, "stat", stat_away)
    with pytest.raises(errors.ConnectionFailed):
        store.capabilities_at("mount/x")
    with pytest.raises(errors.ConnectionFailed):
        store.write("mount/y", memoryview(b""), expect=Expect.ABSENT)
    away = 2
    patient = Retry(store, RetryPolicy(), sleep=lambda seconds: None)
    assert capabilities_at(patient, "mount/x").create_if_absent
    assert away == 0
