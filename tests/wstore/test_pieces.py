"""Piece sizes stay within the service's limits for every size, known or not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore import InvalidArgument, pieces
from wstore.stores.base import GiB, MiB, PieceLimits

TiB = 1 << 40
S3 = PieceLimits(min_piece=5 * MiB, max_piece=5 * GiB, max_pieces=10_000, max_put=5 * GiB)
LARGEST = 5 * GiB * 10_000


@pytest.mark.parametrize(
    "size",
    [0, 1, 5 * MiB, 8 * MiB + 1, 52_428_800_000, 52_428_800_001, 5 * TiB, LARGEST - 1, LARGEST],
)
def test_known_sizes(size: int) -> None:
    plan = pieces.plan_pieces(size, S3)
    assert 1 <= len(plan) <= 10_000
    assert sum(length for _, length in plan) == size
    assert all(5 * MiB <= length <= 5 * GiB for _, length in plan[:-1])
    assert [offset for offset, _ in plan] == list(
        itertools.accumulate((length for _, length in plan[:-1]), initial=0)
    )


@given(st.integers(0, LARGEST), st.integers(1, 6 * GiB))
def test_any_size_and_any_wish(size: int, preferred: int) -> None:
    step = pieces.piece_size(size, S3, preferred)
    assert 5 * MiB <= step <= 5 * GiB
    assert -(-size // step) <= 10_000


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 50))
def test_small_limits_are_kept(size: int, max_piece: int, max_pieces: int) -> None:
    limits = PieceLimits(max_piece=max_piece, max_pieces=max_pieces)
    if size > max_piece * max_pieces:
        with pytest.raises(InvalidArgument):
            pieces.plan_pieces(size, limits)
    else:
        plan = pieces.plan_pieces(size, limits, 1)
        assert sum(length for _, length in plan) == size
        assert len(plan) <= max(1, max_pieces)
        assert all(length <= max_piece for _, length in plan)


def test_above_the_limit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        pieces.piece_size(LARGEST + 1, S3)
    with pytest.raises(InvalidArgument, match="limit"):
        pieces.piece_size(11, PieceLimits(max_object=10))
    with pytest.raises(InvalidArgument):
        pieces.piece_size(1, S3, 0)


def test_an_unknown_size_reaches_five_tebibytes_within_the_count() -> None:
    sizes = list(pieces.growing_sizes(S3))
    assert len(sizes) == 10_000
    assert sum(sizes) >= 5 * TiB
    assert all(5 * MiB <= size <= 5 * GiB for size in sizes)
    assert sizes == sorted(sizes)
    within = itertools.takewhile(lambda size: size <= 256 * MiB, sizes)
    assert sum(within) >= 1.3 * TiB


@given(st.integers(1, 64), st.integers(1, 50), st.integers(1, 64))
def test_growing_sizes_keep_small_limits(max_piece: int, max_pieces: int, preferred: int) -> None:
    limits = PieceLimits(max_piece=max_piece, max_pieces=max_pieces)
    sizes = list(pieces.growing_sizes(limits, preferred))
    assert len(sizes) == max_pieces
    assert all(1 <= size <= max_piece for size in sizes)
