"""Races: one winner, no half writes, no mixed reads, from threads and from processes."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import (
    AlreadyExists,
    NotFound,
    ObjectChanged,
    PreconditionFailed,
    UnsupportedOperation,
)
from wstore.stores.base import Expect
from wstore.testing.conformance.place import (
    WHOLE,
    contents,
    expect_error,
    names,
    pattern,
    succeed,
    together,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store
    from wstore.testing.conformance.place import StoreUnderTest

RACERS = 16


def check_create_race(place: StoreUnderTest) -> None:
    """Sixteen threads create one key: one wins, fifteen see `AlreadyExists`, the winner's bytes stay."""
    store = place.open()
    for number in range(place.rounds):
        key = place.key(f"race-{number}")
        bodies = [pattern(1024, racer) for racer in range(RACERS)]
        calls = [partial(store.write, key, view(b), expect=Expect.ABSENT) for b in bodies]
        results = together(calls)
        if not store.capabilities.create_if_absent:
            assert all(isinstance(result, UnsupportedOperation) for result in results)
            assert place.raw_get(key) is None
            continue
        losers = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(loser, AlreadyExists) for loser in losers), losers
        assert len(losers) == RACERS - 1
        winner = next(n for n, r in enumerate(results) if not isinstance(r, BaseException))
        assert place.raw_get(key) == bodies[winner]
    wanted = [
        f"race-{n}" for n in range(place.rounds if store.capabilities.create_if_absent else 0)
    ]
    assert names(store.list(place.prefix, recursive=True), place.prefix) == wanted


def check_create_race_of_processes(place: StoreUnderTest) -> None:
    """Processes that race for a row of keys share it out: each key has one winner."""
    if not place.processes:
        return
    keys = [place.key(f"race-{number:02d}") for number in range(50)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=spawn) as pool:
        jobs = [pool.submit(_create_all, place.open, keys, b"%d" % n) for n in range(3)]
        won = [job.result() for job in jobs]
    if not place.open().capabilities.create_if_absent:
        assert won == [[], [], []]
        return
    assert sorted(key for share in won for key in share) == keys
    for number, share in enumerate(won):
        assert all(place.raw_get(key) == b"%d" % number for key in share)


def _create_all(open_store: Callable[[], Store], keys: list[str], data: bytes) -> list[str]:
    store, won = open_store(), []
    for key in keys:
        try:
            store.write(key, view(data), expect=Expect.ABSENT)
        except (AlreadyExists, UnsupportedOperation):
            continue
        won.append(key)
    return won


def check_replace_race(place: StoreUnderTest) -> None:
    """Sixteen threads replace one content by its tag: one wins, fifteen see `PreconditionFailed`."""
    store, key = place.open(), place.key("cas")
    for _ in range(place.rounds):
        tag = store.write(key, view(b"start")).tag
        bodies = [b"%d" % racer for racer in range(RACERS)]
        results = together([partial(store.write, key, view(b), expect=tag) for b in bodies])
        errors = [result for result in results if isinstance(result, BaseException)]
        if not store.capabilities.if_match:
            assert all(isinstance(error, UnsupportedOperation) for error in errors)
            assert len(errors) == RACERS
            assert place.raw_get(key) == b"start"
            continue
        assert all(isinstance(error, PreconditionFailed) for error in errors), errors
        assert len(errors) == RACERS - 1
        winner = next(n for n, r in enumerate(results) if not isinstance(r, BaseException))
        assert place.raw_get(key) == bodies[winner]


def check_count_by_replacing(place: StoreUnderTest) -> None:
    """Counting by read and conditional replace loses no count, however many do it."""
    store, key = place.open(), place.key("counter")
    tag = store.write(key, view(b"0")).tag
    if not store.capabilities.if_match:
        expect_error(UnsupportedOperation, lambda: store.write(key, view(b"1"), expect=tag))
        return

    def add_two() -> None:
        left = 2
        while left:
            read = store.read(key, 0, WHOLE)
            next_value = b"%d" % (int(bytes(read.data)) + 1)
            try:
                store.write(key, view(next_value), expect=read.info.tag)
            except PreconditionFailed:
                continue
            left -= 1

    succeed(together([add_two] * 4))
    assert place.raw_get(key) == b"8"


