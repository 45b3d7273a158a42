"""Blocks and changes that the tests of the sparse codecs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from wstore_codecs.base import Encoded
    from wstore_codecs.tensors import Bits

WIDTHS = ("<u1", "<u2", "<u4", "<u8")
DENSITIES = (0.0, 0.003, 0.02, 0.2, 0.4, 0.8, 1.0)


def pair(width: str, size: int, density: float, seed: int = 0) -> tuple[Bits, Bits]:
    """Bits of any pattern, and a copy in which about that share of the elements differs: by little, some
    by everything. Special patterns of floats are at the front."""
    dtype = np.dtype(width)
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)
    sign = 1 << 8 * dtype.itemsize - 1
    special = np.array([0, sign, sign - 1, 2 * sign - 1, 1, sign + 1], np.uint64).astype(dtype)
    old[: special.size] = special[:size]
    hit = rng.random(size) < density
    new = old.copy()
    new[hit] += rng.integers(1, 9, int(hit.sum())).astype(dtype)
    wild = np.flatnonzero(hit)[::5]
    new[wild] = ~old[wild]
    return old, new


def body(encoded: Encoded) -> memoryview:
    """The body as one buffer."""
    return memoryview(b"".join(bytes(piece) for piece in encoded.pieces))
