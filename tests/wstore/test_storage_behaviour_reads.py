"""Known misbehaviour of storage libraries, reads: on a local disk (L), moto (M) and SeaweedFS (W).

The T numbers are those of `test_storage_behaviour_index.py`; P is the promise of the design.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from wstore import IsADirectory, ObjectChanged, StoragePath

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore.buffers import WritableBuffer

MiB = 1 << 20


def test_t01_ranges_up_to_at_and_past_the_end(base: StoragePath) -> None:
    """T01 (P2): the tail, then nothing; never the whole object for an empty range."""
    path = base / "digits"
    path.write_bytes(b"0123456789")
    assert [path.read_range(*r) for r in ((5, 15), (10, 2), (50, 10), (3, 0), (10, 0))] == [
        b"56789",
        b"",
        b"",
        b"",
        b"",
    ]


def test_t02_empty_object(base: StoragePath, tmp_path: Path) -> None:
    """T02 (P2): zero bytes are an object in every way of reading."""
    path = base / "empty"
    path.write_bytes(b"")
    assert path.stat().size == 0
    assert path.read_bytes() == b""
    assert path.read_range(0, 10) == b""
    assert [bytes(part) for part in path.read_ranges([(0, 10), (0, 0)])] == [b"", b""]
    assert path.read_into(bytearray(10)) == 0
    path.download(tmp_path / "local")
    assert (tmp_path / "local").read_bytes() == b""


def test_t03_ranges_unsorted_repeated_and_none(base: StoragePath) -> None:
    """T03 (P2): in the order asked, however they overlap; no ranges are no work."""
    path = base / "digits"
    path.write_bytes(b"0123456789")
    got = path.read_ranges([(5, 3), (0, 3), (0, 3), (2, 4), (4, 0)])
    assert [bytes(part) for part in got] == [b"567", b"012", b"012", b"2345", b""]
    assert (base / "not there").read_ranges([]) == []


@pytest.mark.parametrize("kind", ["bytearray", "numpy", "torch"])
def test_t06_into_the_callers_memory(base: StoragePath, kind: str) -> None:
    """T06 (P3): the same memory, the right bytes, over several requests at once."""
    data = random.Random(6).randbytes(3 * MiB + 7)
    path = base / "object"
    path.write_bytes(data)
    memory = bytearray(len(data))
    target: WritableBuffer = memory
    if kind == "numpy":
        target = np.frombuffer(memory, np.uint8).data
    if kind == "torch":
        target = torch.frombuffer(memory, dtype=torch.uint8)
    assert path.read_into(target, request_size=MiB, concurrency=4) == len(data)
    seen = bytes(memory)
    assert hashlib.sha256(seen).digest() == hashlib.sha256(data).digest()


def test_t11_replaced_between_two_requests(base: StoragePath) -> None:
    """T11 (P2): while somebody replaces an object, a parallel read is of one content or raises."""
    path = base / "object"
    bodies = [bytes([number]) * 400_000 for number in (1, 2)]
    path.write_bytes(bodies[0])
    done = threading.Event()

    def replace() -> None:
        for number in range(10):
            path.write_bytes(bodies[number % 2])
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    while not done.is_set():
        memory = bytearray(400_000)
        try:
            path.read_into(memory, request_size=50_000, concurrency=4)
        except ObjectChanged:
            continue
        assert bytes(memory) in bodies
    writer.join()


def test_t11_a_tag_holds_over_several_calls(base: StoragePath) -> None:
    """T11 (P2): the same without luck: another content under the tag raises."""
    path = base / "object"
    tag = path.write_bytes(b"a" * 100).tag
    assert path.read_range(0, 50, tag=tag) == b"a" * 50
    path.write_bytes(b"b" * 100)
    with pytest.raises(ObjectChanged):
        path.read_range(50, 50, tag=tag)


def test_t42_reading_a_prefix(base: StoragePath) -> None:
    """T42 (P8): a prefix is a directory, in every way of reading; never empty bytes."""
    (base / "dir" / "child").write_bytes(b"x")
    reads: list[Callable[[], object]] = [
        (base / "dir").read_bytes,
        (base / "dir").read_text,
        lambda: (base / "dir").read_range(0, 1),
        lambda: (base / "dir").read_into(bytearray(1)),
        lambda: (base / "dir").open("rb"),
        (base / "dir").stat,
    ]
    for read in reads:
        with pytest.raises(IsADirectory) as caught:
            read()
        assert isinstance(caught.value, IsADirectoryError)


def test_t55_a_forked_child_reads(base: StoragePath) -> None:
    """T55 (P6): after use in the parent, a forked child has the bytes (and does not hang)."""
    path = base / "object"
    path.write_bytes(b"weights")
    assert path.read_bytes() == b"weights"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child, which must not return into pytest
        try:
            os.write(writing, path.read_bytes())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"weights"
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == b"weights"


def test_t57_loops_and_threads(base: StoragePath) -> None:
    """T57: one loop after another, a loop in each of four threads, a sync call inside a loop."""
    path = base / "object"
    path.write_bytes(b"weights")

    async def read() -> bytes:
        assert path.read_range(0, 1) == b"w"
        return await path.aread_bytes()

    assert [asyncio.run(read()) for _ in range(2)] == [b"weights"] * 2
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(read()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"weights"] * 4


def test_t62_wrong_key(base: StoragePath) -> None:
    """T62 (P9): what is not there is FileNotFoundError and names the place."""
    with pytest.raises(FileNotFoundError, match="not-there"):
        (base / "not-there").read_bytes()
    with pytest.raises(FileNotFoundError, match="no-source"):
        (base / "no-source").copy(base / "target")
    assert not (base / "target").exists()
