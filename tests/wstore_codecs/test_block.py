"""Boxes: values, clipping, flat runs, and the proof that blocks cover a tensor."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import InvalidArgument
from wstore_codecs.block import Block, check_cover, flat_runs


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    origin = tuple(draw(st.integers(0, n)) for n in shape)
    extent = tuple(draw(st.integers(0, n - o)) for n, o in zip(shape, origin, strict=True))
    return shape, origin, extent


@given(boxes())
def test_flat_runs_are_the_box_in_order_and_maximal(
    box: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, origin, extent = box
    runs = list(flat_runs(shape, origin, extent))
    whole = np.arange(math.prod(shape)).reshape(shape)
    want = whole[Block("t", origin, extent).slices()].reshape(-1).tolist()
    assert [i for start, length in runs for i in range(start, start + length)] == want
    for (start, length), (after, _) in itertools.pairwise(runs):
        assert length > 0
        assert start + length < after, "neighbours are merged"


def test_flat_runs_of_special_boxes() -> None:
    assert list(flat_runs((), (), ())) == [(0, 1)]
    assert list(flat_runs((0, 4), (0, 0), (0, 4))) == []
    assert list(flat_runs((8, 4), (2, 0), (3, 4))) == [(8, 12)]
    assert list(flat_runs((3, 1, 4), (1, 0, 0), (2, 1, 4))) == [(4, 8)]
    assert list(flat_runs((3, 4), (0, 1), (3, 1))) == [(1, 1), (5, 1), (9, 1)]
    with pytest.raises(InvalidArgument, match="leaves shape"):
        flat_runs((3, 4), (0, 2), (3, 3))


def test_flat_runs_are_lazy() -> None:
    runs = flat_runs((1 << 40, 1 << 20), (0, 1), (1 << 40, 2))
    assert next(runs) == (1, 2)
    assert next(runs) == (1 + (1 << 20), 2)


@given(boxes(), st.data())
def test_clip_contains_and_local_agree_with_arrays(
    box: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    shape, origin, extent = box
    first = Block("t", origin, extent)
    other_origin = tuple(data.draw(st.integers(0, n)) for n in shape)
    other = Block(
        "t",
        other_origin,
        tuple(data.draw(st.integers(0, n - o)) for n, o in zip(shape, other_origin, strict=True)),
    )
    marks = np.zeros(shape, int)
    marks[first.slices()] += 1
    marks[other.slices()] += 1
    shared = first.clip(other)
    assert (shared.size if shared else 0) == int((marks == 2).sum())
    if shared is not None:
        assert first.contains(shared)
        assert other.contains(shared)
        whole = np.arange(math.prod(shape)).reshape(shape)
        inside = whole[first.slices()][first.local(shared).slices()]
        np.testing.assert_array_equal(inside, whole[shared.slices()])


@pytest.mark.parametrize(
    ("origin", "extent"),
    [((0,), (-1,)), ((-1,), (1,)), ((0, 0), (1,)), ((0.0,), (1,)), ((True,), (1,))],
)
def test_what_is_no_box_is_refused(origin: tuple[int, ...], extent: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument):
        Block("t", origin, extent)


def test_a_block_is_a_value() -> None:
    block = Block("t", (1, 2), (3, 4))
    assert pickle.loads(pickle.dumps(block)) == block
    assert hash(block) == hash(Block("t", (1, 2), (3, 4)))
    assert block.end == (4, 6)
    assert block.size == 12
    with pytest.raises(InvalidArgument, match="is not inside"):
        block.local(Block("t", (0, 2), (1, 1)))


def test_cover_is_exact() -> None:
    shape = (5, 4)
    parts = [Block("t", (0, 0), (3, 2)), Block("t", (0, 2), (3, 2)), Block("t", (3, 0), (2, 4))]
    check_cover(shape, parts, tensor="t")
    check_cover(shape, [*parts, Block("t", (5, 0), (0, 4))], tensor="t")
    check_cover((), [Block("t", (), ())], tensor="t")
    check_cover((0, 3), [], tensor="t")
    with pytest.raises(InvalidArgument, match="missing"):
        check_cover(shape, parts[:2], tensor="t")
    with pytest.raises(InvalidArgument, match="overlap"):
        check_cover(shape, [*parts[:2], Block("t", (2, 0), (3, 4))], tensor="t")
    with pytest.raises(InvalidArgument, match="overlap"):
        check_cover((), [Block("t", (), ()), Block("t", (), ())], tensor="t")
    with pytest.raises(InvalidArgument, match="is not a box"):
        check_cover(shape, [Block("t", (0, 0), (6, 4))], tensor="t")
    with pytest.raises(InvalidArgument, match="is not a box"):
        check_cover(shape, [Block("other", (0, 0), (5, 4))], tensor="t")
