"""The async twins: same results, any loop, cancellable at once."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from typing import TYPE_CHECKING

import pytest

from wstore import NotFound, StoragePath, WaitTimeout
from wstore.stores.base import MiB
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Call, Fault, Faults
from wstore.transfer import MAX_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_count = itertools.count()
TWINS = {
    "aread_bytes": "read_bytes", "aread_range": "read_range", "aread_ranges": "read_ranges",
    "aread_into": "read_into", "awrite_file": "write_file", "aexists": "exists", "await_object": "wait",
}  # fmt: skip


@pytest.fixture
def path() -> StoragePath:
    return StoragePath(f"memory://aio{next(_count)}/x")


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_signature(name: str) -> None:
    twin, original = getattr(StoragePath, name), getattr(StoragePath, TWINS[name])
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(original)
    assert TWINS[name] in twin.__doc__


async def use(path: StoragePath) -> None:
    info = await path.awrite_file(b"0123456789")
    assert await path.aexists()
    assert await path.aread_bytes() == b"0123456789"
    assert await path.aread_range(2, 3) == b"234"
    assert await path.aread_ranges([(5, 3), (0, 3)]) == [b"567", b"012"]
    buffer = bytearray(4)
    assert await path.aread_into(buffer, 8) == 2
    assert await path.await_object(1) == info
    assert path.read_bytes() == b"0123456789"  # a sync call inside a running loop
    with pytest.raises(NotFound):
        await (path.parent / "nope").aread_bytes()
    with pytest.raises(WaitTimeout):
        await (path.parent / "nope").await_object(0.05)


def test_several_loops_one_after_the_other(path: StoragePath) -> None:
    asyncio.run(use(path))
    asyncio.run(use(path))


def test_several_loops_at_once() -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            asyncio.run(use(StoragePath(f"memory://aio-loops/{number}/x")))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_hundreds_of_reads_at_once(path: StoragePath) -> None:
    path.write_bytes(b"0123456789")

    async def many() -> list[bytes]:
        return await asyncio.gather(*(path.aread_range(i % 10, 1) for i in range(500)))

    assert asyncio.run(many()) == [b"%d" % (i % 10) for i in range(500)]


def hanging(release: threading.Event, op: str) -> Fault:
    def hang(call: Call, run: Callable[[], object]) -> object:
        release.wait(60)
        return run()

    return Fault(hang, lambda call: call.op == op)


def test_cancelling_returns_at_once_and_the_next_read_works() -> None:
    release, store = threading.Event(), MemoryStore()
    store.write("x", memoryview(b"content"))
    path = StoragePath("memory://t/x", store=Faults(store, [hanging(release, "read")]))

    async def main() -> None:
        task = asyncio.ensure_future(path.aread_bytes())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()
        assert await path.aread_bytes() == b"content"
        release.set()

    asyncio.run(main())


def test_a_cancelled_write_publishes_nothing() -> None:
    release, entered, store = threading.Event(), threading.Event(), MemoryStore()
    path = StoragePath("memory://t/x", store=store)

    def chunks() -> Iterator[bytes]:
        for index in range(30):
            if index == 20:
                entered.set()
                release.wait(60)
            yield bytes(MiB)

    async def main() -> None:
        task = asyncio.ensure_future(path.awrite_file(chunks()))
        while not entered.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()

    asyncio.run(main())
    with pytest.raises(WaitTimeout):
        path.wait(0.3)
    assert store.sweep("", older_than_s=0) == []


def test_a_cancelled_wait_stops_looking() -> None:
    store = MemoryStore()
    looks: list[str] = []

    def count(call: Call, run: Callable[[], object]) -> object:
        looks.append(call.key)
        return run()

    path = StoragePath(
        "memory://t/x", store=Faults(store, [Fault(count, lambda call: True, times=999)])
    )

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(path.await_object(None, poll=0.02), 0.1)
        await asyncio.sleep(0.1)
        seen = len(looks)
        await asyncio.sleep(0.2)
        assert len(looks) == seen

    asyncio.run(main())


def test_the_callers_cancel_event_works_too(path: StoragePath) -> None:
    cancel = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.05, cancel.set)
        with pytest.raises(Exception, match="cancelled by the caller"):
            await path.await_object(None, cancel=cancel)

    asyncio.run(main())


def test_more_waits_than_threads_do_not_starve_one_another(path: StoragePath) -> None:
    async def run() -> None:
        names = [path.parent / str(number) for number in range(MAX_THREADS + 20)]
        waits = [asyncio.create_task(name.await_object(60)) for name in names]
        while threading.active_count() < MAX_THREADS:
            await asyncio.sleep(0)
        for name in names:
            name.write_bytes(b"x")
        assert len(await asyncio.gather(*waits)) == len(names)

    asyncio.run(run())
