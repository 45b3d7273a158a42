"""Byte planes on any torch device, as `kernels.planes` computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wstore.errors import InvalidArgument
from wstore_codecs.torch_tensors import flat_words

if TYPE_CHECKING:
    from collections.abc import Sequence

SLICE = 16 << 20
"""Elements a step: temporaries take at most 6 x 16 MiB on the device."""


def split(tensor: torch.Tensor, *, turned: bool) -> tuple[torch.Tensor, ...]:
    """The byte planes of a contiguous tensor, the most significant first: fresh flat uint8 tensors on
    its device.

    Args:
        turned: the upper 16 bits of each element are rotated left by one first; elements of one byte
            are never turned.
    """
    raw = _bytes(tensor)
    size, width = raw.shape
    planes = tuple(raw.new_empty(size) for _ in range(width))
    for start in range(0, size, SLICE):
        part = raw[start : start + SLICE]
        for k, plane in enumerate(planes):
            plane[start : start + SLICE] = part[:, width - 1 - k]
        if turned and width > 1:
            high, low = (plane[start : start + SLICE] for plane in planes[:2])
            sign = high >> 7
            high <<= 1
            high |= low >> 7
            low <<= 1
            low |= sign
    return planes


def merge(planes: Sequence[torch.Tensor], out: torch.Tensor, *, turned: bool) -> None:
    """Fills a contiguous tensor from its byte planes, which are on its device: the inverse of `split`.

    Raises:
        InvalidArgument: planes that do not fit.
    """
    raw = _bytes(out)
    size, width = raw.shape
    if [(p.dtype, p.device, *p.shape) for p in planes] != [(torch.uint8, raw.device, size)] * width:
        raise InvalidArgument(f"{width} uint8 planes of {size} bytes on {raw.device} are needed")
    for start in range(0, size, SLICE):
        part = raw[start : start + SLICE]
        pieces = [plane[start : start + SLICE] for plane in planes]
        if turned and width > 1:
            high, low = pieces[:2]
            pieces[:2] = (high >> 1) | (low << 7), (low >> 1) | (high << 7)
        for k, piece in enumerate(pieces):
            part[:, width - 1 - k] = piece


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory as bytes, a row for each element, the least significant byte first."""
    words = flat_words(tensor)
    return words.view(torch.uint8).view(words.numel(), words.element_size())
