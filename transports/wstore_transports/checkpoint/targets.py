"""The caller's memory: what the elements of a tensor, or of a box of one, are read into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes
from wstore_codecs import tensors as arrays
from wstore_codecs.block import Block, flat_runs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import EllipsisType

    from wstore_codecs.tensors import Array, HostArray
    from wstore_transports.versions.documents import Tensor

Framework = Literal["numpy", "torch"]

SMALL_BYTES = 64 << 10
"""Up to this size the copy that holds the GIL is the quicker one."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where one box of a tensor goes.

    Attributes:
        name: the tensor's name in the manifest.
        tensor: its entry there.
        box: what of it.
        array: memory of the box's shape and the tensor's dtype.
        memory: the array's bytes where they are in row-major order on the host, else None.
    """

    name: str
    tensor: Tensor
    box: Block
    array: Array
    memory: memoryview | None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtypes.dtype(self.tensor.dtype).itemsize

    def place(self, block: Block) -> memoryview | None:
        """The bytes of the array that are exactly this block's, in its order; None where there are
        none: the block reaches outside the box, or is not one run of the array's memory."""
        if block == self.box:
            return self.memory
        if self.memory is None or not self.box.contains(block):
            return None
        local = self.box.local(block)
        runs = flat_runs(self.box.extent, local.origin, local.extent)
        start, length = next(runs, (0, 0))
        if length != block.size:
            return None
        return self.memory[start * self.itemsize : (start + length) * self.itemsize]

    def put(self, block: Block, data: memoryview) -> None:
        """Copy what the box needs of a block's bytes into the array."""
        if self.memory is not None and len(data) <= SMALL_BYTES and block == self.box:
            self.memory[:] = data
            return
        part = self.box.clip(block)
        if part is None:
            return
        inside, here = block.local(part).slices(), self.box.local(part).slices()
        kind = dtypes.dtype(self.tensor.dtype)
        device = arrays.on_device(self.array)
        if device is None:
            bits = np.frombuffer(data, kind.bits).reshape(block.extent)
            # Without the GIL, unlike a slice assignment of memoryviews; `...` keeps 0-d an array.
            mine = arrays.bit_view(self.array, name=self.name)
            place: tuple[slice | EllipsisType, ...] = (*here, ...)
            np.copyto(mine[place], bits[inside])
        else:
            import torch

            host = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)).view(kind.torch)
            device[here].copy_(host.reshape(block.extent)[inside])


def allocate(name: str, tensor: Tensor, box: Block, framework: Framework) -> Target:
    """A target in new memory, as a numpy array or a torch CPU tensor."""
    kind = dtypes.dtype(tensor.dtype)
    array: Array
    if framework == "torch":
        import torch

        array = torch.empty(box.extent, dtype=kind.torch)
    else:
        array = np.empty(box.extent, kind.numpy)
        return Target(name, tensor, box, array, _bytes_of(array))
    return Target(name, tensor, box, array, arrays.byte_view(array, name=name, writable=True))


def borrow(name: str, tensor: Tensor, box: Block, array: Array) -> Target:
    """A target in the caller's memory: any strides, any device.

    Raises:
        InvalidArgument: another shape or dtype than the box has, read-only memory, or memory in which
            two elements share a place. Nothing is written.
    """
    info = arrays.describe(array, name=name)
    if info.shape != box.extent or info.dtype.name != tensor.dtype:
        raise InvalidArgument(
            f"tensor {name!r} is {tensor.dtype} {list(box.extent)} in the version and "
            f"{info.dtype.name} {list(info.shape)} in the memory to load it into"
        )
    if arrays.on_device(array) is not None:
        return Target(name, tensor, box, array, None)
    bits = arrays.bit_view(array, name=name)
    if not bits.flags.writeable:
        raise InvalidArgument(f"tensor {name!r}: the memory to load it into is read-only")
    if _overlaps_itself(bits):
        raise InvalidArgument(
            f"tensor {name!r}: elements of the memory to load it into share places (an expanded view)"
        )
    memory = _bytes_of(bits) if bits.flags.c_contiguous else None
    return Target(name, tensor, box, array, memory)


def _bytes_of(array: HostArray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _overlaps_itself(bits: np.ndarray) -> bool:
    if bits.size < 2 or bits.flags.c_contiguous:
        return False
    used = sorted(
        (abs(stride), length)
        for stride, length in zip(bits.strides, bits.shape, strict=True)
        if length > 1
    )
    reach = bits.itemsize
    for stride, length in used:
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def check_names(wanted: Mapping[str, object], have: Mapping[str, str], *, exact: bool) -> None:
    """Check names to load against those of a version (each name -> the one it is stored under).

    Raises:
        InvalidArgument: names that the version lacks; with `exact`, stored tensors that nobody wants.
            Lists them.
    """
    unknown = [name for name in wanted if name not in have]
    covered = {have[name] for name in wanted if name in have}
    left = sorted(set(have.values()) - covered) if exact else []
    if unknown or left:
        problems = []
        if unknown:
            problems.append(f"not in the version: {_listed(unknown)}")
        if left:
            problems.append(f"in the version, but not asked for: {_listed(left)}")
        raise InvalidArgument("names do not fit; " + "; ".join(problems))


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
