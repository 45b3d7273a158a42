"""The model that `delta.py` publishes: the tensors of Qwen3-0.6B, and steps as AdamW makes them.

Nothing is learnt. The fp32 masters begin as normal numbers of the usual spread and move by Adam-like
updates of a fixed seed; what is published is their rounding to bf16, so a step changes the elements whose
master crosses from one bf16 number to the next: about 2 % of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_codecs.tensors import Array, Bits

    Floats = np.ndarray[tuple[int], np.dtype[np.float32]]

SPREAD = 0.02
"""Standard deviation of a matrix's elements."""

UPDATE = 5.5e-7
"""Standard deviation of an update: it changes 2.0 % of the elements of bf16 matrices of that spread."""

POOL = 1 << 22  # normal numbers that updates are taken from, at a new place each time
CHUNK = 1 << 15  # larger temporary arrays are mapped anew each time


@dataclass(frozen=True, slots=True)
class Size:
    """How large the model is.

    Attributes:
        layers: of Qwen3-0.6B's 28.
        vocabulary: of Qwen3-0.6B's 151,936.
    """

    layers: int
    vocabulary: int

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The stored tensors, in the order of the model's file."""
        yield "model.embed_tokens.weight", (self.vocabulary, 1024)
        for layer in range(self.layers):
            for name, shape in LAYER.items():
                yield f"model.layers.{layer}.{name}.weight", shape
        yield "model.norm.weight", (1024,)


LAYER = {
    "input_layernorm": (1024,),
    "mlp.down_proj": (1024, 3072),
    "mlp.gate_proj": (3072, 1024),
    "mlp.up_proj": (3072, 1024),
    "post_attention_layernorm": (1024,),
    "self_attn.k_norm": (128,),
    "self_attn.k_proj": (1024, 1024),
    "self_attn.o_proj": (1024, 2048),
    "self_attn.q_norm": (128,),
    "self_attn.q_proj": (2048, 1024),
    "self_attn.v_proj": (1024, 1024),
}
TIED = ("lm_head.weight", "model.embed_tokens.weight")
WHOLE = Size(layers=28, vocabulary=151_936)
QUICK = Size(layers=3, vocabulary=18_992)
NOTHING = Size(layers=0, vocabulary=1)
TINY = Size(layers=1, vocabulary=1024)


class Model:
    """A trainer's side: masters, and the live bf16 weights.

    Args:
        seed: of the first weights and of all updates.
    """

    def __init__(self, size: Size, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._pool = self._random.standard_normal(2 * POOL, np.float32)
        self._masters: dict[str, Floats] = {}
        self._live: dict[str, Bits] = {}
        self.weights: dict[str, Array] = {}
        for name, shape in size.shapes():
            master = np.ones(prod(shape), np.float32) if len(shape) == 1 else self._normal(shape)
            self._masters[name] = master
            self._live[name] = np.empty(master.shape, np.uint16)
            self._round(name)
            self.weights[name] = self._live[name].view(ml_dtypes.bfloat16).reshape(shape)
        self.weights[TIED[0]] = self.weights[TIED[1]]

    @property
    def nbytes(self) -> int:
        """Bytes of the live weights, tied ones once."""
        return sum(bits.nbytes for bits in self._live.values())

    def step(self) -> None:
        """One update of all weights."""
        for name, master in self._masters.items():
            for at in range(0, master.size, CHUNK):
                part = master[at : at + CHUNK]
                part += np.float32(UPDATE) * self._noise(part.size)
            self._round(name)

    def bits(self) -> Bits:
        """A copy of all live weights as one array."""
        return np.concatenate(list(self._live.values()))

    def _noise(self, count: int) -> Floats:
        start = int(self._random.integers(POOL))
        noise: Floats = self._pool[start : start + count]
        return noise

    def _normal(self, shape: tuple[int, ...]) -> Floats:
        values = np.empty(prod(shape), np.float32)
        for at in range(0, values.size, CHUNK):
            part = values[at : at + CHUNK]
            np.multiply(self._noise(part.size), np.float32(SPREAD), out=part)
        return values

    def _round(self, name: str) -> None:
        """Round to the nearest, ties to even, in integers: many times as fast as a cast."""
        bits, live = self._masters[name].view(np.uint32), self._live[name]
        for at in range(0, live.size, CHUNK):
            part = bits[at : at + CHUNK]
            live[at : at + CHUNK] = (part + 0x7FFF + ((part >> 16) & 1)) >> 16
