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
    """Merge ranges that lie at most `max_gap` apart, as long as a span fits one request.

    Overlapping ranges always share a span, so that no byte is fetched twice; only they, or a range that
    is longer itself, make a span longer than `request_size`. Empty ranges need nothing.

    Raises:
        InvalidArgument: a negative offset, length or gap, or no positive request size.
    """
    if max_gap < 0 or request_size < 1:
        raise InvalidArgument(f"max_gap {max_gap} or request_size {request_size} is out of range")
    for offset, length in ranges:
        check_range(offset, length)
    islands = _islands(ranges)
    spans: list[Span] = []
    placements: list[Placement | None] = [None] * len(ranges)
    at = 0
    while at < len(islands):
        first = islands[at]
        end, wanted, after = first.end, first.end - first.offset, at + 1
        while (
            after < len(islands)
            and islands[after].offset - end <= max_gap
            and islands[after].end - first.offset <= request_size
        ):
            end = islands[after].end
            wanted += end - islands[after].offset
            after += 1
        for island in islands[at:after]:
            for member in island.members:
                offset, length = ranges[member]
                placements[member] = Placement(len(spans), offset - first.offset, length)
        spans.append(Span(first.offset, end - first.offset, wanted))
        at = after
    return Plan(tuple(spans), tuple(placements))


@dataclass(slots=True)
class _Island:
    """Ranges that overlap in a chain, by their indices; no byte inside is unwanted."""

    offset: int
    end: int
    members: list[int]


def _islands(ranges: Sequence[tuple[int, int]]) -> list[_Island]:
    islands: list[_Island] = []
    order = sorted((i for i, (_, length) in enumerate(ranges) if length), key=ranges.__getitem__)
    for index in order:
        offset, length = ranges[index]
        if islands and offset < islands[-1].end:
            islands[-1].end = max(islands[-1].end, offset + length)
            islands[-1].members.append(index)
        else:
            islands.append(_Island(offset, offset + length, [index]))
    return islands


def split(offset: int, length: int, request_size: int) -> list[tuple[int, int]]:
    """Cut one stretch into requests of at most `request_size`, all but the last of that size.

    Near-equal cuts would balance better, but equal offsets keep requests aligned to the device.
    """
    return [
        (at, min(request_size, offset + length - at))
        for at in range(offset, offset + length, request_size)
    ]
