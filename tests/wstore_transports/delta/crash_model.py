"""The weights of a trainer whose every step anybody can compute anew, from the number of the step alone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tests.wstore_transports.delta.models import BF16
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Shard

if TYPE_CHECKING:
    from tests.wstore_transports.delta.models import Weights
    from wstore_codecs.tensors import HostArray

ROWS = 600
"""Of the tensor that the ranks share out; the others are held by all of them."""


@cache
def _start() -> Weights:
    rng = np.random.default_rng(7)
    return {
        "embed": rng.standard_normal((ROWS, 300)).astype(BF16),
        "layer": rng.standard_normal((150, 200)).astype(np.float32),
        "norm": rng.standard_normal(7).astype(np.float32),
        "steps": np.zeros((), np.int64),
    }


def weights_of(step: int) -> Weights:
    """All tensors at a step, in new memory: about 2 % differ from the first, others at each step."""
    rng = np.random.default_rng(step)
    weights = {name: array.copy() for name, array in _start().items()}
    for name in ("embed", "layer"):
        bits = weights[name].view(f"u{weights[name].dtype.itemsize}").reshape(-1)
        hit = rng.integers(0, bits.size, bits.size // 50)
        bits[hit] ^= bits.dtype.type(1 + step % 5)
    weights["steps"][...] = step
    return weights


@cache
def digest_of(step: int) -> str:
    """The model digest of a step."""
    return weights_digest(weights_of(step))


def part_of(step: int, rank: int, ranks: int) -> dict[str, HostArray | Shard]:
    """What a rank holds at a step: its rows of "embed", and the rest."""
    weights = weights_of(step)
    if ranks == 1:
        return dict(weights)
    first, stop = ROWS * rank // ranks, ROWS * (rank + 1) // ranks
    rows = np.ascontiguousarray(weights["embed"][first:stop])
    return {**weights, "embed": Shard(rows, weights["embed"].shape, (first, 0))}


def differences(state: Weights, step: int) -> list[str]:
    """The tensors of a state that are not, bit for bit, those of a step."""
    wanted = weights_of(step)
    if state.keys() != wanted.keys():
        return sorted(state.keys() ^ wanted.keys())
    return [name for name in wanted if state[name].tobytes() != wanted[name].tobytes()]
