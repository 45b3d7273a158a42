"""Writes from every kind of source: atomic, bounded, verified; a failure leaves the old object alone."""

from __future__ import annotations

import io
import itertools
import random
import threading
from typing import TYPE_CHECKING

import pytest

from wstore import (
    AlreadyExists,
    Cancelled,
    IntegrityError,
    InvalidArgument,
    NotFound,
    ObjectChanged,
    PreconditionFailed,
    StoragePath,
    StoreError,
    UnsupportedOperation,
    checksums,
)
from wstore.stores.base import MiB, Sweep
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Call, Fault, Faults, Trace, TraceRecord, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wstore.sources import Data

_count = itertools.count()
BIG = random.Random(2).randbytes(12 * MiB + 12345)


@pytest.fixture(params=["memory", "posix"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    base = f"memory://writes{next(_count)}" if request.param == "memory" else tmp_path / "base"
    return StoragePath(base) / "dir" / "x"


def left_over(path: StoragePath) -> list[str]:
    """What an unfinished write left behind."""
    sweeper = path.store.feature(Sweep)
    assert sweeper is not None
    return sweeper.sweep(path.parent.key + "/", older_than_s=0)


def sources(tmp_path: Path) -> dict[str, Callable[[], Data]]:
    local = tmp_path / "source"
    local.write_bytes(BIG)
    return {
        "bytes": lambda: BIG,
        "bytearray": lambda: bytearray(BIG),
        "memoryview": lambda: memoryview(BIG),
        "path": lambda: local,
        "storage path": lambda: StoragePath(local),
        "file": lambda: local.open("rb"),
        "bytesio": lambda: io.BytesIO(BIG),
        "iterator": lambda: (BIG[i : i + 999_999] for i in range(0, len(BIG), 999_999)),
        "list": lambda: [BIG[: 5 * MiB], b"", memoryview(BIG)[5 * MiB :]],
    }


@pytest.mark.parametrize("kind", sorted([
    "bytes", "bytearray", "memoryview", "path", "storage path", "file", "bytesio", "iterator", "list",
]))  # fmt: skip
def test_every_kind_of_source(target: StoragePath, tmp_path: Path, kind: str) -> None:
    done: list[tuple[int, int | None]] = []
    data = sources(tmp_path)[kind]()
    info = target.write_file(data, progress=lambda *at: done.append(at))
    if kind == "file":
        data.close()  # type: ignore[union-attr]
    assert info.size == len(BIG)
    assert target.stat() == info
    assert target.read_bytes() == BIG
    assert done[-1][0] == len(BIG)
    assert [at for at, _ in done] == sorted(at for at, _ in done)
    assert done[-1][1] in (len(BIG), None)
    assert left_over(target) == []


@pytest.mark.parametrize(
    "data", [b"", iter([]), [], io.BytesIO()], ids=["bytes", "iterator", "list", "file"]
)
def test_nothing_is_an_empty_object(target: StoragePath, data: Data) -> None:
    assert target.write_file(data).size == 0
    assert target.read_bytes() == b""


def test_a_file_is_read_from_its_position(target: StoragePath, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    with (tmp_path / "source").open("rb") as file:
        file.seek(4)
        target.write_file(file)
    assert target.read_bytes() == b"456789"


@pytest.mark.parametrize(
    "data",
    ["text", io.StringIO("x"), 5, None, [1, 2], ["a"], object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data(target: StoragePath, data: Data) -> None:
    with pytest.raises(InvalidArgument):
        target.write_file(data)
    assert not target.exists()


def test_a_missing_source(target: StoragePath, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        target.write_file(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        target.write_file(tmp_path)


class Broken(Exception):
    """The source's own error."""


def broken(good: int) -> Iterator[bytes]:
    for _ in range(good):
        yield bytes(MiB)
    raise Broken


@pytest.mark.parametrize("good", [0, 1, 30])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_iterable_that_raises_publishes_nothing(
    target: StoragePath, good: int, old: bytes | None
) -> None:
    if old is not None:
        target.write_bytes(old)
    with pytest.raises(Broken):
        target.write_file(broken(good))
    assert target.exists() == (old is not None)
    if old is not None:
        assert target.read_bytes() == old
    if good or old:
        assert left_over(target) == []


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("op", ["put", "complete"])
def test_a_failing_piece_aborts(nth: int, op: str) -> None:
    store = MemoryStore()
    store.write("x", memoryview(b"old"))
    orders = [
        Fault(fail(lambda: StoreError("boom")), lambda call: call.op == op, nth=nth, times=99)
    ]
    path = StoragePath("memory://t/x", store=Faults(store, orders))
    for data in (BIG, (BIG[i : i + MiB] for i in range(0, len(BIG), MiB))):
        if op == "complete" and nth > 1:
            continue
        with pytest.raises(StoreError, match="boom"):
            path.write_file(data, piece_size=MiB)
    assert store.sweep("", older_than_s=0) == []
    assert path.read_bytes() == b"old"


def test_progress_that_raises_ends_the_write(target: StoragePath) -> None:
    def stop(done: int, total: int | None, /) -> None:
        raise Broken

    for data in (BIG, iter([BIG])):
        with pytest.raises(Broken):
            target.write_file(data, piece_size=5 * MiB, progress=stop)
    assert not target.exists()
    assert left_over(target) == []


def shrink(local: Path) -> None:
    with local.open("r+b") as file:
        file.truncate(6 * MiB)


def grow(local: Path) -> None:
    with local.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("change", [shrink, grow])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_source_that_changes_meanwhile(
    target: StoragePath, tmp_path: Path, change: Callable[[Path], None], as_file: bool
) -> None:
    local = tmp_path / "source"
    local.write_bytes(BIG)
    with local.open("rb") as file, pytest.raises(ObjectChanged):
        target.write_file(
            file if as_file else local,
            piece_size=5 * MiB,
            concurrency=1,
            progress=lambda done, total: change(local),
        )
    assert not target.exists()
    assert left_over(target) == []


def test_pieces_in_flight_are_bounded() -> None:
    store, lock = MemoryStore(), threading.Lock()
    now = most = 0

    def counted(call: Call, run: Callable[[], object]) -> object:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            return run()
        finally:
            with lock:
                now -= 1

    orders = [Fault(counted, lambda call: call.op == "put", times=999)]
    path = StoragePath("memory://t/x", store=Faults(store, orders))
    for data in (BIG, iter([BIG])):
        path.write_file(data, piece_size=MiB, concurrency=3)
        assert 1 <= most <= 3
    most = 0
    path.write_file(iter([BIG]), piece_size=4 * MiB, concurrency=8, max_memory=8 * MiB)
    assert most == 1  # one in flight, one being gathered


def test_small_writes_are_one_request_and_large_ones_pieces() -> None:
    records: list[TraceRecord] = []
    path = StoragePath("memory://t/x", store=Trace(MemoryStore(), records.append))
    path.write_bytes(b"small")
    path.write_file(iter([b"sm", b"all"]))
    assert [record.call.op for record in records] == ["write", "write"]
    records.clear()
    path.write_file(BIG, piece_size=5 * MiB)
    assert sorted(record.call.op for record in records) == [
        "complete",
        "put",
        "put",
        "put",
        "upload",
    ]


def test_create_if_absent(target: StoragePath) -> None:
    target.write_bytes(b"first", if_absent=True)
    for data in (b"second", iter([b"second"]), io.BytesIO(b"second")):
        with pytest.raises(AlreadyExists):
            target.write_file(data, if_absent=True)
    assert target.read_bytes() == b"first"


def test_replace_if_match() -> None:
    path = StoragePath(f"memory://writes{next(_count)}/x")
    tag = path.write_bytes(b"1").tag
    path.write_text("2", if_match=tag)
    with pytest.raises(PreconditionFailed):
        path.write_bytes(b"3", if_match=tag)
    with pytest.raises(PreconditionFailed):
        (path.parent / "y").write_bytes(b"3", if_match=tag)
    with pytest.raises(InvalidArgument):
        path.write_bytes(b"4", if_match=tag, if_absent=True)
    assert path.read_text() == "2"


def test_if_match_is_unsupported_on_files(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperation):
        (StoragePath(tmp_path) / "x").write_bytes(b"x", if_match="tag")


def test_large_conditional_writes_send_nothing(target: StoragePath, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(BIG)
    for data in (BIG, tmp_path / "source", iter([BIG]), io.BytesIO(BIG)):
        with pytest.raises(UnsupportedOperation):
            target.write_file(data, if_absent=True, max_memory=MiB)
    assert not target.exists()


def test_checksums_are_verified_before_anything_is_published(
    target: StoragePath, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(BIG)
    right = [checksums.crc32c([memoryview(BIG)]), checksums.xxh3([memoryview(BIG)])]
    wrong = ["crc32c:00000000", "xxh3:" + "0" * 32]
    for data in (lambda: BIG, lambda: tmp_path / "source", lambda: iter([BIG[:9], BIG[9:]])):
        for checksum in wrong:
            with pytest.raises(IntegrityError):
                target.write_file(data(), checksum=checksum)
            assert not target.exists()
        for checksum in right:
            target.write_file(data(), checksum=checksum)
            target.remove()
    for checksum in ("md5:00", "crc32c:0", "", "crc32c:XXXXXXXX"):
        with pytest.raises(InvalidArgument):
            target.write_file(b"", checksum=checksum)
    assert left_over(target) == []


def test_known_digests() -> None:
    check = [memoryview(b"1234"), memoryview(b"56789")]
    assert checksums.crc32c(check) == "crc32c:e3069283"  # RFC 3720's check value
    assert checksums.xxh3([memoryview(b"")]) == "xxh3:99aa06d3014798d86001c324468d497f"


def test_the_source_may_change_after_the_write(target: StoragePath) -> None:
    data = bytearray(b"abc")
    target.write_bytes(data)
    data[:] = b"xyz"
    assert target.read_bytes() == b"abc"

    def reused() -> Iterator[bytearray]:
        chunk = bytearray(MiB)
        for value in range(20):
            chunk[:] = bytes([value]) * MiB
            yield chunk

    target.write_file(reused(), piece_size=MiB)
    assert target.read_bytes() == b"".join(bytes([value]) * MiB for value in range(20))


def test_cancel(target: StoragePath) -> None:
    cancel = threading.Event()

    def chunks() -> Iterator[bytes]:
        for index in range(100):
            if index == 20:
                cancel.set()
            yield bytes(MiB)

    with pytest.raises(Cancelled):
        target.write_file(chunks(), cancel=cancel)
    with pytest.raises(Cancelled):
        target.write_file(BIG, cancel=cancel)
    assert not target.exists()
    assert left_over(target) == []


def test_copies_between_and_inside_stores(tmp_path: Path) -> None:
    memory, local = (
        StoragePath(f"memory://writes{next(_count)}/a/x"),
        StoragePath(tmp_path) / "d" / "x",
    )
    memory.write_bytes(BIG)
    for source, to in [
        (memory, local),
        (local, memory.parent / "y"),
        (memory, memory.parent / "z"),
    ]:
        assert source.copy(to).size == len(BIG)
        assert to.read_bytes() == BIG
    assert local.copy(local.parent / "w").size == len(BIG)
    missing = memory.parent / "missing"
    with pytest.raises(NotFound, match="missing"):
        missing.copy(local)
    with pytest.raises(NotFound, match="missing"):
        missing.copy(memory)
    with pytest.raises(IsADirectoryError):
        memory.parent.copy(local)


def test_download_and_upload(tmp_path: Path) -> None:
    memory = StoragePath(f"memory://writes{next(_count)}/x")
    memory.write_bytes(BIG)
    info = memory.download(tmp_path / "deep" / "copy")
    assert info.size == len(BIG)
    assert (tmp_path / "deep" / "copy").read_bytes() == BIG
    assert (memory.parent / "y").upload(str(tmp_path / "deep" / "copy")).size == len(BIG)
    assert (memory.parent / "y").read_bytes() == BIG
    with pytest.raises(ValueError, match="local"):
        memory.download("memory://other/x")
    with pytest.raises(IsADirectoryError):
        memory.download(tmp_path)
    with pytest.raises(NotFound):
        (memory.parent / "nope").download(tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("knob", ["piece_size", "concurrency", "max_memory"])
def test_bad_knobs(target: StoragePath, knob: str) -> None:
    with pytest.raises(InvalidArgument):
        target.write_file(b"x", **{knob: 0})  # type: ignore[arg-type]
