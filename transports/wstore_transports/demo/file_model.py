"""A real safetensors file whose weights take steps as AdamW would make them, without a framework.

Nothing is learnt: gradients are noise from a fixed seed. What a step changes, and by how much, is as in
training: floating-point tensors move by about the learning rate, relative to their own scale in low
precision; integer tensors (and so quantised ones) stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs import dtypes
from wstore_transports.checkpoint import CheckpointReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.path import StoragePath
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint import Spec

LEARNING_RATE = 1e-5
BETAS = (0.9, 0.95)


class FileModel:
    """The trainer's side: fp32 masters and moments of every floating-point tensor."""

    def __init__(self, path: StoragePath, seed: int) -> None:
        self._weights = {name: np.asarray(a) for name, a in CheckpointReader(path).load().items()}
        self._random = np.random.default_rng(seed)
        self._steps = 0
        floats = {n: a for n, a in self._weights.items() if _is_float(a)}
        self._master = {name: array.astype(np.float32) for name, array in floats.items()}
        self._mean = {name: np.zeros_like(master) for name, master in self._master.items()}
        self._square = {name: np.zeros_like(master) for name, master in self._master.items()}

    def weights(self) -> Mapping[str, Array]:
        """The live weights by name."""
        return self._weights

    def train(self) -> None:
        """One AdamW step on made-up gradients."""
        self._steps += 1
        first, second = BETAS
        for name, master in self._master.items():
            gradient = self._random.standard_normal(master.shape, np.float32)
            mean, square = self._mean[name], self._square[name]
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient * gradient - square)
            scale = np.sqrt(square / (1 - second**self._steps)) + 1e-8
            master -= LEARNING_RATE / (1 - first**self._steps) * mean / scale
            np.copyto(self._weights[name], master, casting="unsafe")

    def loss(self) -> None:
        """There is no data to have a loss on."""


class ServedFile:
    """An engine's side: memory of the right shapes."""

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self._weights: dict[str, Array] = {}
        for name, spec in specs.items():
            if not spec.tied_to:
                self._weights[name] = np.zeros(spec.shape, dtypes.dtype(spec.dtype).numpy)
        for name, spec in specs.items():
            if spec.tied_to:
                self._weights[name] = self._weights[spec.tied_to]

    def weights(self) -> Mapping[str, Array]:
        """The live weights by name."""
        return self._weights

    def loss(self) -> None:
        """There is no data to have a loss on."""


def _is_float(array: np.ndarray) -> bool:
    """numpy calls the types of ml_dtypes "V" (void), so ask whether they have a fraction."""
    kind = dtypes.from_numpy(array.dtype, tensor="").name
    return kind.startswith(("F", "BF")) and kind != "F8_E8M0"
