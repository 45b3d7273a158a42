"""Matrices in host memory as fp8 (e4m3) with a scale a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes
import numpy as np

from wstore_codecs.jit import compiled

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
    UInt32s: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

LARGEST = 448.0
"""The largest e4m3 number: what a block's largest magnitude becomes."""

SMALLEST_SCALE = 2.0**-126
"""float32's smallest normal number. A block of smaller numbers than fp8's range times this is not
stretched to the whole range; so no scale is 0 and none is subnormal, which some devices flush to 0."""

ROUND = np.uint32(0x7FFFF)  # just below half of the last bit that e4m3 keeps of a float32's
KEPT = np.uint32(20)  # bits that e4m3 drops of a float32's mantissa
ONE = np.uint32(1)
TOP = np.uint32(0x43E00000)  # 448.0
NORMAL = np.uint32(0x3C800000)  # 2^-6: below, e4m3 counts in steps of 2^-9
REBASE = np.uint32(120 << 3)  # between the exponents' biases, 127 and 7
SIGN_SHIFT = np.uint32(24)
SIGN = np.uint32(0x80)
MAGNITUDE = np.uint32(0x7FFFFFFF)
STEPS = np.float32(2.0**14)  # a float32 from here on counts in steps of 2^-9: adding it rounds
PER_STEP = np.float32(2.0**9)

_LARGEST_SIGNATURE = "void(uint32[:, ::1], int64, uint32[::1])"
_ENCODE_SIGNATURE = "void(float32[:, ::1], uint32[:, ::1], float32[::1], int64, uint8[:, ::1])"


def quantise(matrix: HostArray, block: tuple[int, int]) -> tuple[HostArray, Floats]:
    """(fp8 of the same shape, float32 scale of each block), row-major.

    One row of blocks at a time is held as float32. A block with a NaN or an infinity gets the scale NaN,
    and its elements mean nothing.
    """
    rows, columns = matrix.shape
    high, wide = block
    out: Bytes = np.empty(matrix.shape, np.uint8)
    scales: Floats = np.ones((-(-rows // high), -(-columns // wide)), np.float32)
    if matrix.size:
        for row, top in enumerate(range(0, rows, high)):
            band = matrix[top : top + high]
            _quantise_row(band, wide, scales[row], out[top : top + high])
    return out.view(ml_dtypes.float8_e4m3fn), scales


def _quantise_row(band: HostArray, wide: int, scales: Floats, out: Bytes) -> None:
    """One row of blocks; fills the scales and the codes."""
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = band.astype(np.float32, order="C")
    bits: UInt32s = values.view(np.uint32)
    # Magnitudes order as their bits do, and integers have a vector instruction for it.
    compiled(_find_largest, _LARGEST_SIGNATURE)(bits, wide, scales.view(np.uint32))
    _make_scales(scales)
    compiled(_encode, _ENCODE_SIGNATURE)(values, bits, scales, wide, out)


def _make_scales(largest: Floats) -> None:
    """In place."""
    zeros, bad = largest == 0, ~np.isfinite(largest)
    np.divide(largest, np.float32(LARGEST), out=largest)
    np.maximum(largest, np.float32(SMALLEST_SCALE), out=largest)
    largest[zeros] = 1
    largest[bad] = np.nan


# Below, slices and casts to 32 bits are what lets LLVM make vectors of the loops: numba would check each
# index for being negative, and count in 64 bits.


def _find_largest(bits: UInt32s, wide: int, out: UInt32s) -> None:
    """The bits of the largest magnitude of each block."""
    out[:] = 0
    for row in range(bits.shape[0]):
        for block in range(len(out)):
            words = bits[row, block * wide : block * wide + wide]
            most = out[block]
            for at in range(len(words)):
                most = max(most, np.uint32(words[at] & MAGNITUDE))
            out[block] = most


def _encode(values: Floats, bits: UInt32s, scales: Floats, wide: int, out: Bytes) -> None:
    """Divide by the scales, in place, and round to the nearest e4m3 number, ties to even, at most 448.

    `bits` are those of `values`, in the same memory; so two loops, each of which becomes vectors.
    """
    for row in range(values.shape[0]):
        for block in range(len(scales)):
            start, stop = block * wide, block * wide + wide
            floats, words, codes = (
                values[row, start:stop],
                bits[row, start:stop],
                out[row, start:stop],
            )
            scale = scales[block]
            for at in range(len(floats)):
                floats[at] /= scale
            for at in range(len(floats)):
                magnitude = min(np.uint32(words[at] & MAGNITUDE), TOP)
                rounded = np.uint32(magnitude + ROUND + ((magnitude >> KEPT) & ONE))
                normal = np.uint32((rounded >> KEPT) - REBASE)
                small = np.uint32(np.int32(((abs(floats[at]) + STEPS) - STEPS) * PER_STEP))
                code = normal if magnitude >= NORMAL else small
                codes[at] = code | ((words[at] >> SIGN_SHIFT) & SIGN)
