"""Ranged and parallel reads: exact bytes, one content, the caller's memory, few requests."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from wstore import InvalidArgument, NotFound, ObjectChanged, StoragePath, StoreError
from wstore.stores.base import MiB, ObjectInfo, Read
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Call, Fault, Faults, Retry, RetryPolicy, Trace, TraceRecord, cut_body

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_count = itertools.count()
BIG = random.Random(1).randbytes(20 * MiB + 12345)


@pytest.fixture(params=["memory", "posix"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    if request.param == "posix":
        return StoragePath(tmp_path)
    return StoragePath(f"memory://reads{next(_count)}/base")


def traced(content: bytes) -> tuple[StoragePath, list[TraceRecord]]:
    store = MemoryStore()
    records: list[TraceRecord] = []
    store.write("x", memoryview(content))
    return StoragePath("memory://t/x", store=Trace(store, records.append)), records


def test_the_range_matrix(base: StoragePath) -> None:
    path = base / "x"
    path.write_bytes(b"0123456789")
    for offset, length, expected in [
        (5, 20, b"56789"), (10, 12, b""), (50, 60, b""), (3, 0, b""), (0, 10, b"0123456789"),
        (0, 11, b"0123456789"), (9, 1, b"9"), (0, 1 << 60, b"0123456789"), (1 << 60, 5, b""),
    ]:  # fmt: skip
        assert path.read_range(offset, length) == expected
        (view,) = path.read_ranges([(offset, length)])
        assert view == expected
        buffer = bytearray(min(length, 64))
        assert path.read_into(buffer, offset) == len(expected)
        assert buffer[: len(expected)] == expected
    for offset, length in [(-1, 1), (0, -1), (-5, 0)]:
        with pytest.raises(InvalidArgument):
            path.read_range(offset, length)
        with pytest.raises(InvalidArgument):
            path.read_ranges([(0, 1), (offset, length)])
    with pytest.raises(ValueError, match="negative"):
        path.read_into(bytearray(1), -1)


def test_an_empty_object(base: StoragePath) -> None:
    path = base / "x"
    path.write_bytes(b"")
    assert path.read_bytes() == b""
    assert path.read_range(0, 10) == b""
    assert path.read_ranges([(0, 10), (5, 5)]) == [b"", b""]
    assert path.read_into(bytearray(20 * MiB)) == 0
    assert path.read_text() == ""


def test_empty_ranges_send_no_request() -> None:
    path, records = traced(b"0123456789")
    assert path.read_range(3, 0) == b""
    assert path.read_ranges([(3, 0), (0, 0)]) == [b"", b""]
    assert path.read_ranges([]) == []
    assert path.read_into(bytearray(0)) == 0
    assert records == []


def test_ranges_come_in_the_order_asked_and_share_requests() -> None:
    path, records = traced(b"0123456789")
    views = path.read_ranges([(5, 3), (0, 3), (0, 3), (2, 4)])
    assert views == [b"567", b"012", b"012", b"2345"]
    assert all(view.readonly for view in views)
    assert len(records) == 1


def test_small_objects_take_one_request() -> None:
    path, records = traced(b"x" * 1000)
    assert path.read_bytes() == b"x" * 1000
    assert path.read_into(bytearray(500)) == 500
    assert len(records) == 2


def test_large_reads_are_split_and_exact(base: StoragePath) -> None:
    path = base / "big"
    path.write_bytes(BIG)
    assert path.read_bytes() == BIG
    assert path.read_range(1000, 19 * MiB) == BIG[1000 : 1000 + 19 * MiB]
    buffer = bytearray(len(BIG) + 9 * MiB)
    assert path.read_into(buffer, request_size=MiB) == len(BIG)
    assert buffer[: len(BIG)] == BIG
    ranges = [(0, len(BIG) + 5), (7, 12 * MiB), (len(BIG) - 3, 100), (len(BIG) + MiB, 9 * MiB)]
    for view, (offset, length) in zip(path.read_ranges(ranges), ranges, strict=True):
        assert view == BIG[offset : offset + length]


def test_no_byte_is_asked_twice_and_no_request_is_too_large() -> None:
    path, records = traced(BIG)
    path.read_ranges([(i * MiB, MiB) for i in range(16)], request_size=4 * MiB, max_gap=0)
    asked = sorted((r.call.offset, r.call.length) for r in records)
    assert asked == [(i * 4 * MiB, 4 * MiB) for i in range(4)]


def test_random_ranges_equal_slices(base: StoragePath) -> None:
    path = base / "x"
    content = BIG[:100_000]
    path.write_bytes(content)
    rng = random.Random(7)
    for _ in range(20):
        ranges = [
            (rng.randrange(110_000), rng.choice([0, 1, 10, 5000])) for _ in range(rng.randrange(60))
        ]
        found = path.read_ranges(
            ranges, max_gap=rng.choice([0, 50, 5000]), request_size=rng.choice([1000, 4096, MiB])
        )
        assert found == [content[offset : offset + length] for offset, length in ranges]


def test_sparse_ranges_do_not_keep_the_gaps() -> None:
    path, _ = traced(BIG)
    ranges = [(i * 400_000, 1) for i in range(50)]
    tracemalloc.start()
    try:
        views = path.read_ranges(ranges)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert views == [BIG[i : i + 1] for i, _ in ranges]
    assert held < MiB


OTHER = bytes(len(BIG))


def replace_after(store: MemoryStore, reads: int) -> Fault:
    """After that many reads, the object is another."""

    def action(call: Call, run: Callable[[], object]) -> object:
        result = run()
        store.write("x", memoryview(OTHER))
        return result

    return Fault(action, lambda call: call.op == "read", nth=reads)


@pytest.mark.parametrize("nth", [1, 3])
def test_an_object_replaced_during_a_read_of_many_requests(nth: int) -> None:
    store = MemoryStore()
    path = StoragePath("memory://t/x", store=Faults(store, [replace_after(store, nth)]))
    store.write("x", memoryview(BIG))
    with pytest.raises(ObjectChanged):
        path.read_into(bytearray(len(BIG)), request_size=4 * MiB, concurrency=1)
    store.write("x", memoryview(BIG))
    path = StoragePath("memory://t/x", store=Faults(store, [replace_after(store, nth)]))
    with pytest.raises(ObjectChanged):
        path.read_ranges([(i * MiB, 1000) for i in range(20)], max_gap=0, concurrency=1)


def test_an_object_replaced_between_two_requests_that_run_at_once() -> None:
    """Neither request can name a tag when it is sent: the engine compares the replies."""
    store = MemoryStore()
    store.write("x", memoryview(BIG))
    replaced = threading.Event()

    def first(call: Call, run: Callable[[], object]) -> object:
        result = run()
        store.write("x", memoryview(OTHER))
        replaced.set()
        return result

    def second(call: Call, run: Callable[[], object]) -> object:
        assert replaced.wait(20)
        return run()

    def starts_at(offset: int) -> Callable[[Call], bool]:
        return lambda call: call.op == "read" and call.offset == offset

    faults = [Fault(first, starts_at(0)), Fault(second, starts_at(4 * MiB))]
    path = StoragePath("memory://t/x", store=Faults(store, faults))
    with pytest.raises(ObjectChanged, match="replaced"):
        path.read_into(bytearray(8 * MiB), request_size=4 * MiB, concurrency=2)


def test_a_tag_pins_reads_over_several_calls(base: StoragePath) -> None:
    path = base / "x"
    tag = path.write_bytes(b"0123456789").tag
    assert path.read_range(0, 3, tag=tag) == b"012"
    path.write_bytes(b"9876543210")
    for read in (
        lambda: path.read_range(0, 3, tag=tag),
        lambda: path.read_ranges([(0, 3)], tag=tag),
        lambda: path.read_into(bytearray(3), tag=tag),
    ):
        with pytest.raises(ObjectChanged):
            read()


def test_bodies_cut_short_resume_under_the_engine() -> None:
    store = MemoryStore()
    store.write("x", memoryview(BIG))
    cuts = [Fault(cut_body(1000), lambda call: call.op == "read", nth=2, times=5)]
    retry = Retry(Faults(store, cuts), RetryPolicy(first_pause_s=0.001))
    buffer = bytearray(len(BIG))
    assert StoragePath("memory://t/x", store=retry).read_into(buffer) == len(BIG)
    assert buffer == BIG


def test_a_store_that_gives_too_little_is_found_out() -> None:
    store = MemoryStore()
    store.write("x", memoryview(BIG))

    def short(call: Call, run: Callable[[], object]) -> object:
        read = run()
        assert isinstance(read, Read)
        return Read(read.data[:-1], read.info)

    path = StoragePath("memory://t/x", store=Faults(store, [Fault(short, lambda call: True)]))
    with pytest.raises(StoreError, match="bytes"):
        path.read_into(bytearray(100))


def test_absurd_lengths_take_no_memory() -> None:
    path, _ = traced(b"abc")
    assert path.read_ranges([(0, 1 << 62), (1, 1 << 61)]) == [b"abc", b"bc"]
    assert path.read_range(1, 1 << 62) == b"bc"


@pytest.mark.parametrize("knobs", [{"request_size": 0}, {"concurrency": 0}, {"max_gap": -1}])
def test_bad_knobs(base: StoragePath, knobs: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        (base / "x").read_ranges([(0, 1)], **knobs)  # type: ignore[arg-type]


def test_a_missing_object(base: StoragePath) -> None:
    for read in (
        lambda: (base / "x").read_bytes(),
        lambda: (base / "x").read_ranges([(0, 1)]),
        lambda: (base / "x").read_into(bytearray(20 * MiB)),
    ):
        with pytest.raises(NotFound) as caught:
            read()
        assert (base / "x").url in str(caught.value)


def test_info(base: StoragePath) -> None:
    path = base / "x"
    written = path.write_bytes(b"123")
    assert isinstance(written, ObjectInfo)
    assert path.stat() == written
    assert written.size == 3
    assert written.modified.tzinfo is not None
