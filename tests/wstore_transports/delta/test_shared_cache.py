"""Processes of one host that share their downloads: real files, real processes, real kills."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.children import wait_for
from wstore import StoragePath
from wstore.errors import Cancelled, IntegrityError, InvalidArgument, StoreError, WaitTimeout
from wstore_transports.delta.host_lock import HostLock
from wstore_transports.delta.shared_cache import SharedCache
from wstore_transports.versions.documents import ObjectRef
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wstore_transports.delta.cached_object import CachedObject, Fetch

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

ROOT = "0123456789abcdef" * 2
OTHER_ROOT = "f" * 32


class Source:
    """Objects in a store, and a count of their downloads over all processes."""

    def __init__(self, directory: Path) -> None:
        self.path = StoragePath(directory)
        self._counts = directory / "downloads"

    def put(self, name: str, size: int) -> ObjectRef:
        data = random.Random(name).randbytes(size)
        (self.path / name).write_file(data)
        return ObjectRef(name=name, size=size, hash=hash_of(data))

    def fetch(self, ref: ObjectRef) -> Fetch:
        def download(memory: memoryview) -> int:
            with open(self._counts, "a") as file:
                file.write(f"{ref.name}\n")
            return (self.path / ref.name).read_into(memory)

        return download

    def downloads(self) -> list[str]:
        return self._counts.read_text().split() if self._counts.exists() else []

    def check(self, found: CachedObject, ref: ObjectRef) -> None:
        with found:
            assert content(found) == (self.path / ref.name).read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "store").mkdir()
    return Source(tmp_path / "store")


def content(found: CachedObject) -> bytes:
    data = bytearray(found.size)
    found.read_into(memoryview(data))
    return bytes(data)


def files(directory: Path) -> list[Path]:
    """The cache's objects and unfinished ones."""
    return [path for path in directory.glob("*/*") if len(path.name.split("-")[0]) == 32]


def without_hash(ref: ObjectRef) -> ObjectRef:
    return ObjectRef(name=ref.name, size=ref.size)


