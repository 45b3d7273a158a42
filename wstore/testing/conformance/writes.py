"""Writes and deletes: atomic, unaliased, conditional, without debris."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import (
    AlreadyExists,
    IsADirectory,
    NotADirectory,
    NotFound,
    PreconditionFailed,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import Expect, Sweep
from wstore.testing.conformance.place import attempt, contents, expect_error, names, pattern, view

if TYPE_CHECKING:
    from wstore.testing.conformance.place import StoreUnderTest


def check_write_is_what_others_see(place: StoreUnderTest) -> None:
    """The bytes are there as written, for another store and for other programs."""
    store, key = place.open(), place.key("new")
    for size in (1, 0, 65_537):
        data = pattern(size, size)
        info = store.write(key, view(data))
        assert info.size == size
        assert place.raw_get(key) == data
        assert contents(place.open(), key) == data
        assert store.stat(key).size == size


def check_others_writes_are_seen(place: StoreUnderTest) -> None:
    """Nothing is cached: what somebody else wrote is read at once, also where nothing was before."""
    store, key = place.open(), place.key("seen")
    expect_error(NotFound, lambda: store.stat(key))
    assert names(store.list(place.prefix, recursive=True), place.prefix) == []
    for data in (b"first", b"second, longer", b"3"):
        place.raw_put(key, data)
        assert store.stat(key).size == len(data)
        assert contents(store, key) == data
        assert names(store.list(place.prefix, recursive=True), place.prefix) == ["seen"]


def check_write_keeps_no_reference(place: StoreUnderTest) -> None:
    """The caller may change its memory as soon as `write` returns."""
    store, key = place.open(), place.key("alias")
    memory = bytearray(pattern(5000))
    wanted = bytes(memory)
    store.write(key, memoryview(memory))
    memory[:] = bytes(5000)
    assert contents(store, key) == wanted
    assert place.raw_get(key) == wanted
    memory.clear()  # a BufferError here would show an export that was kept


def check_write_of_a_slice(place: StoreUnderTest) -> None:
    """A slice of a larger buffer, read-only or writable, is written alone."""
    store, data = place.open(), pattern(1000)
    store.write(place.key("bytes"), view(data)[10:20])
    store.write(place.key("bytearray"), memoryview(bytearray(data))[990:])
    assert place.raw_get(place.key("bytes")) == data[10:20]
    assert place.raw_get(place.key("bytearray")) == data[990:]


def check_large_write(place: StoreUnderTest) -> None:
    """An object of several internal buffers, of a size that is no multiple of anything."""
    store, key, data = place.open(), place.key("large"), pattern((9 << 20) + 1)
    store.write(key, view(data))
    assert place.raw_get(key) == data
    assert store.read(key, 5 << 20, 1 << 20).data == view(data)[5 << 20 : 6 << 20]


def check_parents_are_made(place: StoreUnderTest) -> None:
    """Writing deep down needs no preparation."""
    store, key = place.open(), place.key("a/b/c/d/e")
    store.write(key, view(b"deep"))
    assert place.raw_get(key) == b"deep"


def check_write_where_a_directory_is(place: StoreUnderTest) -> None:
    """Where keys are paths, a directory is not overwritten; where they are not, the key is free."""
    store, key = place.open(), place.key("taken")
    place.raw_put(place.key("taken/child"), b"child")
    if store.capabilities.directories:
        expect_error(IsADirectory, lambda: store.write(key, view(b"x")))
    elif place.flat:
        store.write(key, view(b"x"))
        assert contents(store, key) == b"x"
    assert place.raw_get(place.key("taken/child")) == b"child"


def check_write_below_a_file(place: StoreUnderTest) -> None:
    """Where keys are paths, a file has no children and stays; where they are not, both are."""
    store = place.open()
    place.raw_put(place.key("file"), b"file")
    if store.capabilities.directories:
        expect_error(NotADirectory, lambda: store.write(place.key("file/child"), view(b"x")))
    elif place.flat:
        store.write(place.key("file/child"), view(b"x"))
        assert contents(store, place.key("file/child")) == b"x"
    assert place.raw_get(place.key("file")) == b"file"


def check_create(place: StoreUnderTest) -> None:
    """`Expect.ABSENT` makes an object once; the second time the first one stays."""
    store, key = place.open(), place.key("once")
    if not store.capabilities.create_if_absent:
        expect_error(
            UnsupportedOperation, lambda: store.write(key, view(b"x"), expect=Expect.ABSENT)
        )
        assert place.raw_get(key) is None
        return
    info = store.write(key, view(b"first"), expect=Expect.ABSENT)
    assert info.tag == store.stat(key).tag
    error = expect_error(
        AlreadyExists, lambda: store.write(key, view(b"second"), expect=Expect.ABSENT)
    )
    assert isinstance(error, FileExistsError)
    assert "once" in str(error)
    assert not error.retryable
    assert place.raw_get(key) == b"first"
    store.write(place.key("empty"), view(b""), expect=Expect.ABSENT)
    expect_error(
        AlreadyExists, lambda: store.write(place.key("empty"), view(b""), expect=Expect.ABSENT)
    )
    store.delete(key)
    store.write(key, view(b"third"), expect=Expect.ABSENT)
    assert place.raw_get(key) == b"third"


def check_create_meets_others(place: StoreUnderTest) -> None:
    """An object that somebody else made, even an empty one, is never replaced by a create."""
    store = place.open()
    place.raw_put(place.key("theirs"), b"")
    kind = AlreadyExists if store.capabilities.create_if_absent else UnsupportedOperation
    expect_error(
        kind, lambda: store.write(place.key("theirs"), view(b"ours"), expect=Expect.ABSENT)
    )
    assert place.raw_get(place.key("theirs")) == b""


def check_replace_only_that_content(place: StoreUnderTest) -> None:
    """A tag as `expect` replaces that content, and no other, and nothing that is not there."""
    store, key = place.open(), place.key("cas")
    stale = store.write(key, view(b"one")).tag
    if not store.capabilities.if_match:
        expect_error(UnsupportedOperation, lambda: store.write(key, view(b"x"), expect=stale))
        assert place.raw_get(key) == b"one"
        return
    fresh = store.write(key, view(b"two"), expect=stale).tag
    assert fresh == store.stat(key).tag != stale
    error = expect_error(PreconditionFailed, lambda: store.write(key, view(b"three"), expect=stale))
    assert not error.retryable
    assert place.raw_get(key) == b"two"
    expect_error(
        PreconditionFailed,
        lambda: store.write(place.key("none"), view(b"x"), expect=fresh),
    )
    assert place.raw_get(place.key("none")) is None


def check_refused_write_leaves_no_debris(place: StoreUnderTest) -> None:
    """After a refused create there is the old object and nothing else, also nothing hidden."""
    store, key = place.open(), place.key("kept")
    store.write(key, view(b"old"))
    kind = AlreadyExists if store.capabilities.create_if_absent else UnsupportedOperation
    expect_error(kind, lambda: store.write(key, view(b"new"), expect=Expect.ABSENT))
    assert names(store.list(place.prefix, recursive=True), place.prefix) == ["kept"]
    sweeper = store.feature(Sweep)
    if sweeper is not None:
        assert sweeper.sweep(place.prefix, older_than_s=0) == []
    assert place.raw_get(key) == b"old"


def check_delete(place: StoreUnderTest) -> None:
    """A deleted object is gone for all, and its siblings are not."""
    store = place.open()
    siblings = [place.key("ab"), place.key("b/a"), place.key("a.b")]
    for key in [place.key("a"), *siblings]:
        place.raw_put(key, b"x")
    store.delete(place.key("a"))
    assert place.raw_get(place.key("a")) is None
    expect_error(NotFound, lambda: store.stat(place.key("a")))
    expect_error(NotFound, lambda: place.open().read(place.key("a"), 0, 1))
    assert all(place.raw_get(key) == b"x" for key in siblings)


def check_delete_of_nothing(place: StoreUnderTest) -> None:
    """Deleting what is not there is `NotFound`, or nothing where the store cannot tell."""
    store = place.open()
    error = attempt(NotFound, lambda: store.delete(place.key("never/was")))
    assert error is None or "never/was" in str(error)
    assert names(store.list(place.prefix, recursive=True), place.prefix) == []


def check_delete_of_a_directory(place: StoreUnderTest) -> None:
    """`delete` never takes a directory or a prefix along."""
    store = place.open()
    place.raw_put(place.key("dir/child"), b"x")
    error = attempt(WStoreError, lambda: store.delete(place.key("dir")))
    assert error is None or isinstance(error, (IsADirectory, NotFound))
    assert place.raw_get(place.key("dir/child")) == b"x"
