"""Which requests serve many ranges of one object: merged, split and capped. Pure.

Ranges are (offset, length) in bytes. A **span** is a stretch of the object that is held in one buffer;
it is fetched by one or more requests; each range is a slice of one span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [offset, offset + length) of the object; `wanted` of them lie in some range."""

    offset: int
    length: int
    wanted: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one range's bytes are: `length` bytes from `start` on in span number `span`."""

    span: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The spans in ascending order, and one placement a range in the order asked (None: empty)."""

    spans: tuple[Span, ...]
    placements: tuple[Placement | None, ...]


def check_range(offset: int, length: int) -> None:
    """Raises InvalidArgument for a negative offset or length."""
    if offset < 0 or length < 0:
        raise InvalidArgument(f"a range cannot be negative: offset {offset}, length {length}")


def plan(ranges: Sequence[tuple[int, int]], *, max_gap: int, request_size: int) -> Plan:
    """Merge ranges that overlap or lie at most `max_gap` apart, as long as a span fits one request.

    Overlapping ranges always share a span, so that no byte is fetched twice; only then, or for a range
    that is longer itself, a span is longer than `request_size`. Empty ranges need nothing.

    Raises:
        InvalidArgument: a negative offset, length or gap, or no positive request size.
    """
    if max_gap < 0 or request_size < 1:
        raise InvalidArgument(f"max_gap {max_gap} or request_size {request_size} is out of range")
    for offset, length in ranges:
        check_range(offset, length)
    order = sorted((i for i, (_, length) in enumerate(ranges) if length), key=lambda i: ranges[i])
    spans: list[Span] = []
    placements: list[Placement | None] = [None] * len(ranges)
    start = end = wanted = 0
    members: list[int] = []

    def close() -> None:
        for member in members:
            offset, length = ranges[member]
            placements[member] = Placement(len(spans), offset - start, length)
        spans.append(Span(start, end - start, wanted))

    for index in order:
        offset, length = ranges[index]
        joins = offset < end or (
            offset - end <= max_gap and max(end, offset + length) - start <= request_size
        )
        if members and not joins:
            close()
            members = []
        if not members:
            start, end, wanted = offset, offset, 0
        wanted += max(0, offset + length - max(end, offset))
        end = max(end, offset + length)
        members.append(index)
    if members:
        close()
    return Plan(tuple(spans), tuple(placements))


def split(offset: int, length: int, request_size: int) -> list[tuple[int, int]]:
    """Cut one stretch into requests of at most `request_size`, all but the last of that size.

    Near-equal cuts would balance better, but equal offsets keep requests aligned to the device.
    """
    return [
        (at, min(request_size, offset + length - at))
        for at in range(offset, offset + length, request_size)
    ]
