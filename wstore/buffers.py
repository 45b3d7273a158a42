"""The caller's memory as flat bytes: bytearray, memoryview, numpy arrays, torch CPU tensors.

Neither numpy nor torch is imported: an object can be theirs only where they are loaded already.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import TypeAlias, TypeGuard

    import numpy as np
    import torch
    from typing_extensions import Buffer

    AnyArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    ReadableBuffer: TypeAlias = Buffer | torch.Tensor | AnyArray
    WritableBuffer: TypeAlias = ReadableBuffer


def writable_bytes(buffer: WritableBuffer) -> memoryview:
    """A writable view of the memory as bytes; keeps the owner alive.

    Raises:
        InvalidArgument: read-only, not C-contiguous, not on the CPU, or not a buffer.
    """
    view = readable_bytes(buffer)
    if view.readonly:
        raise InvalidArgument(f"cannot read into a read-only {type(buffer).__name__}")
    return view


def readable_bytes(buffer: ReadableBuffer) -> memoryview:
    """A view of the memory as bytes, read-only where the owner is; keeps the owner alive.

    Raises:
        InvalidArgument: not C-contiguous, not on the CPU, holding Python objects, or not a buffer.
    """
    if is_tensor(buffer):
        return _tensor_bytes(buffer)
    if is_array(buffer):
        return _array_bytes(buffer)
    return _buffer_bytes(cast("Buffer", buffer))


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether this is a torch tensor."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def is_array(value: object) -> TypeGuard[AnyArray]:
    """Whether this is a numpy array."""
    module = sys.modules.get("numpy")
    return module is not None and isinstance(value, module.ndarray)


def is_readable(value: object) -> TypeGuard[ReadableBuffer]:
    """Whether `readable_bytes` is meant for such an object."""
    if is_tensor(value):
        return True
    try:
        memoryview(cast("Buffer", value))
    except TypeError:
        return is_array(value)
    except ValueError:  # numpy has no buffer format for bfloat16, datetime64, ...
        return True
    return True


def _buffer_bytes(buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise InvalidArgument(
            f"a {type(buffer).__name__} is not bytes-like (bytes, memoryview, numpy, torch on the CPU)"
        ) from error
    if not view.c_contiguous:
        raise InvalidArgument(f"a {type(buffer).__name__} that is not C-contiguous; copy it first")
    if view.nbytes == 0:  # cast() refuses zeros in a shape
        return memoryview(b"" if view.readonly else bytearray())
    try:
        return view.cast("B")
    except TypeError as error:
        raise InvalidArgument(
            f"a {type(buffer).__name__} with items of format {view.format!r}; cast it to bytes first"
        ) from error


def _array_bytes(array: AnyArray) -> memoryview:
    """numpy exports no buffer of bfloat16, fp8 or datetime64; its view as bytes it does."""
    if array.dtype.hasobject:
        raise InvalidArgument("a numpy array of Python objects has no bytes to transfer")
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"a numpy array of shape {array.shape} and strides {array.strides} is not C-contiguous; "
            "use numpy.ascontiguousarray"
        )
    if array.nbytes == 0:
        return memoryview(bytearray() if array.flags.writeable else b"")
    return memoryview(cast("Buffer", array.reshape(-1).view("u1")))


def _tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Any dtype through its bytes: numpy has no bfloat16 of torch."""
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"a torch tensor on {tensor.device}: only CPU memory can be used")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"a torch tensor of layout {tensor.layout} has no flat bytes")
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(
            f"a torch tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} "
            "is not contiguous; use .contiguous()"
        )
    if tensor.numel() == 0:
        return memoryview(bytearray())
    return memoryview(cast("Buffer", tensor.detach().reshape(-1).view(torch.uint8).numpy()))
