"""Byte planes: byte k of every element behind one another, two planes in one pass over memory.

Loops of two outputs and one input are what LLVM turns into vectors; with more it gives up on proving
that they do not overlap. Elements of two bytes have kernels of their own, whose constant shifts let it
use lanes of 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs.jit import compiled, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_codecs.tensors import Bits

    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

FULL = np.uint64(0xFFFF)
BYTE = np.uint64(8)
LAST = np.uint64(15)
SEVEN = np.uint64(7)
ONE = np.uint64(1)


def _split_two(bits: Bits, turned: bool, high: Bytes, low: Bytes) -> None:
    if turned:
        for i in range(bits.size):
            x = bits[i]
            high[i] = (x >> 7) & 0xFF
            low[i] = ((x << 1) | (x >> 15)) & 0xFF
    else:
        for i in range(bits.size):
            x = bits[i]
            high[i] = x >> 8
            low[i] = x & 0xFF


def _merge_two(high: Bytes, low: Bytes, turned: bool, bits: Bits) -> None:
    if turned:
        for i in range(bits.size):
            x = (np.uint16(high[i]) << 8) | np.uint16(low[i])
            bits[i] = (x >> 1) | ((x & 1) << 15)
    else:
        for i in range(bits.size):
            bits[i] = (np.uint16(high[i]) << 8) | np.uint16(low[i])


def _split_wide(bits: Bits, shift: int, turned: bool, high: Bytes, low: Bytes) -> None:
    down = np.uint64(shift)
    if turned:
        for i in range(bits.size):
            x = (np.uint64(bits[i]) >> down) & FULL
            high[i] = x >> SEVEN
            low[i] = (x << ONE) | (x >> LAST)
    else:
        for i in range(bits.size):
            x = np.uint64(bits[i]) >> down
            high[i] = x >> BYTE
            low[i] = x


def _merge_wide(high: Bytes, low: Bytes, shift: int, turned: bool, bits: Bits) -> None:
    up = np.uint64(shift)
    if turned:  # the first pair, which also clears what is below it
        for i in range(bits.size):
            x = (np.uint64(high[i]) << BYTE) | np.uint64(low[i])
            bits[i] = ((x >> ONE) | ((x & ONE) << LAST)) << up
    else:
        for i in range(bits.size):
            x = (np.uint64(high[i]) << BYTE) | np.uint64(low[i])
            bits[i] = np.uint64(bits[i]) | (x << up)


def split(bits: Bits, *, turned: bool) -> tuple[Bytes, ...]:
    """The byte planes of 1-d, contiguous, aligned bits, the most significant first, as fresh arrays.

    Args:
        turned: the upper 16 bits of each element are rotated left by one first, so that the exponent
            of a float is not cut by its sign. Elements of one byte are never turned.
    """
    width = bits.itemsize
    if width == 1:
        return (bits.astype(np.uint8, copy=True),)
    planes = tuple(np.empty(bits.size, np.uint8) for _ in range(width))
    source = frozen(bits)
    if width == 2:
        compiled(_split_two, _SPLIT_TWO)(source, turned, planes[0], planes[1])
        return planes
    kernel = compiled(_split_wide, _split_signature(width))
    for first in range(0, width, 2):
        shift = 8 * (width - 2 - first)
        kernel(source, shift, turned and first == 0, planes[first], planes[first + 1])
    return planes


def merge(planes: Sequence[Bytes], out: Bits, *, turned: bool) -> None:
    """Fills `out` from its byte planes: the inverse of `split`. Planes may be read-only."""
    width = out.itemsize
    if len(planes) != width or any(plane.shape != out.shape for plane in planes):
        raise ValueError(f"{len(planes)} planes do not fit {out.size} elements of {width} bytes")
    if width == 1:
        np.copyto(out, planes[0])
        return
    sources = [frozen(plane) for plane in planes]
    if width == 2:
        compiled(_merge_two, _MERGE_TWO)(sources[0], sources[1], turned, out)
        return
    kernel = compiled(_merge_wide, _merge_signature(width))
    if not turned:
        out[:] = 0
    for first in range(0, width, 2):
        shift = 8 * (width - 2 - first)
        kernel(sources[first], sources[first + 1], shift, turned and first == 0, out)


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    compiled(_split_two, _SPLIT_TWO)
    compiled(_merge_two, _MERGE_TWO)
    for width in (4, 8):
        compiled(_split_wide, _split_signature(width))
        compiled(_merge_wide, _merge_signature(width))


_BYTES = "Array(uint8, 1, 'C', readonly=True)"
_SPLIT_TWO = "void(Array(uint16, 1, 'C', readonly=True), boolean, uint8[::1], uint8[::1])"
_MERGE_TWO = f"void({_BYTES}, {_BYTES}, boolean, uint16[::1])"


def _split_signature(width: int) -> str:
    bits = f"Array(uint{8 * width}, 1, 'C', readonly=True)"
    return f"void({bits}, int64, boolean, uint8[::1], uint8[::1])"


def _merge_signature(width: int) -> str:
    return f"void({_BYTES}, {_BYTES}, int64, boolean, uint{8 * width}[::1])"
