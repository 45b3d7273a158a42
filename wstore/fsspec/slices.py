"""Reads as fsspec asks for them: by start and end, which may be None or negative as in a slice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.path import StoragePath


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
    if len(ranges) == 1:
        return [read_one(place, *ranges[0])]
    tag, spans = None, []
    if any(end is None or end < 0 or (start or 0) < 0 for start, end in ranges):
        info = place.stat()
        tag = info.tag
        ranges = [slice(start, end).indices(info.size)[:2] for start, end in ranges]
    for start, end in ranges:
        first = start or 0
        spans.append((first, max(0, cast("int", end) - first)))
    return [bytes(part) for part in place.read_ranges(spans, max_gap=max_gap, tag=tag)]
