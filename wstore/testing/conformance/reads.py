"""Reads: ranges, buffers, tags, missing keys."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import IsADirectory, NotADirectory, NotFound, ObjectChanged, WStoreError
from wstore.testing.conformance.place import (
    WHOLE,
    contents,
    expect_error,
    pattern,
    succeed,
    together,
    view,
)

if TYPE_CHECKING:
    from wstore.testing.conformance.place import StoreUnderTest

OFFSETS = (0, 5, 9, 10, 11, 1 << 33)
LENGTHS = (1, 5, 10, 100)


def check_ranges(place: StoreUnderTest) -> None:
    """Inside, up to, across and past the end: exactly the bytes that are there, shorter past it."""
    store, key, data = place.open(), place.key("ranges"), b"0123456789"
    place.raw_put(key, data)
    info = store.stat(key)
    for offset in OFFSETS:
        for length in LENGTHS:
            read = store.read(key, offset, length)
            assert bytes(read.data) == data[offset : offset + length], (offset, length)
            assert (read.info.size, read.info.tag) == (info.size, info.tag), (offset, length)


def check_ranges_into_a_buffer(place: StoreUnderTest) -> None:
    """The caller's memory is filled from its front, is what comes back, and keeps its rest."""
    store, key, data = place.open(), place.key("buffer"), b"0123456789"
    place.raw_put(key, data)
    for offset in OFFSETS:
        for length in LENGTHS:
            memory = bytearray(b"." * (length + 4))
            read = store.read(key, offset, length, buffer=memoryview(memory)[2:-2])
            wanted = data[offset : offset + length]
            assert bytes(read.data) == wanted, (offset, length)
            assert bytes(memory) == b".." + wanted.ljust(length + 2, b"."), (offset, length)
            if wanted:
                memory[2] ^= 255
                assert read.data[0] == memory[2], "the result is a copy of the caller's buffer"


def check_random_ranges(place: StoreUnderTest) -> None:
    """Random ranges of a larger object, unsorted, overlapping and repeated (seed 7)."""
    store, key, data = place.open(), place.key("random"), pattern(3 << 20)
    place.raw_put(key, data)
    source = random.Random(7)
    for _ in range(12):
        offset = source.randrange(len(data))
        length = source.choice((1, 1000, 1 << 16, len(data)))
        got = store.read(key, offset, length).data
        assert got == view(data)[offset : offset + length], (offset, length)


def check_tiny_ranges_from_many_threads(place: StoreUnderTest) -> None:
    """Many reads of a few bytes, eight at a time, each the right bytes."""
    store, key, data = place.open(), place.key("tiny"), pattern(4096)
    place.raw_put(key, data)

    def read(first: int) -> None:
        for offset in range(first * 8, len(data), 512):
            assert bytes(store.read(key, offset, 3).data) == data[offset : offset + 3], offset

    succeed(together([partial(read, first) for first in range(8)]))


def check_empty_object(place: StoreUnderTest) -> None:
    """Zero bytes are an object: it has a size, a tag and an empty content at every range."""
    store, key = place.open(), place.key("empty")
    place.raw_put(key, b"")
    info = store.stat(key)
    assert info.size == 0
    assert info.tag
    for offset, length in ((0, 1), (0, 10), (5, 10)):
        read = store.read(key, offset, length)
        assert (bytes(read.data), read.info.size, read.info.tag) == (b"", 0, info.tag)
        memory = bytearray(b"." * length)
        assert not store.read(key, offset, length, buffer=memoryview(memory)).data
        assert memory == b"." * length


def check_no_more_than_the_object(place: StoreUnderTest) -> None:
    """A length of a tebibyte costs only the bytes that are there."""
    store, key, data = place.open(), place.key("whole"), pattern(1000)
    place.raw_put(key, data)
    assert bytes(store.read(key, 0, WHOLE).data) == data
    assert bytes(store.read(key, 990, WHOLE).data) == data[990:]


def check_result_is_not_the_store(place: StoreUnderTest) -> None:
    """What a read returned stays as it was, and scribbling on it changes no object."""
    store, key, data = place.open(), place.key("result"), pattern(5000)
    store.write(key, view(data))
    first = store.read(key, 0, 5000).data
    store.write(key, view(bytes(5000)))
    assert bytes(first) == data
    second = store.read(key, 0, 5000).data
    if not second.readonly:
        second[:] = b"x" * 5000
    assert contents(store, key) == bytes(5000)
    memory = bytearray(5000)
    store.read(key, 0, 5000, buffer=memoryview(memory))
    memory[:] = b"y" * 5000
    assert contents(store, key) == bytes(5000)


