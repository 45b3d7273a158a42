"""Arrays as bytes and as integer views, whatever they are: numpy, ml_dtypes, or torch.

Integer views carry the element's bits, so -0.0 and NaN payloads count. Nothing here converts a value.
Host arrays are viewed, never copied whole: where memory is not in row-major order, copies are made in
bounded slices. torch is touched only when a torch tensor is handed in.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from numpy import exceptions, lib

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import torch

    from wstore_codecs.block import Block, Shape
    from wstore_codecs.dtypes import DType

    HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    Array: TypeAlias = HostArray | torch.Tensor
    A = TypeVar("A", bound=HostArray | torch.Tensor)
    Bits: TypeAlias = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]

CHUNK_BYTES = 8 << 20
"""The largest piece that a walk over an array yields or copies at once."""

_OVERLAP_WORK = 1 << 20  # what numpy may try before two arrays count as overlapping


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What an array is.

    Attributes:
        dtype: its element type.
        shape: its dimensions; () for 0-d.
    """

    dtype: DType
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of its elements in row-major order without gaps."""
        return math.prod(self.shape) * self.dtype.itemsize


def describe(array: Array, *, name: str) -> TensorInfo:
    """Dtype and shape of an array that weights can be stored as.

    numpy arrays (and numpy scalars, and arrays that convert by `__array__`, such as JAX's) and torch
    tensors on any device, of any strides. A torch tensor that requires grad is read as its values.

    Raises:
        InvalidArgument: anything else, naming the tensor and the way out: unsupported or big-endian
            dtypes, masked, sparse, quantised, nested, meta and fake tensors, DTensors and other
            wrapper subclasses, tensors with a pending conjugate or negative bit.
    """
    if _is_torch(array):
        from wstore_codecs import torch_tensors

        plain = torch_tensors.plain(array, name=name)
        return TensorInfo(dtypes.from_torch(plain.dtype, tensor=name), tuple(plain.shape))
    host = _host(array, name=name)
    return TensorInfo(dtypes.from_numpy(host.dtype, tensor=name), host.shape)


def bit_view(array: Array, *, name: str) -> Bits:
    """The array as unsigned integers of its element's width, same shape.

    Shares memory with host arrays (any strides, no copy); a device tensor is copied whole, so walk
    those with `bit_chunks`. Raises as `describe`.
    """
    if _is_torch(array):
        from wstore_codecs import torch_tensors

        return torch_tensors.bit_view(torch_tensors.plain(array, name=name), name=name)
    host = _host(array, name=name)
    return host.view(dtypes.from_numpy(host.dtype, tensor=name).bits)


def bit_chunks(array: Array, *, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[Bits]:
    """The elements in row-major order, as 1-d contiguous integer arrays of at most `max_bytes`.

    Slices of the array's own memory where that is in row-major order, else fresh copies, one chunk at
    a time (at least one element each). An empty array yields nothing. Memory that changes meanwhile
    gives a mixture. Raises as `describe`, before the first chunk.
    """
    info = describe(array, name=name)
    boxes = _boxes(info.shape, max(1, max_bytes // info.dtype.itemsize))
    device = on_device(array)
    if device is not None:
        from wstore_codecs import torch_tensors

        return torch_tensors.device_chunks(torch_tensors.plain(device, name=name), boxes, name=name)
    bits = bit_view(array, name=name)
    return (_flat(bits[box]) for box in boxes)


def byte_view(array: Array, *, name: str, writable: bool = False) -> memoryview:
    """All bytes of a row-major host array, without a copy: what to read a tensor straight into.

    Raises:
        InvalidArgument: as `describe`; not C-contiguous; not in host memory; read-only though
            `writable` is asked for.
    """
    describe(array, name=name)
    if on_device(array) is not None:
        raise InvalidArgument(f"tensor {name!r} is not in host memory: copy it with .cpu()")
    bits = bit_view(array, name=name)
    if not bits.flags.c_contiguous:
        raise InvalidArgument(
            f"tensor {name!r} is not contiguous in row-major order (shape {bits.shape}, strides in "
            f"bytes {bits.strides})"
        )
    if writable and not bits.flags.writeable:
        raise InvalidArgument(f"tensor {name!r} is read-only")
    return bits.reshape(-1).view(np.uint8).data


def from_bytes(data: memoryview, dtype: DType, shape: Shape, *, name: str) -> HostArray:
    """An array over these bytes, without a copy; writable when they are.

    Raises:
        InvalidArgument: the length is not that of the shape.
    """
    want = math.prod(shape) * dtype.itemsize
    if data.nbytes != want:
        raise InvalidArgument(
            f"tensor {name!r}: {data.nbytes} bytes are not the {want} of {dtype.name} {shape}"
        )
    return np.frombuffer(data, np.uint8).view(dtype.numpy).reshape(shape)


def on_device(array: Array) -> torch.Tensor | None:
    """The array when it is a torch tensor outside host memory, else None."""
    return array if _is_torch(array) and array.device.type != "cpu" else None


def check_writable(array: Array, *, name: str) -> None:
    """Raises InvalidArgument unless writing to this array changes the caller's own memory, once an
    element."""
    if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.writeable:
        return
    if not (isinstance(array, np.ndarray) or _is_torch(array)):
        raise InvalidArgument(
            f"tensor {name!r} is a {type(array).__name__}, which cannot be written in place: numpy arrays "
            "and torch tensors can"
        )
    device = on_device(array)
    strides: tuple[int, ...]
    if device is not None:
        strides, free = device.stride(), 1
    else:
        bits = bit_view(array, name=name)
        strides, free = bits.strides, bits.itemsize
        if not bits.flags.writeable:
            raise InvalidArgument(f"tensor {name!r} is read-only")
    for stride, n in sorted(zip(map(abs, strides), array.shape, strict=True)):
        if n > 1:
            if stride < free and 0 not in array.shape:
                raise InvalidArgument(f"tensor {name!r} is expanded: its elements share memory")
            free += (n - 1) * stride


def box_view(array: A, box: Block) -> A:
    """The elements of a box of this array, a view; of a 0-d array, an array and no scalar."""
    index: Any = (*box.slices(), ...)
    view: Any = array[index]
    return cast("A", view)


def copied(array: A, *, name: str) -> A:
    """The same elements in memory of their own, of the same kind and on the same device."""
    describe(array, name=name)
    fresh: Any = array.detach().clone() if _is_torch(array) else np.array(array)
    return cast("A", fresh)


def span(array: Array, *, name: str) -> tuple[int, int]:
    """The addresses between which an array's elements lie, [start, stop)."""
    return lib.array_utils.byte_bounds(_addressed(array, name=name))


def overlap(one: Array, other: Array, *, name: str) -> bool:
    """Whether two arrays have an element's memory in common; True also where that is too hard to tell."""
    solve = cast("Callable[[HostArray, HostArray, int], bool]", np.shares_memory)
    try:
        return solve(_addressed(one, name=name), _addressed(other, name=name), _OVERLAP_WORK)
    except exceptions.TooHardError:
        return True


def _addressed(array: Array, *, name: str) -> HostArray:
    """An array that lies where this one does: not to be read, when that is on a device."""
    device = on_device(array)
    if device is None:
        return bit_view(array, name=name)
    return np.asarray(_Interface(device))


class _Interface:
    """Memory of a device, as numpy's array interface describes it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"<u{size}",
            "version": 3,
        }


def alias_key(array: Array, *, name: str, info: TensorInfo | None = None) -> Hashable:
    """Equal for arrays that view the same memory the same way (tied weights), else different.

    Valid while both arrays live. Arrays without elements never alias. Raises as `describe`.

    Args:
        info: the array's `describe`, where the caller has it already.
    """
    info = info or describe(array, name=name)
    if info.nbytes == 0:
        return object()
    if _is_torch(array):
        where, strides = (str(array.device), array.data_ptr()), array.stride()
        steps = tuple(s * info.dtype.itemsize for s in strides)
    else:
        host = _host(array, name=name)
        where, steps = ("cpu", host.__array_interface__["data"][0]), host.strides
    # The stride of a dimension of one element says nothing.
    if 1 in info.shape:
        steps = tuple(s for s, n in zip(steps, info.shape, strict=True) if n > 1)
    return where, info.dtype.name, info.shape, steps


def _is_torch(array: object) -> TypeGuard[torch.Tensor]:
    loaded = sys.modules.get("torch")
    return loaded is not None and isinstance(array, loaded.Tensor)


def _host(array: object, *, name: str) -> HostArray:
    """The array as numpy's own class, sharing its memory."""
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(f"tensor {name!r} is a masked array: hand in array.filled(value)")
    if isinstance(array, np.ndarray | np.generic) or (
        hasattr(array, "__array__") and hasattr(array, "dtype") and hasattr(array, "shape")
    ):
        return np.asarray(array)
    raise InvalidArgument(
        f"tensor {name!r} is a {type(array).__module__}.{type(array).__qualname__}, not a numpy array "
        "or torch tensor"
    )


def _boxes(shape: Shape, limit: int) -> Iterator[tuple[int | slice, ...]]:
    """Cuts an array into boxes of at most `limit` elements whose row-major order is the array's."""
    if math.prod(shape) == 0:
        return
    axis, inner = len(shape), 1
    while axis > 0 and inner * shape[axis - 1] <= limit:
        axis -= 1
        inner *= shape[axis]
    if axis == 0:
        yield ()
        return
    # Dimension axis - 1 is cut into slabs of whole inner boxes; the ones before it are walked.
    slab = limit // inner
    for outer in np.ndindex(*shape[: axis - 1]):
        for at in range(0, shape[axis - 1], slab):
            yield (*outer, slice(at, at + slab))


def _flat(bits: Bits) -> Bits:
    return np.require(bits, requirements=["C", "A"]).reshape(-1)