def check_readers_see_whole_objects(place: StoreUnderTest) -> None:
    """While a writer replaces an object again and again, every read is all old or all new."""
    bodies = [bytes([number]) * (100_000 + 50_000 * number) for number in range(4)]

    def read(key: str, reader: Store) -> None:
        read = reader.read(key, 0, WHOLE)
        assert bytes(read.data) in bodies, "half a write was read"
        assert read.info.size == len(read.data)

    _read_while_replaced(place, bodies, read)


def check_pinned_reads_never_mix(place: StoreUnderTest) -> None:
    """Two halves read under one tag come from one content, or the second raises `ObjectChanged`."""
    bodies = [bytes([number]) * 20_000 for number in range(4)]

    def read(key: str, reader: Store) -> None:
        first = reader.read(key, 0, 10_000)
        time.sleep(0.001)
        try:
            second = reader.read(key, 10_000, 10_000, tag=first.info.tag)
        except ObjectChanged:
            return
        assert bytes(first.data) + bytes(second.data) in bodies, "two contents were mixed"

    _read_while_replaced(place, bodies, read)


def _read_while_replaced(
    place: StoreUnderTest, bodies: list[bytes], read: Callable[[str, Store], None]
) -> None:
    store, key = place.open(), place.key("replaced")
    readers = [place.open() for _ in range(2)]
    store.write(key, view(bodies[0]))
    reading = threading.Semaphore(0)

    def write() -> None:
        ended, number = 0, 0
        while ended < len(readers):
            number += 1
            store.write(key, view(bodies[number % len(bodies)]))
            ended += reading.acquire(blocking=False)

    def read_all(reader: Store) -> None:
        try:
            for _ in range(10 * place.rounds):
                time.sleep(0.001)  # lets the writer in, also where nothing else does
                read(key, reader)
        finally:
            reading.release()

    calls: list[Callable[[], None]] = [write]
    calls += [partial(read_all, reader) for reader in readers]
    succeed(together(calls))


def check_replaced_between_two_ranges(place: StoreUnderTest) -> None:
    """The same without a race, so that it cannot be missed."""
    store, key = place.open(), place.key("between")
    store.write(key, view(b"a" * 1000))
    first = store.read(key, 0, 500)
    place.raw_put(key, b"b" * 1000)
    expect_error(ObjectChanged, lambda: store.read(key, 500, 500, tag=first.info.tag))


def check_two_writers_of_one_key(place: StoreUnderTest) -> None:
    """Unconditional writers do not fail; what stays is the whole of one of them, and no debris."""
    store, key = place.open(), place.key("both")
    bodies = [bytes([number]) * (10_000 + number) for number in range(8)]
    succeed(together([partial(store.write, key, view(body)) for body in bodies]))
    assert place.raw_get(key) in bodies
    assert names(store.list(place.prefix, recursive=True), place.prefix) == ["both"]


def check_methods_from_many_threads(place: StoreUnderTest) -> None:
    """One store used for everything by eight threads at once."""
    store = place.open()

    def live(number: int) -> None:
        for turn in range(2):
            key, data = place.key(f"{number}/{turn}"), pattern(3000, number)
            info = store.write(key, view(data))
            assert store.stat(key).tag == info.tag
            assert bytes(store.read(key, 1000, 1000).data) == data[1000:2000]
            listed = store.list(place.key(f"{number}/"), recursive=True)
            assert [entry.key for entry in listed] == [key]
            store.delete(key)
            expect_error(NotFound, partial(store.stat, key))

    succeed(together([partial(live, number) for number in range(8)]))


def check_close_and_go_on(place: StoreUnderTest) -> None:
    """After `close`, also twice, the store opens new connections."""
    store, key = place.open(), place.key("closed")
    store.write(key, view(b"one"))
    store.close()
    store.close()
    assert contents(store, key) == b"one"
    store.write(key, view(b"two"))
    assert place.raw_get(key) == b"two"
    store.close()
