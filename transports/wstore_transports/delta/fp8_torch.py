"""Matrices on a torch device as fp8 (e4m3) with a scale a block: to the bit what `fp8_host` makes.

Imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from wstore_transports.delta.fp8_host import LARGEST, SMALLEST_SCALE

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

CHUNK = 32 << 20
"""Elements that are held as float32 at once, or one row of blocks if that is more."""


def from_host(array: HostArray, dtype: torch.dtype) -> torch.Tensor:
    """A host array of one-byte elements as a tensor over the same memory."""
    return torch.from_numpy(array.view("u1")).view(dtype)


def quantise(matrix: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp8 of the same shape, float32 scale of each block), contiguous, on the matrix's device.

    Nothing waits for the device. A block with a NaN or an infinity gets the scale NaN, and its elements
    mean nothing.
    """
    rows, columns = matrix.shape
    high, wide = block
    across = -(-columns // wide)
    device = matrix.device
    out = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=device)
    scales = torch.ones((-(-rows // high), across), dtype=torch.float32, device=device)
    if not matrix.numel():
        return out, scales
    taken = max(1, CHUNK // (high * columns))  # rows of blocks
    for row in range(0, len(scales), taken):
        values = matrix[row * high : (row + taken) * high].to(torch.float32)
        size = len(values)
        # Zeros at the edges change no block's largest magnitude.
        values = functional.pad(values, (0, across * wide - columns, 0, -size % high))
        blocks = values.view(-1, high, across, wide)
        scale = _scales(blocks.abs().amax(dim=(1, 3)))
        codes = (blocks / scale[:, None, :, None]).clamp_(-LARGEST, LARGEST).to(out.dtype)
        out[row * high : row * high + size] = codes.view(values.shape)[:size, :columns]
        scales[row : row + taken] = scale
    return out, scales


def _scales(largest: torch.Tensor) -> torch.Tensor:
    # A divisor on the device: by a plain number, CUDA multiplies with its rounded reciprocal.
    scales = (largest / torch.full_like(largest, LARGEST)).clamp_(min=SMALLEST_SCALE)
    scales = scales.masked_fill(largest == 0, 1.0)
    return scales.masked_fill(~largest.isfinite(), float("nan"))
