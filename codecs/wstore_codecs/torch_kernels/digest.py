"""The additive digest on any torch device, in int64 arithmetic that wraps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from wstore_codecs import torch_tensors
from wstore_codecs.digest_reference import MASK, N0, N1, STEP, M

if TYPE_CHECKING:
    from wstore_codecs.digest_plan import IndexMap

SLICE = 4 << 20
"""Elements a step: temporaries take about 5 x 32 MiB on the device."""


def torch_lanes(tensor: torch.Tensor, spread: IndexMap) -> tuple[int, int]:
    """The two sums over all elements of a box, computed on the tensor's device.

    Args:
        tensor: the box, any strides.
        spread: `index_map` of the box, not merged.
    """
    bits = torch_tensors.integers(torch_tensors.plain(tensor, name=""))
    if bits.numel() == 0:
        return 0, 0
    lanes = torch.zeros(2, dtype=torch.int64, device=bits.device)
    _add(bits.reshape(spread.extents), spread, spread.start, lanes)
    lane0, lane1 = lanes.tolist()
    return lane0 & MASK, lane1 & MASK


def _add(bits: torch.Tensor, spread: IndexMap, start: int, lanes: torch.Tensor) -> None:
    """Adds the sums over `bits`, the box that `spread` maps from `start`, in slices along its axes."""
    extents = tuple(bits.shape)
    if bits.numel() <= SLICE:
        lanes += _slice_lanes(bits, spread.strides[-len(extents) :], start)
        return
    stride = spread.strides[-len(extents)]
    inner = math.prod(extents[1:])
    if inner > SLICE:
        for at in range(extents[0]):
            _add(bits[at], spread, start + at * stride, lanes)
        return
    rows = SLICE // inner
    for at in range(0, extents[0], rows):
        part = bits[at : at + rows]
        lanes += _slice_lanes(part, spread.strides[-len(extents) :], start + at * stride)


def _slice_lanes(bits: torch.Tensor, strides: tuple[int, ...], start: int) -> torch.Tensor:
    # The positions times STEP, spread over the axes: a sum of small vectors, no position per element.
    x = zero_extended(bits)
    x += signed((start + 1) * STEP)
    for axis, stride in enumerate(strides):
        steps = torch.arange(bits.shape[axis], device=bits.device) * signed(stride * STEP)
        x += steps.reshape((-1,) + (1,) * (bits.ndim - 1 - axis))
    return mixed_sums(x)


def mixed_sums(x: torch.Tensor) -> torch.Tensor:
    """The two sums, as int64, over elements whose position times STEP plus bits is `x` (int64, which
    is overwritten)."""
    _fold(x)
    x *= signed(M)
    _fold(x)
    u = x * signed(N0)
    _fold(u)
    x *= signed(N1)
    _fold(x)
    return torch.stack((u.sum(), x.sum()))


def zero_extended(bits: torch.Tensor) -> torch.Tensor:
    """Integers of any width as fresh int64 with their bits in the low end."""
    wide = bits.to(torch.int64, copy=True)
    width = bits.element_size()
    if width < 8:
        wide &= (1 << 8 * width) - 1
    return wide


def _fold(x: torch.Tensor) -> None:
    x ^= (x >> 32) & 0xFFFFFFFF


def signed(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    return ((word + (1 << 63)) & MASK) - (1 << 63)
