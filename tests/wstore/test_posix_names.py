"""Files as objects: odd names, links, and files of other kinds, beyond the conformance suite."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.wstore.posix_keys import content, listed, write
from wstore import errors
from wstore.stores.base import Expect
from wstore.stores.posix_store import PosixStore
from wstore.stores.posix_temp import is_temp_name, new_temp_name

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path))


# Names


@pytest.mark.parametrize(
    "key",
    ["ckpt#1", "sub dir/a", "sub%20dir/a", "\udcff\udc80", "n" * 255, "ü" * 127, ".hidden", "a\nb"],
)
def test_odd_names_round_trip_and_are_listed(store: PosixStore, key: str) -> None:
    write(store, key, b"x")
    assert content(store, key) == b"x"
    assert listed(store) == [key]


def test_percent_is_never_decoded(store: PosixStore, tmp_path: Path) -> None:
    write(store, "sub dir/a", b"1")
    write(store, "sub%20dir/a", b"2")
    assert (tmp_path / "sub dir/a").read_bytes() == b"1"
    assert (tmp_path / "sub%20dir/a").read_bytes() == b"2"


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "a/..", "..", "a\0b", "\ud800", "a/", "n" * 256]
)
def test_bad_names_are_refused(store: PosixStore, tmp_path: Path, key: str) -> None:
    for call in (lambda: write(store, key, b"x"), lambda: store.stat(key)):
        with pytest.raises((errors.InvalidPath, errors.IsADirectory)):
            call()
    assert os.listdir(tmp_path) == []


def test_temp_names_are_reserved_and_hidden(store: PosixStore, tmp_path: Path) -> None:
    name = new_temp_name()
    assert is_temp_name(name)
    assert not is_temp_name(b".wstore-x.tmp")
    with pytest.raises(errors.InvalidPath):
        write(store, os.fsdecode(name), b"x")
    (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    assert listed(store) == listed(store, recursive=False) == []


def test_root_must_be_absolute() -> None:
    with pytest.raises(errors.InvalidPath):
        PosixStore("relative")


def test_listing_order_is_that_of_key_bytes(store: PosixStore) -> None:
    keys = ["a.b", "a/c", "a/d/e", "a0", "a-b", "é", "z", "\U0001f600", "\uffff"]
    for key in keys:
        write(store, key, b"")
    ordered = sorted(keys, key=os.fsencode)
    assert listed(store) == ordered
    for key in ordered:
        after = [entry.key for entry in store.list("", recursive=True, start_after=key)]
        assert after == ordered[ordered.index(key) + 1 :]
    assert listed(store, recursive=False)[:4] == ["a-b", "a.b", "a/", "a0"]


# Kinds of files


@pytest.mark.timeout(20)
def test_fifos_and_devices_are_refused_and_do_not_hang(store: PosixStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for key, place in (("fifo", store), ("dev/null", PosixStore())):
        for call in (
            lambda place=place, key=key: place.stat(key),
            lambda place=place, key=key: place.read(key, 0, 1),
            lambda place=place, key=key: write(place, key, b"x"),
            lambda place=place, key=key: place.copy(key, f"{tmp_path}/copy"[1:]),
            lambda place=place, key=key: place.upload(key),
        ):
            with pytest.raises(errors.UnsupportedOperation):
                call()
    assert listed(store) == []
    assert os.listdir(tmp_path) == ["fifo"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_directory_where_a_file_is_expected(store: PosixStore, tmp_path: Path) -> None:
    write(store, "d/f", b"x")
    for expect in Expect:
        with pytest.raises(errors.IsADirectory):
            write(store, "d", b"x", expect)
    for key in ("d", ""):
        with pytest.raises(errors.IsADirectory):
            store.read(key, 0, 1)
        with pytest.raises(errors.IsADirectory):
            store.delete(key)
    assert os.listdir(tmp_path) == ["d"]


def test_file_where_a_directory_is_expected(store: PosixStore) -> None:
    write(store, "f", b"x")
    with pytest.raises(errors.NotADirectory, match=r"file://.*/f/g"):
        write(store, "f/g", b"x")
    with pytest.raises(errors.NotADirectory):
        write(store, "f/g/h", b"x")
    with pytest.raises(errors.NotFound):
        store.stat("f/g")
    with pytest.raises(errors.NotADirectory):
        store.rmdir("f")
    with pytest.raises(errors.AlreadyExists):
        store.mkdir("f", parents=True, exist_ok=True)
    assert listed(store, "f/") == []
    assert not store.is_dir("f/g")


def test_symbolic_links_are_followed_as_open_does(store: PosixStore, tmp_path: Path) -> None:
    write(store, "real/f", b"old")
    (tmp_path / "link").symlink_to("real/f")
    write(store, "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert content(store, "real/f") == b"new"
    assert os.listdir(tmp_path / "real") == ["f"]
    (tmp_path / "dangling").symlink_to("real/made")
    with pytest.raises(errors.AlreadyExists):
        write(store, "dangling", b"x", Expect.ABSENT)
    write(store, "dangling", b"made")
    assert content(store, "real/made") == b"made"


@pytest.mark.timeout(20)
def test_loops_and_dangling_links_neither_hang_nor_crash(store: PosixStore, tmp_path: Path) -> None:
    write(store, "d/f", b"x")
    (tmp_path / "d/up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert listed(store) == ["d/f"]
    assert listed(store, recursive=False) == ["d/"]
    assert listed(store, "d/", recursive=False) == ["d/f", "d/up/"]
    with pytest.raises(errors.InvalidPath):
        store.stat("self")
    with pytest.raises(errors.InvalidPath):
        write(store, "self", b"x")
    with pytest.raises(errors.NotFound):
        store.stat("dangling")
    store.delete("d/up")
    assert content(store, "d/f") == b"x"
