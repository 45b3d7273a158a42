"""Cutting boxes into blocks, and packing small ones into groups."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes
from wstore_codecs.block import MAX_BLOCK_ELEMENTS, Block, check_cover, flat_runs
from wstore_codecs.cutting import GROUP_BELOW, MAX_MEMBERS, Member, cut, plan

BF16, F32 = dtypes.dtype("BF16"), dtypes.dtype("F32")


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Block]:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    origin = tuple(draw(st.integers(0, n)) for n in shape)
    extent = tuple(draw(st.integers(0, n - o)) for n, o in zip(shape, origin, strict=True))
    return shape, Block("t", origin, extent)


@given(boxes(), st.integers(1, 40), st.lists(st.lists(st.integers(0, 10)), max_size=4))
def test_blocks_tile_the_box_and_respect_cuts(
    where: tuple[tuple[int, ...], Block], most: int, cuts: list[list[int]]
) -> None:
    shape, box = where
    cuts = cuts[: len(shape)]
    blocks = list(cut(box, most, cuts=cuts))
    check_cover(box.extent, [box.local(block) for block in blocks], tensor="t")
    for block in blocks:
        assert block.size <= most or not block.size
        for axis, asked in enumerate(cuts):
            assert not any(block.origin[axis] < at < block.end[axis] for at in asked)


@given(boxes(), st.integers(1, 40))
def test_a_block_is_one_run_of_its_box(where: tuple[tuple[int, ...], Block], most: int) -> None:
    box = where[1]
    for block in cut(box, most):
        local = box.local(block)
        assert len(list(flat_runs(box.extent, local.origin, local.extent))) <= 1


def test_lengths_are_even() -> None:
    """A short last block would cost a frame of its own, or slip into a group."""
    sizes = [block.size for block in cut(Block.whole("t", (MAX_BLOCK_ELEMENTS + 1000,)))]
    assert sizes == [MAX_BLOCK_ELEMENTS // 2 + 500] * 2
    rows = [block.extent[0] for block in cut(Block.whole("t", (10, 1000)), 4000)]
    assert rows == [4, 4, 2]


def test_a_huge_tensor_is_cut_lazily() -> None:
    blocks = cut(Block.whole("t", (1 << 40,)))
    first, second = next(blocks), next(blocks)
    assert first.end == second.origin
    assert first.size == MAX_BLOCK_ELEMENTS


def test_more_dimensions_of_cuts_than_the_box_has() -> None:
    with pytest.raises(InvalidArgument, match="cuts for 2 dimensions, the box has 1"):
        list(cut(Block.whole("t", (5,)), cuts=[[1], [1]]))


def test_small_boxes_are_packed_by_dtype_in_order() -> None:
    members = [
        (BF16, Member.whole("a", (8,))),
        (F32, Member.whole("b", ())),
        (BF16, Member.whole("large", (GROUP_BELOW,))),
        (BF16, Member.whole("c", (0, 3))),
        (F32, Member(Block("d", (2,), (3,)), (9,))),
    ]
    units = plan(members)
    assert [[m.block.tensor for m in unit.members] for unit in units] == [
        ["large"],
        ["a", "c"],
        ["b", "d"],
    ]
    assert [unit.grouped for unit in units] == [False, True, True]


def test_a_group_is_closed_when_it_is_full() -> None:
    units = plan([(F32, Member.whole(f"t{at}", ())) for at in range(MAX_MEMBERS + 1)])
    assert [len(unit.members) for unit in units] == [MAX_MEMBERS, 1]
    units = plan([(F32, Member.whole(f"t{at}", (6,))) for at in range(5)], most=20)
    assert [unit.size for unit in units] == [18, 12]
    names = [member.block.tensor for unit in units for member in unit.members]
    assert all(a < b for a, b in pairwise(names))


def test_a_box_that_no_frame_takes() -> None:
    with pytest.raises(InvalidArgument, match="a frame at most"):
        plan([(F32, Member.whole("t", (MAX_BLOCK_ELEMENTS + 1,)))])


def test_a_member_lies_in_its_tensor() -> None:
    with pytest.raises(InvalidArgument, match="leaves the shape"):
        Member(Block("t", (2,), (3,)), (4,))
    for shape in ((1 << 30, 1 << 30), (0, 1 << 60)):
        with pytest.raises(InvalidArgument, match="too many elements"):
            Member(Block("t", (0, 0), (0, 0)), shape)


def test_blocks_of_nothing() -> None:
    with pytest.raises(InvalidArgument, match="at most 0 elements"):
        list(cut(Block.whole("t", (5,)), 0))
