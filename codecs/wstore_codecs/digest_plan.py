"""Where the elements of a box lie in the whole tensor: the positions that a digest is taken over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs.block import Block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_codecs.block import Shape
    from wstore_codecs.tensors import Bits

Int64s = np.ndarray[tuple[int], np.dtype[np.int64]]

_MAX_ELEMENTS = 1 << 62


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The whole tensor's position of each element of a box.

    Element (c0, c1, ...) of the box is at `start` + sum of c_k * strides[k].

    Attributes:
        start: position of the box's first element.
        extents: the box's size in each dimension; at least one dimension.
        strides: steps of the position, not of memory; may be negative.
    """

    start: int
    extents: Shape
    strides: Shape

    def merged(self) -> IndexMap:
        """The same positions in the same order, over as few dimensions as they need."""
        extents: list[int] = []
        strides: list[int] = []
        for extent, stride in zip(self.extents, self.strides, strict=True):
            if extent == 1:
                continue
            if extents and strides[-1] == extent * stride:
                extents[-1] *= extent
                strides[-1] = stride
            else:
                extents.append(extent)
                strides.append(stride)
        return IndexMap(self.start, tuple(extents) or (1,), tuple(strides) or (1,))

    def in_memory_order(self, bits: Bits) -> tuple[Bits, IndexMap]:
        """The box's array with its axes turned so that memory ascends, and the map that fits it.

        A sum does not mind the order, so Fortran-ordered and reversed arrays need no copy.
        """
        start, strides, turned = self.start, list(self.strides), bits
        for axis, step in enumerate(bits.strides):
            if step < 0:
                turned = np.flip(turned, axis)
                start += (self.extents[axis] - 1) * strides[axis]
                strides[axis] = -strides[axis]
        axes = sorted(range(bits.ndim), key=lambda axis: -turned.strides[axis])
        if not axes:
            return turned, self
        pick = tuple(strides[axis] for axis in axes)
        extents = tuple(self.extents[axis] for axis in axes)
        return turned.transpose(axes), IndexMap(start, extents, pick)

    def arrays(self) -> tuple[Int64s, Int64s]:
        """Extents and strides as the kernels take them."""
        return np.array(self.extents, np.int64), np.array(self.strides, np.int64)


def index_map(
    extent: Sequence[int],
    shape: Sequence[int] | None = None,
    origin: Sequence[int] | None = None,
    *,
    tensor: str,
) -> IndexMap:
    """The map of the box at `origin` (zeros by default) of a tensor of `shape` (`extent` by default).

    Raises:
        InvalidArgument: the box leaves the shape, or the tensor has 2^62 elements or more.
    """
    whole = tuple(extent) if shape is None else tuple(shape)
    box = Block(tensor, (0,) * len(whole) if origin is None else tuple(origin), tuple(extent))
    if not box.within(whole):
        raise InvalidArgument(
            f"tensor {tensor!r}: a box of {box.extent} at {box.origin} leaves the shape {whole}"
        )
    if math.prod(n for n in whole if n) >= _MAX_ELEMENTS:
        raise InvalidArgument(f"tensor {tensor!r} of shape {whole} has too many elements")
    strides = [1] * len(whole)
    for axis in range(len(whole) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * whole[axis + 1]
    start = sum(o * s for o, s in zip(box.origin, strides, strict=True))
    return IndexMap(start, box.extent or (1,), tuple(strides) or (1,))
