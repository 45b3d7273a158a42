"""The additive digest, compiled (`wstore_codecs.digest` states what is computed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs.jit import compiled, is_compiled

if TYPE_CHECKING:
    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import Bits

STEP = np.uint64(0x9E3779B97F4A7C15)
M = np.uint64(0xD6E8FEB86659FD93)
N0 = np.uint64(0xD6E8FEB86659FD93)
N1 = np.uint64(0xFF51AFD7ED558CCD)
HALF = np.uint64(32)
ONE = np.uint64(1)

_WIDTHS = ("uint8", "uint16", "uint32", "uint64")


def _digest(
    bits: np.ndarray[tuple[int], np.dtype[np.unsignedinteger]],
    first: int,
    start: int,
    extents: np.ndarray[tuple[int], np.dtype[np.int64]],
    strides: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[np.uint64, np.uint64]:
    lane0 = np.uint64(0)
    lane1 = np.uint64(0)
    inner = extents[-1]
    by = np.uint64(strides[-1]) * STEP
    row = first // inner
    column = first - row * inner
    at = 0
    while at < bits.size:
        index = start + column * strides[-1]
        rest = row
        for axis in range(extents.size - 2, -1, -1):
            above = rest // extents[axis]
            index += (rest - above * extents[axis]) * strides[axis]
            rest = above
        run = bits[at : at + inner - column]
        place = (np.uint64(index) + ONE) * STEP
        for j in range(run.size):  # by number: numba's iterator over an array hinders vectors
            x = place + np.uint64(run[j])
            place += by
            x ^= x >> HALF
            x *= M
            x ^= x >> HALF
            u = x * N0
            lane0 += u ^ (u >> HALF)
            w = x * N1
            lane1 += w ^ (w >> HALF)
        at += run.size
        column = 0
        row += 1
    return lane0, lane1


def digest_lanes(bits: Bits, spread: IndexMap, first: int) -> tuple[int, int]:
    """The two sums over consecutive elements of a box, compiled. See `digest.digest_flat`.

    `bits` is 1-d, contiguous, aligned and not empty.
    """
    frozen = bits.view()
    frozen.flags.writeable = False
    kernel = compiled(_digest, _signature(bits.dtype.name))
    lane0, lane1 = kernel(frozen, first, spread.start, *spread.arrays())
    return int(lane0), int(lane1)


def _update(
    positions: np.ndarray[tuple[int], np.dtype[np.uint64]],
    before: np.ndarray[tuple[int], np.dtype[np.unsignedinteger]],
    after: np.ndarray[tuple[int], np.dtype[np.unsignedinteger]],
) -> tuple[np.uint64, np.uint64]:
    lane0 = np.uint64(0)
    lane1 = np.uint64(0)
    for i in range(positions.size):
        place = (positions[i] + ONE) * STEP
        x = place + np.uint64(after[i])
        x ^= x >> HALF
        x *= M
        x ^= x >> HALF
        y = place + np.uint64(before[i])
        y ^= y >> HALF
        y *= M
        y ^= y >> HALF
        u = x * N0
        v = y * N0
        lane0 += (u ^ (u >> HALF)) - (v ^ (v >> HALF))
        u = x * N1
        v = y * N1
        lane1 += (u ^ (u >> HALF)) - (v ^ (v >> HALF))
    return lane0, lane1


def update_lanes(
    positions: np.ndarray[tuple[int], np.dtype[np.uint64]], before: Bits, after: Bits
) -> tuple[int, int]:
    """What the two sums gain when elements at these positions of the tensor change, mod 2^64.

    All are 1-d, contiguous, aligned and of one length.
    """
    frozen = [array.view() for array in (positions, before, after)]
    for array in frozen:
        array.flags.writeable = False
    lane0, lane1 = compiled(_update, _update_signature(before.dtype.name))(*frozen)
    return int(lane0), int(lane1)


def loaded(width: str) -> bool:
    """Whether the digest kernel of that integer type ("uint16") is compiled already."""
    return is_compiled(_digest, _signature(width))


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    for width in _WIDTHS:
        compiled(_digest, _signature(width))
        compiled(_update, _update_signature(width))


def _signature(width: str) -> str:
    array = f"Array({width}, 1, 'C', readonly=True)"
    return f"UniTuple(uint64, 2)({array}, int64, int64, int64[::1], int64[::1])"


def _update_signature(width: str) -> str:
    values = f"Array({width}, 1, 'C', readonly=True)"
    return f"UniTuple(uint64, 2)(Array(uint64, 1, 'C', readonly=True), {values}, {values})"
