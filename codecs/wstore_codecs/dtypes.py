"""The element types: one table from safetensors names to numpy, torch and integer views.

A dtype is written everywhere (headers, manifests, digests) by its safetensors name. Types below one
byte (F4, F6_*) are known by name and refused: their elements have no address of their own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

SUBBYTE = frozenset({"F4", "F6_E2M3", "F6_E3M2"})
"""Names that the safetensors format has and this package does not read."""


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: the safetensors name, such as "BF16".
        itemsize: bytes of an element.
        numpy: its numpy dtype, little-endian (an ml_dtypes one where numpy has none).
        torch_name: the attribute of the torch module that is its torch dtype.
    """

    name: str
    itemsize: int
    numpy: np.dtype[np.generic]
    torch_name: str

    @property
    def bits(self) -> np.dtype[np.unsignedinteger]:
        """The unsigned integer type of the same width: what comparisons and digests look at."""
        return _UNSIGNED[self.itemsize]

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype. Imports torch."""
        import torch

        found = getattr(torch, self.torch_name, None)
        if not isinstance(found, torch.dtype):
            raise InvalidArgument(f"torch {torch.__version__} has no dtype for {self.name}")
        return found


_UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def _row(name: str, numpy: np.dtype[np.generic], torch_name: str) -> DType:
    return DType(name, numpy.itemsize, numpy, torch_name)


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        _row("BOOL", np.dtype("?"), "bool"),
        _row("U8", np.dtype("<u1"), "uint8"),
        _row("I8", np.dtype("<i1"), "int8"),
        _row("F8_E4M3", np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
        _row("F8_E5M2", np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2"),
        _row("F8_E4M3FNUZ", np.dtype(ml_dtypes.float8_e4m3fnuz), "float8_e4m3fnuz"),
        _row("F8_E5M2FNUZ", np.dtype(ml_dtypes.float8_e5m2fnuz), "float8_e5m2fnuz"),
        _row("F8_E8M0", np.dtype(ml_dtypes.float8_e8m0fnu), "float8_e8m0fnu"),
        _row("I16", np.dtype("<i2"), "int16"),
        _row("U16", np.dtype("<u2"), "uint16"),
        _row("F16", np.dtype("<f2"), "float16"),
        _row("BF16", np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        _row("I32", np.dtype("<i4"), "int32"),
        _row("U32", np.dtype("<u4"), "uint32"),
        _row("F32", np.dtype("<f4"), "float32"),
        _row("I64", np.dtype("<i8"), "int64"),
        _row("U64", np.dtype("<u8"), "uint64"),
        _row("F64", np.dtype("<f8"), "float64"),
        _row("C64", np.dtype("<c8"), "complex64"),
    )
}
"""Every supported type by name, in the order of safetensors."""

_BY_NUMPY = {row.numpy: row for row in DTYPES.values()}
_BY_TORCH_NAME = {f"torch.{row.torch_name}": row for row in DTYPES.values()}


def dtype(name: str) -> DType:
    """The type of that safetensors name. Raises InvalidArgument for any other name."""
    try:
        return DTYPES[name]
    except KeyError:
        why = "has elements below one byte" if name in SUBBYTE else "is not a dtype name"
        raise InvalidArgument(f"{name!r} {why}; known: {', '.join(DTYPES)}") from None


def from_numpy(numpy: np.dtype[np.generic], *, tensor: str) -> DType:
    """The type of a numpy dtype; `tensor` names the culprit in the error.

    Raises:
        InvalidArgument: big-endian, or without a counterpart (object, str, complex128, int4 ...).
    """
    if numpy.byteorder == ">" or (numpy.byteorder == "=" and sys.byteorder == "big"):
        raise InvalidArgument(
            f"tensor {tensor!r} is big-endian ({numpy.str}): hand in "
            "array.astype(array.dtype.newbyteorder('<'))"
        )
    try:
        return _BY_NUMPY[numpy]
    except KeyError:
        raise InvalidArgument(
            f"tensor {tensor!r} has numpy dtype {numpy}, which weights cannot be stored as; "
            f"supported: {', '.join(str(row.numpy) for row in DTYPES.values())}"
        ) from None


def from_torch(dtype: torch.dtype, *, tensor: str) -> DType:
    """The type of a torch dtype. Raises InvalidArgument naming `tensor` for quantised, sub-byte and
    other types without a counterpart."""
    try:
        return _BY_TORCH_NAME[str(dtype)]
    except KeyError:
        raise InvalidArgument(
            f"tensor {tensor!r} has dtype {dtype}, which weights cannot be stored as; "
            f"supported: {', '.join(_BY_TORCH_NAME)}"
        ) from None