def check_missing_key(place: StoreUnderTest) -> None:
    """A key that is not there is `NotFound` (a FileNotFoundError) that names it; siblings do not count."""
    store, key = place.open(), place.key("missing")
    place.raw_put(place.key("missing-not"), b"x")
    for call in (lambda: store.stat(key), lambda: store.read(key, 0, 1)):
        error = expect_error(NotFound, call)
        assert isinstance(error, FileNotFoundError)
        assert "missing" in str(error)
        assert error.url
        assert not error.retryable
    expect_error(NotFound, lambda: store.read(key, 0, 1, tag="tag"))
    expect_error(NotFound, lambda: store.stat(place.key("no/such/parent")))


def check_below_a_file(place: StoreUnderTest) -> None:
    """A key below an object is missing (where files are no directories, it may say so)."""
    store = place.open()
    place.raw_put(place.key("file"), b"x")
    for call in (
        lambda: store.stat(place.key("file/below")),
        lambda: store.read(place.key("file/below"), 0, 1),
    ):
        error = expect_error(WStoreError, call)
        assert isinstance(error, NotFound if place.flat else (NotFound, NotADirectory))


def check_prefix_is_no_object(place: StoreUnderTest) -> None:
    """A directory is `IsADirectory`; the prefix of a key is `NotFound`. Never empty bytes."""
    store = place.open()
    place.raw_put(place.key("parent/child"), b"x")
    kind = IsADirectory if store.capabilities.directories else NotFound
    expect_error(kind, lambda: store.stat(place.key("parent")))
    expect_error(kind, lambda: store.read(place.key("parent"), 0, 1))
    # With a tag a server that keeps objects as files may say that the content is another one.
    tagged = expect_error(WStoreError, lambda: store.read(place.key("parent"), 0, 1, tag="tag"))
    assert isinstance(tagged, kind if place.flat else (kind, ObjectChanged))


def check_tag_names_the_content(place: StoreUnderTest) -> None:
    """Stat, read, write and listing give one tag for one content, and another for another."""
    store, other, key = place.open(), place.open(), place.key("tags")
    written = store.write(key, view(b"one"))
    listed = next(iter(store.list(place.prefix, recursive=True))).info
    assert listed is not None
    tags = {written.tag, store.stat(key).tag, other.read(key, 0, 1).info.tag, listed.tag}
    assert len(tags) == 1, tags
    seen = {written.tag}
    for number in range(5):
        # Same size, as fast as it goes: a clock's tick is no excuse.
        seen.add(store.write(key, view(b"%03d" % number)).tag)
        seen.add(other.stat(key).tag)
    assert len(seen) == 6, seen


def check_tag_pins_a_read(place: StoreUnderTest) -> None:
    """With a tag a read is of that content or raises `ObjectChanged`, whoever replaced it."""
    store, key = place.open(), place.key("pinned")
    store.write(key, view(b"one"))
    tag = store.stat(key).tag
    assert bytes(store.read(key, 1, 2, tag=tag).data) == b"ne"
    place.raw_put(key, b"two")
    expect_error(ObjectChanged, lambda: store.read(key, 0, 3, tag=tag))
    expect_error(ObjectChanged, lambda: store.read(key, 3, 3, tag=tag))
    memory = bytearray(3)
    error = expect_error(
        ObjectChanged, lambda: store.read(key, 0, 3, buffer=memoryview(memory), tag=tag)
    )
    assert "pinned" in str(error)
    assert bytes(store.read(key, 0, 3, tag=store.stat(key).tag).data) == b"two"


def check_tag_of_another_object(place: StoreUnderTest) -> None:
    """A tag that is not this content's is refused, also one from elsewhere, also at the end."""
    store, key = place.open(), place.key("foreign")
    store.write(key, view(b"one"))
    store.write(place.key("other"), view(b"other"))
    foreign = store.stat(place.key("other")).tag
    expect_error(ObjectChanged, lambda: store.read(key, 0, 3, tag=foreign))
    expect_error(ObjectChanged, lambda: store.read(key, 100, 3, tag=foreign))


def check_time_of_change(place: StoreUnderTest) -> None:
    """`modified` is an aware UTC time, about when the object was written."""
    store, key = place.open(), place.key("time")
    info = store.write(key, view(b"x"))
    for modified in (info.modified, store.stat(key).modified, store.read(key, 0, 1).info.modified):
        assert modified.utcoffset() == timedelta(0)
        # An hour tells a wrong zone or epoch from a slow machine.
        assert abs(datetime.now(UTC) - modified) < timedelta(hours=1)
