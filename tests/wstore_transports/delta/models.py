"""A small model with every odd tensor, and steps of a trainer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F8 = np.dtype(ml_dtypes.float8_e4m3fn)

Weights = dict[str, Any]
"""numpy arrays by name; what readers return is typed as numpy or torch."""


def model(seed: int = 0) -> Weights:
    """Blocks, groups, odd shapes, odd names, tied names; about 1 MB."""
    rng = np.random.default_rng(seed)
    weights: Weights = {
        "embed": rng.standard_normal((1000, 300)).astype(BF16),
        "layer.0/ü w": rng.standard_normal((70, 33)).astype(BF16),
        "norm": rng.standard_normal(7).astype(np.float32),
        "scale": np.array(1.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "steps": np.array(3, np.int64),
        "mask": rng.random(9) < 0.5,
        "f8": rng.standard_normal((5, 9)).astype(np.float32).astype(F8),
        "strided": np.asarray(rng.standard_normal((40, 60)).astype(BF16).T),
        "i8": rng.integers(-100, 100, (3, 4, 5)).astype(np.int8),
    }
    weights["head"] = weights["embed"]
    return weights


def train(weights: Weights, seed: int, share: float = 0.02) -> None:
    """One step: about a share of the elements of each tensor moves by one unit in the last place."""
    rng = np.random.default_rng(seed)
    for name, array in weights.items():
        if name == "head" or not array.size:
            continue
        if array.dtype == bool:
            array[...] = ~array
            continue
        bits = (
            array.view(f"u{array.dtype.itemsize}")
            if array.ndim
            else array.reshape(1).view(f"u{array.dtype.itemsize}")
        )
        hit = rng.random(bits.shape) < share
        bits[hit] ^= bits.dtype.type(1)


def copies(weights: Weights) -> Weights:
    """The same values elsewhere; tied names stay tied."""
    found = {name: np.array(array) for name, array in weights.items() if name != "head"}
    return {**found, "head": found["embed"]}


def equal(one: Weights, other: Weights) -> bool:
    """Bit for bit, under the same names."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )
