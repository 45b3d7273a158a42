"""Optional protocols: uploads, copies, directories, sweeping, settling; and how errors travel."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    NotADirectory,
    NotFound,
    WStoreError,
)
from wstore.stores.base import Copy, Directories, Multipart, Settle, Sweep
from wstore.testing.conformance.place import (
    contents,
    expect_error,
    names,
    pattern,
    succeed,
    together,
    view,
)

if TYPE_CHECKING:
    from wstore.stores.base import Store, Upload
    from wstore.testing.conformance.place import StoreUnderTest

FEATURES: tuple[type, ...] = (Multipart, Copy, Directories, Sweep, Settle)


class _Unknown:
    """A feature that no store has."""


def check_features_are_what_they_say(place: StoreUnderTest) -> None:
    """`feature` returns an object with the protocol's methods, or None, also for unknown ones."""
    store = place.open()
    for kind in FEATURES:
        found = store.feature(kind)
        assert found is None or isinstance(found, kind)
    assert store.feature(_Unknown) is None
    limits = store.capabilities.pieces
    assert 1 <= limits.min_piece <= limits.max_piece
    assert store.capabilities.request_bytes > 0
    assert store.capabilities.concurrency > 0


def check_url_and_errors(place: StoreUnderTest) -> None:
    """The URL has a scheme and no final slash; an error names it and the key, and survives pickling."""
    store = place.open()
    assert "://" in store.url
    assert not store.url.removesuffix("://").endswith("/") or store.url.endswith("://")
    error = expect_error(NotFound, lambda: store.stat(place.key("gone")))
    assert store.url.rstrip("/") in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.url, again.retryable) == (str(error), error.url, error.retryable)


def check_upload(place: StoreUnderTest) -> None:
    """Pieces become one object, in one step, and nothing is seen before."""
    store, key = place.open(), place.key("up/load")
    pieces = _pieces(store, 2)
    upload = _multipart(store).upload(key, size=sum(map(len, pieces)))
    for number, piece in enumerate(pieces):
        _put(store, upload, number, piece)
    assert place.raw_get(key) is None
    assert names(store.list(place.prefix, recursive=True), place.prefix) == []
    info = upload.complete()
    assert place.raw_get(key) == b"".join(pieces)
    assert (info.size, info.tag) == (sum(map(len, pieces)), store.stat(key).tag)


def check_upload_out_of_order_at_once(place: StoreUnderTest) -> None:
    """Pieces may be put in any order, from several threads, without a known size."""
    store, key = place.open(), place.key("mixed")
    pieces = _pieces(store, 2)
    upload = _multipart(store).upload(key)
    _put(store, upload, 2, pieces[2])
    succeed(together([partial(_put, store, upload, n, pieces[n]) for n in (1, 0)]))
    upload.complete()
    assert contents(store, key) == b"".join(pieces)


def check_upload_repeated_pieces(place: StoreUnderTest) -> None:
    """A piece put twice counts once, with its last bytes (a retry sends the whole piece again)."""
    store, key = place.open(), place.key("again")
    pieces = _pieces(store, 1)
    upload = _multipart(store).upload(key)
    _put(store, upload, 0, bytes(len(pieces[0])))
    _put(store, upload, 1, pieces[1])
    _put(store, upload, 0, pieces[0])
    _put(store, upload, 1, pieces[1])
    upload.complete()
    assert place.raw_get(key) == b"".join(pieces)


def check_upload_keeps_no_reference(place: StoreUnderTest) -> None:
    """The memory of a piece is the caller's again as soon as `put` returns."""
    store, key = place.open(), place.key("alias")
    memory = bytearray(pattern(5000))
    wanted = bytes(memory)
    upload = _multipart(store).upload(key)
    upload.put(0, 0, memoryview(memory))
    memory[:] = bytes(5000)
    memory.clear()
    upload.complete()
    assert place.raw_get(key) == wanted


def check_upload_replaces(place: StoreUnderTest) -> None:
    """An upload over an object leaves the old one until it completes, and all of the new one after."""
    store, key = place.open(), place.key("over")
    old = store.write(key, view(b"old, and longer than the new one"))
    upload = _multipart(store).upload(key)
    upload.put(0, 0, view(b"new"))
    assert store.stat(key).tag == old.tag
    new = upload.complete()
    assert place.raw_get(key) == b"new"
    assert new.tag == store.stat(key).tag != old.tag


def check_upload_without_pieces(place: StoreUnderTest) -> None:
    """Completing an upload to which nothing was put makes an empty object."""
    store, key = place.open(), place.key("none")
    assert _multipart(store).upload(key).complete().size == 0
    assert place.raw_get(key) == b""
    upload = _multipart(store).upload(place.key("empty"))
    upload.put(0, 0, view(b""))
    upload.complete()
    assert place.raw_get(place.key("empty")) == b""


def check_upload_aborted(place: StoreUnderTest) -> None:
    """An abort leaves the old object, or none, and no debris; a second one changes nothing."""
    store, key = place.open(), place.key("kept")
    store.write(key, view(b"old"))
    for name in ("kept", "new"):
        upload = _multipart(store).upload(place.key(name))
        upload.put(0, 0, view(pattern(1000)))
        upload.abort()
        upload.abort()
    _multipart(store).upload(place.key("unused")).abort()
    assert place.raw_get(key) == b"old"
    assert names(store.list(place.prefix, recursive=True), place.prefix) == ["kept"]
    sweeper = store.feature(Sweep)
    if sweeper is not None:
        assert sweeper.sweep(place.prefix, older_than_s=0) == []


def check_upload_ends_once(place: StoreUnderTest) -> None:
    """After an abort nothing can be published; after `complete` an abort takes nothing away."""
    store = place.open()
    upload = _multipart(store).upload(place.key("aborted"))
    upload.put(0, 0, view(b"x"))
    upload.abort()
    expect_error(WStoreError, upload.complete)
    assert place.raw_get(place.key("aborted")) is None
    upload = _multipart(store).upload(place.key("done"))
    upload.put(0, 0, view(b"x"))
    upload.complete()
    upload.abort()
    assert place.raw_get(place.key("done")) == b"x"


def check_uploads_of_one_key(place: StoreUnderTest) -> None:
    """Two uploads of one key do not touch each other's pieces; the last to complete stays. Where they
    share pieces by the service's design, the last to complete is refused, never mixed."""
    store, key = place.open(), place.key("two")
    first, second = _multipart(store).upload(key), _multipart(store).upload(key)
    first.put(0, 0, view(b"first"))
    second.put(0, 0, view(b"second"))
    second.complete()
    assert place.raw_get(key) == b"second"
    if place.one_upload:
        expect_error(WStoreError, first.complete)
        assert place.raw_get(key) == b"second"
        return
    first.complete()
    assert place.raw_get(key) == b"first"


def check_upload_odd_name(place: StoreUnderTest) -> None:
    """The names of uploads survive like all others."""
    store, key = place.open(), place.key("é+ %20#1?&'\"<>/a b")
    upload = _multipart(store).upload(key)
    upload.put(0, 0, view(b"odd"))
    upload.complete()
    assert place.raw_get(key) == b"odd"


def check_copy(place: StoreUnderTest) -> None:
    """A copy has the bytes of its source, replaces its target, and is independent from then on."""
    store, copier = place.open(), place.open().feature(Copy)
    if copier is None:
        return
    source, target = place.key("from + %20é"), place.key("deep/to#1")
    data = pattern(70_000)
    store.write(source, view(data))
    store.write(target, view(b"old"))
    info = copier.copy(source, target)
    assert (info.size, info.tag) == (len(data), store.stat(target).tag)
    assert place.raw_get(target) == data
    store.write(source, view(b"changed"))
    assert place.raw_get(target) == data
    store.write(place.key("empty"), view(b""))
    copier.copy(place.key("empty"), target)
    assert place.raw_get(target) == b""


def check_copy_of_nothing(place: StoreUnderTest) -> None:
    """A missing source is `NotFound` naming the source; the target stays."""
    store, copier = place.open(), place.open().feature(Copy)
    if copier is None:
        return
    store.write(place.key("target"), view(b"old"))
    error = expect_error(NotFound, lambda: copier.copy(place.key("no-source"), place.key("target")))
    assert "no-source" in str(error)
    assert place.raw_get(place.key("target")) == b"old"


