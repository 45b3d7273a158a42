"""Reads as fsspec asks for them: by start and end, which may be None or negative as in a slice."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from wstore.transfer import run_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.path import StoragePath

LARGE = 1 << 20  # from here on a range has requests, and memory, of its own


def read_one(place: StoragePath, start: int | None, end: int | None) -> bytes:
    first = 0 if start is None else start
    if first >= 0 and end is None:
        return place.read_range(first, sys.maxsize)
    if first >= 0 and end is not None and end >= 0:
        return place.read_range(first, max(0, end - first))
    info = place.stat()
    first, last, _ = slice(start, end).indices(info.size)
    return place.read_range(first, max(0, last - first), tag=info.tag)


def read_many(
    place: StoragePath, ranges: Sequence[tuple[int | None, int | None]], max_gap: int | None
) -> list[bytes]:
    """The bytes of many slices of one content of the object, in the order asked.

    Small ones share requests (`read_ranges`). Large ones are received where they stay: fsspec promises
    `bytes`, and a copy of them would cost as much as the network.
    """
    if len(ranges) == 1:
        return [read_one(place, *ranges[0])]
    info = place.stat()
    spans = []
    for start, end in ranges:
        first, last, _ = slice(start, end).indices(info.size)
        spans.append((first, max(0, last - first)))
    parts = [b""] * len(spans)
    large = [index for index, (_, length) in enumerate(spans) if length >= LARGE]
    small = [index for index, (_, length) in enumerate(spans) if 0 < length < LARGE]

    def receive(number: int) -> None:
        offset, length = spans[large[number]]
        # A BytesIO takes over the bytes object, lends it as a buffer, and gives it back uncopied.
        memory = io.BytesIO(bytes(length))
        with memory.getbuffer() as view:
            place.read_into(view, offset, tag=info.tag)
        parts[large[number]] = memory.getvalue()

    run_parallel(len(large), receive, concurrency=place.store.capabilities.concurrency)
    found = place.read_ranges([spans[index] for index in small], max_gap=max_gap, tag=info.tag)
    for index, part in zip(small, found, strict=True):
        parts[index] = bytes(part)
    return parts
