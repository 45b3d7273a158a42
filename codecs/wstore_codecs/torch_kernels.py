"""The additive digest on any torch device, in int64 arithmetic that wraps.

torch has no 64-bit unsigned arithmetic on every device, so words are int64 and a logical shift is an
arithmetic one with the sign's copies masked off. Products and sums mod 2^64 are the same either way.
"""

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
    x = bits.to(torch.int64, copy=True)  # computed on in place
    if bits.dtype in _ZERO_EXTEND:
        x &= _ZERO_EXTEND[bits.dtype]
    x += _signed((start + 1) * STEP)
    for axis, stride in enumerate(strides):
        steps = torch.arange(bits.shape[axis], device=bits.device) * _signed(stride * STEP)
        x += steps.reshape((-1,) + (1,) * (bits.ndim - 1 - axis))
    _fold(x)
    x *= _signed(M)
    _fold(x)
    u = x * _signed(N0)
    _fold(u)
    x *= _signed(N1)
    _fold(x)
    return torch.stack((u.sum(), x.sum()))


def _fold(x: torch.Tensor) -> None:
    x ^= (x >> 32) & 0xFFFFFFFF


def _signed(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    return ((word + (1 << 63)) & MASK) - (1 << 63)


_ZERO_EXTEND = {torch.int16: 0xFFFF, torch.int32: 0xFFFFFFFF}