@contextmanager
def process(work: Callable[[], None]) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that runs `work`; it is killed at the end, if it still runs."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_download_each_object_once(tmp_path: Path, source: Source, count: int) -> None:
    refs = [source.put(f"data/part{i}", size) for i, size in enumerate([0, 1, 70_000, 3 << 20])]
    barrier = multiprocessing.get_context("fork").Barrier(count)

    def engine(order: Sequence[ObjectRef]) -> None:
        cache = SharedCache(tmp_path / "cache")
        barrier.wait()
        for ref in order:
            source.check(cache.open(ROOT, ref, source.fetch(ref), timeout=30), ref)

    orders = [random.Random(seed).sample(refs, len(refs)) for seed in range(count)]
    children = [
        multiprocessing.get_context("fork").Process(target=engine, args=(order,))
        for order in orders
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(source.downloads()) == sorted(ref.name for ref in refs)
    assert len(files(tmp_path / "cache")) == len(refs)


def test_another_finishes_what_a_killed_process_began(tmp_path: Path, source: Source) -> None:
    ref, other = source.put("big", 1 << 20), source.put("other", 10)

    def hang(memory: memoryview) -> int:
        memory[:50] = bytes(50)
        (tmp_path / "half").touch()
        signal.pause()
        raise AssertionError("only a signal that ends it comes")

    def stuck(ref: ObjectRef) -> None:
        SharedCache(tmp_path / "cache").open(ROOT, ref, hang)

    def engine() -> None:
        cache = SharedCache(tmp_path / "cache")
        source.check(cache.open(ROOT, ref, source.fetch(ref), timeout=30), ref)

    with process(lambda: stuck(ref)) as first:
        wait_until((tmp_path / "half").exists)
        with process(engine) as second:
            second.join(0.2)
            assert second.is_alive()  # it waits
            assert not source.downloads()
            first.kill()
            second.join(30)
            assert second.exitcode == 0
    assert source.downloads() == ["big"]
    (tmp_path / "half").unlink()
    with process(lambda: stuck(source.put("never wanted again", 100))) as third:
        wait_until((tmp_path / "half").exists)
        third.kill()
    assert len(files(tmp_path / "cache")) == 2
    cache = SharedCache(tmp_path / "cache")
    source.check(cache.open(OTHER_ROOT, other, source.fetch(other)), other)
    assert sorted(path.stat().st_size for path in files(tmp_path / "cache")) == [10, 1 << 20]


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    def holder() -> None:
        lock = HostLock.take(tmp_path / "lock")
        assert lock is not None
        if os.fork() == 0:
            assert not lock.held
            lock.release()
            (tmp_path / "forked").touch()
        signal.pause()

    group = os.fork()
    if group == 0:
        os.setpgid(0, 0)
        holder()
    try:
        wait_until((tmp_path / "forked").exists)
        assert HostLock.take(tmp_path / "lock") is None
        os.kill(group, signal.SIGKILL)
        wait_for(group)
        lock = HostLock.take(tmp_path / "lock")
        assert lock is not None
        lock.release()
    finally:
        os.killpg(group, signal.SIGKILL)


def test_least_recently_used_objects_go(tmp_path: Path, source: Source) -> None:
    cache = SharedCache(tmp_path / "cache", max_bytes=10_000)
    favourite = source.put("favourite", 1000)
    held = cache.open(ROOT, favourite, source.fetch(favourite))
    expected = content(held)
    for number in range(20):
        ref = source.put(f"part{number}", 1000 + number)
        root = ROOT if number % 2 else OTHER_ROOT
        source.check(cache.open(root, ref, source.fetch(ref)), ref)
        source.check(cache.open(ROOT, favourite, source.fetch(favourite)), favourite)
        used = sum(path.stat().st_size for path in files(tmp_path / "cache"))
        assert used <= 10_000
        assert used >= 7900 or number < 7  # no more than must go
    assert source.downloads().count("favourite") == 1
    whole = source.put("whole", 10_000)
    source.check(cache.open(ROOT, whole, source.fetch(whole)), whole)
    assert [path.stat().st_size for path in files(tmp_path / "cache")] == [10_000]
    assert content(held) == expected  # it has gone, and is readable still
    held.close()


@pytest.mark.parametrize("same_process", [False, True])
@pytest.mark.parametrize("damage", ["flipped", "short", "long", "empty"])
def test_a_damaged_file_is_replaced(
    tmp_path: Path, source: Source, damage: str, same_process: bool
) -> None:
    ref = source.put("part", 5000)
    cache = SharedCache(tmp_path / "cache")
    source.check(cache.open(ROOT, ref, source.fetch(ref)), ref)
    [path] = files(tmp_path / "cache")
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    damaged = {"flipped": data, "short": data[:-1], "long": data + b"x", "empty": bytearray()}
    path.write_bytes(damaged[damage])
    os.utime(path, ns=(1, 1))
    cache = cache if same_process else SharedCache(tmp_path / "cache")
    source.check(cache.open(ROOT, ref, source.fetch(ref)), ref)
    assert source.downloads() == ["part", "part"]
    source.check(cache.open(ROOT, ref, source.fetch(ref)), ref)
    assert source.downloads() == ["part", "part"]


def test_an_object_whose_hash_is_known_later(tmp_path: Path, source: Source) -> None:
    ref = source.put("part", 5000)
    cache = SharedCache(tmp_path / "cache")
    source.check(cache.open(ROOT, without_hash(ref), source.fetch(ref)), ref)
    source.check(cache.open(ROOT, ref, source.fetch(ref)), ref)
    assert source.downloads() == ["part"]
    [path] = files(tmp_path / "cache")
    path.write_bytes(bytes(5000))
    with cache.open(ROOT, without_hash(ref), source.fetch(ref)) as found:
        assert content(found) == bytes(5000)  # its reader finds out
        found.discard()
        found.discard()
        assert files(tmp_path / "cache") == []
        with cache.open(ROOT, without_hash(ref), source.fetch(ref)) as fresh:
            found.discard()  # the fresh one stays
            assert content(fresh) != bytes(5000)
    assert files(tmp_path / "cache") == [path]


def test_other_roots_and_names_are_other_objects(tmp_path: Path, source: Source) -> None:
    refs = [source.put("a", 100), ObjectRef(name="../a/ü%00" * 50, size=100)]
    cache = SharedCache(tmp_path / "cache")
    for root in (ROOT, OTHER_ROOT):
        for ref in refs:
            fetch = source.fetch(refs[0])
            with cache.open(root, without_hash(ref), fetch) as found:
                assert found.shared
    assert source.downloads() == ["a"] * 4
    for root in ("", "../..", ROOT.upper(), ROOT + "\n"):
        with pytest.raises(InvalidArgument, match="not the id of a root"):
            cache.open(root, refs[0], fetch)


def test_a_bad_download_is_not_kept(tmp_path: Path, source: Source) -> None:
    ref = source.put("part", 5000)
    cache = SharedCache(tmp_path / "cache")

    def gone(_: memoryview) -> int:
        raise StoreError("the bucket is gone")

    with pytest.raises(IntegrityError, match="4999 bytes came, not 5000"):
        cache.open(ROOT, ref, lambda _: 4999)
    with pytest.raises(IntegrityError, match="part: the download does not have the hash"):
        cache.open(ROOT, ref, len)
    with pytest.raises(StoreError, match="the bucket is gone"):
        cache.open(ROOT, ref, gone)
    assert files(tmp_path / "cache") == []
    source.check(cache.open(ROOT, ref, source.fetch(ref)), ref)


def test_the_next_in_line_tries_when_a_download_fails(tmp_path: Path, source: Source) -> None:
    ref = source.put("part", 5000)
    cache = SharedCache(tmp_path / "cache")
    began, may_fail = threading.Event(), threading.Event()
    errors: list[StoreError] = []

    def fail(_: memoryview) -> int:
        began.set()
        may_fail.wait()
        raise StoreError("the bucket is gone")

    def first() -> None:
        try:
            cache.open(ROOT, ref, fail)
        except StoreError as error:
            errors.append(error)

    failing = threading.Thread(target=first)
    failing.start()
    began.wait()
    threading.Timer(0.05, may_fail.set).start()
    source.check(cache.open(ROOT, ref, source.fetch(ref), timeout=30), ref)
    failing.join()
    assert len(errors) == 1


def test_waiting_ends_at_the_deadline_and_when_cancelled(tmp_path: Path, source: Source) -> None:
    ref = source.put("part", 5000)
    cache = SharedCache(tmp_path / "cache")
    cancel = threading.Event()
    cancel.set()

    def meanwhile(memory: memoryview) -> int:
        with pytest.raises(WaitTimeout, match="another process is downloading it"):
            cache.open(ROOT, ref, len, timeout=0.05)
        with pytest.raises(Cancelled):
            cache.open(ROOT, ref, len, cancel=cancel)
        return source.fetch(ref)(memory)

    source.check(cache.open(ROOT, ref, meanwhile), ref)
    lock = HostLock.take(tmp_path / "cache" / "room.lock")
    other = source.put("other", 10)
    with pytest.raises(WaitTimeout, match="another process is making room"):
        cache.open(ROOT, other, len, timeout=0.05)
    assert lock is not None
    lock.release()


def test_what_does_not_fit_is_the_readers_own(tmp_path: Path, source: Source) -> None:
    cache = SharedCache(tmp_path / "cache", max_bytes=10_000)
    small, large = source.put("small", 6000), source.put("large", 10_001)
    beside = source.put("beside", 5000)

    def meanwhile(memory: memoryview) -> int:
        with cache.open(ROOT, beside, source.fetch(beside)) as found:
            assert not found.shared  # a download that is under way counts
            assert content(found) == (source.path / "beside").read_bytes()
        return source.fetch(small)(memory)

    source.check(cache.open(ROOT, small, meanwhile), small)
    with cache.open(ROOT, large, source.fetch(large)) as found:
        assert not found.shared
        found.discard()
    source.check(cache.open(ROOT, large, source.fetch(large)), large)
    assert [path.stat().st_size for path in files(tmp_path / "cache")] == [6000]


def test_a_full_disk_costs_the_sharing_only(caplog: pytest.LogCaptureFixture) -> None:
    disk = Path("/dev/shm") / f"wstore-test-{os.getpid()}"
    size = shutil.disk_usage("/dev/shm").total + (1 << 20)
    cache = SharedCache(disk, max_bytes=2 * size)
    try:
        with cache.open(ROOT, ObjectRef(name="part", size=size), lambda _: size) as found:
            assert not found.shared
            found.read_into(memoryview(bytearray(10)), size - 10)
        assert files(disk) == []
    finally:
        shutil.rmtree(disk)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "No space left" in caplog.text


def test_an_unusable_directory_costs_the_sharing_only(tmp_path: Path, source: Source) -> None:
    (tmp_path / "cache").write_text("in the way")
    ref, empty = source.put("part", 5000), source.put("empty", 0)
    cache = SharedCache(tmp_path / "cache")
    for one in (ref, empty):
        with cache.open(ROOT, one, source.fetch(one)) as found:
            assert not found.shared
            assert found.size == one.size
            assert content(found) == (source.path / one.name).read_bytes()
    assert (tmp_path / "cache").read_text() == "in the way"


@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.long)])
def test_threads_that_open_and_discard_read_the_right_bytes(
    tmp_path: Path, source: Source, rounds: int
) -> None:
    ref = source.put("part", 5000)
    expected = (source.path / "part").read_bytes()
    downloading = threading.Lock()

    def fetch(memory: memoryview) -> int:
        assert downloading.acquire(blocking=False), "two downloads of one object"
        try:
            return source.fetch(ref)(memory)
        finally:
            downloading.release()

    def engine() -> None:
        cache = SharedCache(tmp_path / "cache")
        for _ in range(rounds):
            with cache.open(ROOT, ref, fetch, timeout=30) as found:
                assert content(found) == expected
                found.discard()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(engine) for _ in range(4)]:
            done.result()
    assert not [path for path in files(tmp_path / "cache") if path.suffix == ".part"]
