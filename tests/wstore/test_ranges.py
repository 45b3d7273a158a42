"""The planner of ranged reads against an oracle that looks at single bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore import InvalidArgument, ranges

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=12)


@given(RANGES, st.integers(0, 40), st.integers(1, 80))
def test_every_range_gets_its_bytes(
    asked: list[tuple[int, int]], max_gap: int, request_size: int
) -> None:
    content = bytes(i % 251 for i in range(500))
    plan = ranges.plan(asked, max_gap=max_gap, request_size=request_size)
    held = [content[span.offset : span.end] for span in plan.spans]
    for (offset, length), placement in zip(asked, plan.placements, strict=True):
        if placement is None:
            assert length == 0
        else:
            data = held[placement.span][placement.start : placement.start + placement.length]
            assert data == content[offset : offset + length]


@given(RANGES, st.integers(0, 40), st.integers(1, 80))
def test_spans_hold_each_byte_once_and_no_wide_gap(
    asked: list[tuple[int, int]], max_gap: int, request_size: int
) -> None:
    wanted = {byte for offset, length in asked for byte in range(offset, offset + length)}
    plan = ranges.plan(asked, max_gap=max_gap, request_size=request_size)
    end = -1
    for span in plan.spans:
        assert span.offset >= end
        end = span.end
        inside = [byte for byte in range(span.offset, span.end) if byte in wanted]
        assert span.wanted == len(inside)
        assert inside[0] == span.offset
        assert inside[-1] == span.end - 1
        assert all(b - a - 1 <= max_gap for a, b in itertools.pairwise(inside))
        if span.length > request_size:  # only what overlaps, or is one range, may be longer
            assert span.wanted == span.length
    assert sum(span.wanted for span in plan.spans) == len(wanted)


@given(st.integers(0, 10**9), st.integers(1, 99), st.integers(1, 60))
def test_split_covers_exactly(offset: int, length: int, request_size: int) -> None:
    pieces = ranges.split(offset, length, request_size)
    assert [byte for at, count in pieces for byte in range(at, at + count)] == list(
        range(offset, offset + length)
    )
    assert all(0 < count <= request_size for _, count in pieces)


def test_adjacent_ranges_share_requests_up_to_the_size() -> None:
    asked = [(i, 1) for i in range(64)]
    plan = ranges.plan(asked, max_gap=0, request_size=8)
    assert [(span.offset, span.length) for span in plan.spans] == [(i, 8) for i in range(0, 64, 8)]


def test_thousands_of_tiny_ranges_make_few_requests() -> None:
    asked = [(i * 100, 10) for i in reversed(range(5000))]
    plan = ranges.plan(asked, max_gap=90, request_size=100_000)
    assert len(plan.spans) == 5
    assert len(plan.placements) == 5000


@pytest.mark.parametrize("asked", [[(-1, 1)], [(0, -1)], [(0, 1), (5, -2)]])
def test_negative_ranges_are_refused(asked: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument):
        ranges.plan(asked, max_gap=0, request_size=1)


@pytest.mark.parametrize(("max_gap", "request_size"), [(-1, 1), (0, 0)])
def test_bad_knobs_are_refused(max_gap: int, request_size: int) -> None:
    with pytest.raises(InvalidArgument):
        ranges.plan([(0, 1)], max_gap=max_gap, request_size=request_size)
