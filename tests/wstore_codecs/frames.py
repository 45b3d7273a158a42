"""Arrays and frames that the tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore_codecs import dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark.structures import ParameterSet

    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import HostArray

ALL_CODECS = (
    "raw",
    "zstd",
    "planes",
    "xor",
    "xor:pcodec",
    "ulp",
    "ulp:zstd",
    "context",
    "auto",
    "auto:max",
)
DELTAS = tuple(name for name in ALL_CODECS if name.startswith(("xor", "ulp", "context")))
DTYPES = tuple(dtypes.DTYPES)


def mostly_long(values: Sequence[str], quick: Sequence[str]) -> list[ParameterSet]:
    """Parameters of which only some are in the quick tier."""
    return [
        pytest.param(one, marks=() if one in quick else pytest.mark.long, id=one) for one in values
    ]


def weights(dtype: DType, shape: Sequence[int], seed: int = 0) -> HostArray:
    """Bits of any pattern: NaN payloads, denormals and signed zeros among them."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype.name == "BOOL":
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    if dtype.name in ("F16", "BF16", "F32", "F64"):
        values = (rng.standard_normal(count) * 0.02).astype(dtype.numpy)
        odd = rng.integers(0, 1 << 8 * dtype.itemsize, count, dtype=np.uint64).astype(dtype.bits)
        return (
            np.where(rng.random(count) < 0.05, odd, values.view(dtype.bits))
            .view(dtype.numpy)
            .reshape(shape)
        )
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype.numpy).reshape(shape)


def changed(base: HostArray, dtype: DType, density: float, seed: int = 1) -> HostArray:
    """A copy in which about that share of the elements took a small step, a few a wild one."""
    rng = np.random.default_rng(seed)
    bits = base.reshape(-1).view(dtype.bits).copy()
    hit = np.flatnonzero(rng.random(bits.size) < density)
    if dtype.name == "BOOL":
        bits[hit] ^= 1
    else:
        bits[hit] += rng.integers(1, 4, hit.size).astype(dtype.bits)
        wild = hit[:: max(1, hit.size // 3)]
        bits[wild] ^= dtype.bits.type(1 << (8 * dtype.itemsize - 1))
    return bits.view(dtype.numpy).reshape(base.shape)


def same(a: HostArray, b: HostArray) -> bool:
    """Whether two arrays hold the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
