"""How tensors become blocks and groups: pure planning, the same from version to version."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore_codecs.block import MAX_BLOCK_ELEMENTS, Block, Shape, check_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wstore_codecs.dtypes import DType

GROUP_BELOW = 64 << 10
"""Boxes of fewer elements are packed into groups: a frame of their own would cost more than they do."""

MAX_MEMBERS = 16 << 10
"""The most members of a group."""

MAX_TENSOR_ELEMENTS = 1 << 60
"""A tensor has fewer, lengths of zero left out: numpy has no larger shapes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A box and the shape of its tensor: all that a frame says of where its elements belong.

    Raises:
        InvalidArgument: on construction, when the box does not lie inside the shape, or the shape has
            2^60 elements or more, zeros left out.
    """

    block: Block
    shape: Shape

    def __post_init__(self) -> None:
        check_shape(self.shape, tensor=self.block.tensor)
        if not self.block.within(self.shape):
            raise InvalidArgument(
                f"tensor {self.block.tensor!r}: the box at {self.block.origin} of "
                f"{self.block.extent} leaves the shape {self.shape}"
            )
        if math.prod(n for n in self.shape if n) >= MAX_TENSOR_ELEMENTS:
            raise InvalidArgument(
                f"tensor {self.block.tensor!r} of shape {self.shape} has too many elements"
            )

    @classmethod
    def whole(cls, tensor: str, shape: Sequence[int]) -> Member:
        """The box that is all of a tensor."""
        return cls(Block.whole(tensor, shape), tuple(shape))


@dataclass(frozen=True, slots=True)
class Unit:
    """What one frame holds.

    Attributes:
        dtype: of all members.
        members: one for a block; any number of small boxes for a group, packed in this order.
        grouped: whether it is a group, even of one.
        size: its number of elements.

    Raises:
        InvalidArgument: on construction, for a block that has not one member, and for a group of none
            or of more than MAX_MEMBERS.
    """

    dtype: DType
    members: tuple[Member, ...]
    grouped: bool
    size: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.members) <= (MAX_MEMBERS if self.grouped else 1):
            kind = "group" if self.grouped else "block"
            raise InvalidArgument(f"{len(self.members)} members cannot be in one {kind}")
        # Both are asked for again and again, and a group has thousands of members.
        object.__setattr__(self, "size", sum(member.block.size for member in self.members))
        object.__setattr__(self, "_hash", hash((self.dtype, self.members, self.grouped)))

    def __hash__(self) -> int:
        return self._hash


def cut(
    box: Block, most: int = MAX_BLOCK_ELEMENTS, *, cuts: Sequence[Iterable[int]] = ()
) -> Iterator[Block]:
    """Cut a box into blocks of at most `most` elements, each one contiguous run of the row-major
    elements of the part it is cut from, in order.

    Args:
        box: what to cut; an empty one is one empty block.
        most: at least 1.
        cuts: per dimension of the tensor, positions in the whole tensor at which no block may reach
            across: bounds of the trainer's shards, and of the engines'. Those outside the box do not
            matter; missing dimensions have none.

    Raises:
        InvalidArgument: more dimensions of cuts than the box has; `most` below 1.
    """
    if most < 1:
        raise InvalidArgument(f"blocks of at most {most} elements")
    if len(cuts) > len(box.extent):
        raise InvalidArgument(
            f"tensor {box.tensor!r}: cuts for {len(cuts)} dimensions, the box has {len(box.extent)}"
        )
    bounds = []
    for axis, (start, stop) in enumerate(zip(box.origin, box.end, strict=True)):
        asked = cuts[axis] if axis < len(cuts) else ()
        inside = sorted({at for at in asked if start < at < stop})
        bounds.append(list(pairwise([start, *inside, stop])))
    for sides in product(*bounds):
        origin = tuple(start for start, _ in sides)
        extent = tuple(stop - start for start, stop in sides)
        yield from _runs(Block(box.tensor, origin, extent), most)


def _runs(box: Block, most: int) -> Iterator[Block]:
    if box.size <= most:
        yield box
        return
    # The first axis below which whole slices fit: cut along it, one index of the outer ones at a time.
    axis = 0
    while math.prod(box.extent[axis + 1 :]) > most:
        axis += 1
    rows = most // math.prod(box.extent[axis + 1 :])
    # Even lengths: a short last block would cost a frame for little.
    pieces = -(-box.extent[axis] // rows)
    yield from _slabs(box, axis, -(-box.extent[axis] // pieces), ())


def _slabs(box: Block, axis: int, rows: int, outer: Shape) -> Iterator[Block]:
    depth = len(outer)
    first, count = box.origin[depth], box.extent[depth]
    if depth < axis:
        for index in range(first, first + count):
            yield from _slabs(box, axis, rows, (*outer, index))
        return
    for start in range(first, first + count, rows):
        length = min(rows, first + count - start)
        yield Block(
            box.tensor,
            (*outer, start, *box.origin[depth + 1 :]),
            (*(1 for _ in outer), length, *box.extent[depth + 1 :]),
        )


def plan(members: Iterable[tuple[DType, Member]], most: int = MAX_BLOCK_ELEMENTS) -> list[Unit]:
    """Which frames hold these boxes: large ones alone, small ones in groups by dtype.

    The order of the boxes is kept within a group and between groups of a dtype, so the same boxes
    always make the same units: what a delta needs.

    Args:
        members: boxes of at most `most` elements, as `cut` makes them.

    Raises:
        InvalidArgument: a box of more elements.
    """
    units: list[Unit] = []
    waiting: dict[DType, list[Member]] = {}
    filled: dict[DType, int] = {}
    for dtype, member in members:
        size = member.block.size
        if size > most:
            raise InvalidArgument(f"{member.block} has {size} elements, a frame at most {most}")
        if size >= GROUP_BELOW:
            units.append(Unit(dtype, (member,), grouped=False))
            continue
        group = waiting.setdefault(dtype, [])
        if filled.get(dtype, 0) + size > most or len(group) == MAX_MEMBERS:
            units.append(Unit(dtype, tuple(group), grouped=True))
            group.clear()
            filled[dtype] = 0
        group.append(member)
        filled[dtype] = filled.get(dtype, 0) + size
    units.extend(
        Unit(dtype, tuple(group), grouped=True) for dtype, group in waiting.items() if group
    )
    return units
