"""Boxes of tensors: the value `Block`, and the runs of elements that a box covers.

An origin and an extent are counted in elements, one number per dimension, row-major. A 0-d tensor has
one box, with origin () and extent (); it holds one element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Shape = tuple[int, ...]

MAX_BLOCK_ELEMENTS = 4 << 20
"""The most elements of a frame: what one thread decodes and one hash covers."""


@dataclass(frozen=True, slots=True)
class Block:
    """The box [origin, origin + extent) of one tensor.

    Attributes:
        tensor: the tensor's name.
        origin: its first element's position in the whole tensor.
        extent: its size in each dimension; a 0 makes it empty.

    Raises:
        InvalidArgument: on construction, for lengths that differ and for what is not an int >= 0.
    """

    tensor: str
    origin: Shape
    extent: Shape

    def __post_init__(self) -> None:
        check_box(self.origin, self.extent, tensor=self.tensor)

    @classmethod
    def whole(cls, tensor: str, shape: Sequence[int]) -> Block:
        """The box that is all of a tensor of this shape."""
        return cls(tensor, (0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """Its number of elements."""
        return math.prod(self.extent)

    @property
    def end(self) -> Shape:
        """One past its last element, in each dimension."""
        return tuple(o + e for o, e in zip(self.origin, self.extent, strict=True))

    def within(self, shape: Sequence[int]) -> bool:
        """Whether it lies inside a tensor of this shape."""
        return len(shape) == len(self.extent) and all(
            end <= limit for end, limit in zip(self.end, shape, strict=True)
        )

    def contains(self, other: Block) -> bool:
        """Whether all of `other` lies inside this box (of the same tensor and rank).

        An empty box lies inside where its origin and end do.
        """
        return (
            self.tensor == other.tensor
            and len(self.extent) == len(other.extent)
            and all(a <= b for a, b in zip(self.origin, other.origin, strict=True))
            and all(a >= b for a, b in zip(self.end, other.end, strict=True))
        )

    def clip(self, other: Block) -> Block | None:
        """What the two share, in the whole tensor's coordinates; None when that is no element.

        Two boxes of a 0-d tensor share its one element.
        """
        if self.tensor != other.tensor or len(self.extent) != len(other.extent):
            return None
        low = tuple(map(max, self.origin, other.origin))
        high = tuple(map(min, self.end, other.end))
        extent = tuple(h - l for l, h in zip(low, high, strict=True))
        return Block(self.tensor, low, extent) if all(e > 0 for e in extent) else None

    def local(self, inner: Block) -> Block:
        """`inner` in this box's own coordinates. Raises InvalidArgument when it is not inside."""
        if not self.contains(inner):
            raise InvalidArgument(f"{inner} is not inside {self}")
        origin = tuple(a - b for a, b in zip(inner.origin, self.origin, strict=True))
        return Block(inner.tensor, origin, inner.extent)

    def slices(self) -> tuple[slice, ...]:
        """Index of this box into an array of the whole tensor: `array[block.slices()]`."""
        return tuple(slice(o, e) for o, e in zip(self.origin, self.end, strict=True))


def check_shape(shape: Sequence[int], *, tensor: str) -> None:
    """Raises InvalidArgument unless every dimension is an int >= 0."""
    for length in shape:
        if type(length) is not int or length < 0:
            raise InvalidArgument(f"tensor {tensor!r}: {tuple(shape)} is not a shape of ints >= 0")


def check_box(origin: Sequence[int], extent: Sequence[int], *, tensor: str) -> None:
    """Raises InvalidArgument unless the two describe one box."""
    check_shape(origin, tensor=tensor)
    check_shape(extent, tensor=tensor)
    if len(origin) != len(extent):
        raise InvalidArgument(
            f"tensor {tensor!r}: origin {tuple(origin)} and extent {tuple(extent)} differ in rank"
        )


def flat_runs(
    shape: Sequence[int], origin: Sequence[int], extent: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """The box's elements as (start, length) runs of row-major positions in a tensor of `shape`.

    Runs ascend, do not touch each other (neighbours are merged) and are made lazily. An empty box has
    none; the one box of a 0-d tensor is (0, 1). To read a box of a stored block, take the block's
    extent as `shape` and `block.local(box)` as the box.

    Raises:
        InvalidArgument: the box does not lie inside the shape.
    """
    box = Block("", tuple(origin), tuple(extent))
    check_shape(shape, tensor="")
    if not box.within(shape):
        raise InvalidArgument(
            f"the box at {box.origin} of {box.extent} leaves shape {tuple(shape)}"
        )
    return _runs(tuple(shape), box)


def _runs(shape: Shape, box: Block) -> Iterator[tuple[int, int]]:
    if box.size == 0:
        return
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    start = sum(o * s for o, s in zip(box.origin, strides, strict=True))
    # Trailing dimensions that are taken whole merge with the one before them into single runs.
    axis = len(shape) - 1
    while axis > 0 and box.extent[axis] == shape[axis]:
        axis -= 1
    length = math.prod(box.extent[max(axis, 0) :])
    outer = [(e, s) for e, s in zip(box.extent[: max(axis, 0)], strides, strict=False) if e > 1]
    yield from _odometer(outer, start, length)


def _odometer(
    outer: Sequence[tuple[int, int]], start: int, length: int
) -> Iterator[tuple[int, int]]:
    """Runs of `length` from `start`, over (count, stride) dimensions, the first one slowest."""
    if not outer:
        yield start, length
        return
    (count, stride), inner = outer[0], outer[1:]
    if not inner:
        for first in range(start, start + count * stride, stride):
            yield first, length
        return
    for first in range(start, start + count * stride, stride):
        yield from _odometer(inner, first, length)


def check_disjoint(blocks: Iterable[Block], *, tensor: str) -> None:
    """Raises InvalidArgument when two of these boxes of one tensor share an element."""
    solid = [block for block in blocks if block.size]
    if len(solid) < 2:
        return
    # Swept along the dimension that tells most of them apart, so that few are open at once.
    apart = [len(set(origins)) for origins in zip(*(b.origin for b in solid), strict=True)]
    axis = apart.index(max(apart)) if apart else None
    active: list[Block] = []
    for block in solid if axis is None else sorted(solid, key=lambda block: block.origin[axis]):
        if axis is not None:
            active = [a for a in active if a.end[axis] > block.origin[axis]]
        for other in active:
            if block.clip(other) is not None:
                raise InvalidArgument(f"blocks of tensor {tensor!r} overlap: {other} and {block}")
        active.append(block)


def check_cover(shape: Sequence[int], blocks: Iterable[Block], *, tensor: str) -> None:
    """Proves that the blocks are the whole tensor: each element in exactly one of them.

    Raises:
        InvalidArgument: a block of another tensor or outside the shape, two that overlap, or a hole.
    """
    check_shape(shape, tensor=tensor)
    have, want = 0, math.prod(shape)
    kept = []
    for block in blocks:
        if block.tensor != tensor or not block.within(shape):
            raise InvalidArgument(
                f"{block} is not a box of tensor {tensor!r}, shape {tuple(shape)}"
            )
        have += block.size
        kept.append(block)
    check_disjoint(kept, tensor=tensor)
    if have != want:
        raise InvalidArgument(
            f"the blocks of tensor {tensor!r} hold {have} of its {want} elements: some are missing"
        )
