"""torch tensors as integer views and chunks. Loaded only when a torch tensor is handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_codecs.tensors import Bits

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of each element width that every device and operator knows."""

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plain(tensor: torch.Tensor, *, name: str) -> torch.Tensor:
    """The tensor's values as a strided tensor with memory of its own, sharing that memory.

    Raises:
        InvalidArgument: there is no such memory, or it does not hold the values as they read.
    """
    trouble = _trouble(tensor)
    if trouble:
        raise InvalidArgument(f"tensor {name!r} {trouble}")
    return tensor.detach()


def _trouble(tensor: torch.Tensor) -> str:
    kind = type(tensor)
    if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        return (
            "is a DTensor: hand in the local shard, tensor.to_local(), with its place in the whole"
        )
    if tensor.is_meta:
        return "is on the meta device and has no values: materialise it first"
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return (
            f"is a {kind.__name__}, whose values are not in a plain torch tensor: convert it first"
        )
    if tensor.is_quantized:
        return "is quantised: hand in tensor.int_repr() and its scales as tensors of their own"
    if tensor.is_nested:
        return "is nested: hand in its parts, tensor.unbind()"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}: hand in tensor.to_dense()"
    if tensor.is_conj() or tensor.is_neg():
        return "is a lazy conjugate or negative: hand in tensor.resolve_conj().resolve_neg()"
    return ""


def bit_view(tensor: torch.Tensor, *, name: str) -> Bits:
    """A `plain` tensor as numpy integers: a view of host memory, a copy of device memory."""
    bits = dtypes.from_torch(tensor.dtype, tensor=name).bits
    return integers(tensor).cpu().numpy().view(bits)


def write_bits(tensor: torch.Tensor, bits: Bits) -> None:
    """Make host integers of a tensor's width and shape its content, on any device."""
    target = integers(tensor.detach())
    # Copied: torch takes no read-only memory. numpy's signed view has the same bits, as `INTEGERS` wants.
    signed = bits.astype(bits.dtype, order="C")
    if signed.itemsize > 1:
        signed = signed.view(f"i{signed.itemsize}")
    target.copy_(torch.from_numpy(signed).reshape(target.shape))


def integers(tensor: torch.Tensor) -> torch.Tensor:
    """A `plain` tensor viewed as integers of its width, same shape and strides, same device."""
    return tensor.view(INTEGERS[tensor.element_size()])


def device_chunks(
    tensor: torch.Tensor, boxes: Iterator[tuple[int | slice, ...]], *, name: str
) -> Iterator[Bits]:
    """Boxes of a `plain` tensor on a device as 1-d host arrays, one at a time."""
    bits = dtypes.from_torch(tensor.dtype, tensor=name).bits
    view = integers(tensor)
    for box in boxes:
        yield np.ascontiguousarray(view[box].contiguous().cpu().numpy()).view(bits).reshape(-1)


def flat_words(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as a flat view of signed integers of its width, on its device.

    Raises:
        InvalidArgument: not contiguous, or as `plain`.
    """
    tensor = plain(tensor, name="")
    if not tensor.is_contiguous():
        raise InvalidArgument(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous"
        )
    return tensor.reshape(-1).view(_SIGNED[tensor.element_size()])
