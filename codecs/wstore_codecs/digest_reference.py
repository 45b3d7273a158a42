"""The additive digest in plain numpy: what the compiled kernels are held against, and what small
tensors use. `digest` states what is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import Bits

    Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
M = 0xD6E8FEB86659FD93
N0 = 0xD6E8FEB86659FD93
N1 = 0xFF51AFD7ED558CCD

_SLICE = 32 << 10  # elements a step: the temporaries stay in a core's cache


def scattered_lanes(bits: Bits, positions: Words) -> tuple[int, int]:
    """The two sums over elements at any positions of the tensor (both 1-d, of one length)."""
    lane0 = lane1 = 0
    for at in range(0, bits.size, _SLICE):
        u, w = _terms(bits[at : at + _SLICE], positions[at : at + _SLICE])
        lane0 += int(u.sum(dtype=np.uint64))
        lane1 += int(w.sum(dtype=np.uint64))
    return lane0 & MASK, lane1 & MASK


def reference_lanes(bits: Bits, spread: IndexMap, first: int) -> tuple[int, int]:
    """The two sums over consecutive elements of a box. See `digest.digest_flat`."""
    lane0 = lane1 = 0
    for at in range(0, bits.size, _SLICE):
        part = bits[at : at + _SLICE]
        rest = np.arange(first + at, first + at + part.size, dtype=np.int64)
        where = np.full(part.size, spread.start, np.int64)
        for extent, stride in zip(spread.extents[:0:-1], spread.strides[:0:-1], strict=True):
            rest, inside = np.divmod(rest, extent)
            where += inside * stride
        where += rest * spread.strides[0]
        a, b = scattered_lanes(part, where.view(np.uint64))
        lane0, lane1 = lane0 + a, lane1 + b
    return lane0 & MASK, lane1 & MASK


def lanes_of_each(bits: Bits, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The two sums of each of several whole tensors, of at least one element each, that lie one behind
    the other in `bits`: one pass for all of them."""
    lengths = np.array(sizes, np.int64)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(bits.size, dtype=np.int64) - np.repeat(starts, lengths)
    u, w = _terms(bits, positions.view(np.uint64))
    return zip(
        np.add.reduceat(u, starts).tolist(), np.add.reduceat(w, starts).tolist(), strict=True
    )


def _terms(bits: Bits, positions: Words) -> tuple[Words, Words]:
    """What each element adds to the two lanes."""
    x = (positions + np.uint64(1)) * np.uint64(STEP)
    x += bits
    _fold(x)
    x *= np.uint64(M)
    _fold(x)
    u, w = x * np.uint64(N0), x * np.uint64(N1)
    _fold(u)
    _fold(w)
    return u, w


def _fold(x: Words) -> None:
    x ^= x >> np.uint64(32)