def check_directories(place: StoreUnderTest) -> None:
    """Directories are made, told from files, and removed only when empty."""
    store = place.open()
    directories = store.feature(Directories)
    if directories is None:
        assert not store.capabilities.directories
        return
    store.write(place.key("dir/file"), view(b"x"))
    assert directories.is_dir(place.key("dir"))
    assert not directories.is_dir(place.key("dir/file"))
    assert not directories.is_dir(place.key("none"))
    expect_error(
        NotFound, lambda: directories.mkdir(place.key("no/parent"), parents=False, exist_ok=False)
    )
    directories.mkdir(place.key("new/deep"), parents=True, exist_ok=False)
    directories.mkdir(place.key("new/deep"), parents=True, exist_ok=True)
    expect_error(
        AlreadyExists,
        lambda: directories.mkdir(place.key("new/deep"), parents=True, exist_ok=False),
    )
    expect_error(
        AlreadyExists,
        lambda: directories.mkdir(place.key("dir/file"), parents=False, exist_ok=True),
    )
    expect_error(DirectoryNotEmpty, lambda: directories.rmdir(place.key("dir")))
    expect_error(NotADirectory, lambda: directories.rmdir(place.key("dir/file")))
    expect_error(NotFound, lambda: directories.rmdir(place.key("none")))
    directories.rmdir(place.key("new/deep"))
    assert not directories.is_dir(place.key("new/deep"))
    assert place.raw_get(place.key("dir/file")) == b"x"


def check_sweep(place: StoreUnderTest) -> None:
    """An abandoned upload stays while it is young, goes when it is old, and can then not complete."""
    store, sweeper = place.open(), place.open().feature(Sweep)
    if sweeper is None:
        return
    store.write(place.key("deep/kept"), view(b"kept"))
    upload = _multipart(store).upload(place.key("deep/left"))
    upload.put(0, 0, view(pattern(1000)))
    if place.tells_age:
        assert sweeper.sweep(place.prefix, older_than_s=3600) == []
    assert sweeper.sweep(place.key("elsewhere/"), older_than_s=0) == []
    # Servers tell the time of an upload in whole seconds.
    removed = sweeper.sweep(place.prefix, older_than_s=-2)
    assert len(removed) == 1, removed
    assert removed[0].startswith(place.key("deep/")), removed
    expect_error(WStoreError, upload.complete)
    upload.abort()
    assert sweeper.sweep(place.prefix, older_than_s=-2) == []
    assert place.raw_get(place.key("deep/left")) is None
    assert place.raw_get(place.key("deep/kept")) == b"kept"


def check_settle(place: StoreUnderTest) -> None:
    """`wrote` knows the write that made the present object, and no other."""
    store, key = place.open(), place.key("settled")
    settle = store.feature(Settle)
    store.write(key, view(b"one"), write_id="id-one")
    assert place.raw_get(key) == b"one"
    if settle is None:
        return
    assert settle.wrote(key, "id-one")
    assert not settle.wrote(key, "id-two")
    store.write(key, view(b"two"), write_id="id-two")
    assert not settle.wrote(key, "id-one")
    assert settle.wrote(key, "id-two")
    store.write(key, view(b"three"))
    assert not settle.wrote(key, "id-two")
    assert not settle.wrote(place.key("absent"), "id-one")


def _multipart(store: Store) -> Multipart:
    found = store.feature(Multipart)
    assert found is not None, "a store for weights needs uploads in pieces"
    return found


def _piece_size(store: Store) -> int:
    return max(store.capabilities.pieces.min_piece, 10_000)


def _pieces(store: Store, full: int) -> list[bytes]:
    """`full` pieces of the least size the service takes, and a short last one."""
    return [*(pattern(_piece_size(store), n) for n in range(full)), pattern(777, full)]


def _put(store: Store, upload: Upload, number: int, data: bytes) -> None:
    upload.put(number, number * _piece_size(store), view(data))
