"""How small a step can be: the entropy of its changes, measured on the step itself.

With p the changed fraction, H2 the entropy of yes or no, V what changes add to the number of a value
in the order of all values, and c the exponent of the old value, in bits an element:

    each alike        H2(p) + p * H(V)
    by exponent       sum over c of f_c * (H2(p_c) + p_c * H(V | c))

The second uses what the receiver holds already, so it is the bound of codecs that do. Both describe
models in which elements are independent; nothing better is known for weights.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from wstore_codecs.tensors import Bits

    Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]

CHUNK = 1 << 20
NEAR = 255
SPAN = 2 * NEAR + 1
EXPONENTS = 256


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of one step, in bytes for the whole of it.

    Attributes:
        changed: elements that differ.
        alike: every element treated alike.
        by_exponent: elements told apart by the exponent of the old value.
    """

    changed: int
    alike: float
    by_exponent: float


def bound(base: Bits, new: Bits) -> Bound:
    """The bounds for two arrays of bf16 bits of one size."""
    total = np.zeros(EXPONENTS, np.int64)
    near = np.zeros(EXPONENTS * SPAN, np.int64)
    far: Counter[tuple[int, int]] = Counter()  # steps across zero are rare and may be large
    for at in range(0, base.size, CHUNK):
        old, young = base[at : at + CHUNK], new[at : at + CHUNK]
        total += np.bincount(_exponents(old), minlength=EXPONENTS)
        places = np.flatnonzero(old != young)
        exponents = _exponents(old[places])
        steps = ordinals(young[places]) - ordinals(old[places])
        small = np.abs(steps) <= NEAR
        near += np.bincount(exponents[small] * SPAN + steps[small] + NEAR, minlength=near.size)
        far.update(zip(exponents[~small].tolist(), steps[~small].tolist(), strict=True))
    return _bound(total, near.reshape(EXPONENTS, SPAN), far)


def _bound(total: Counts, near: Counts, far: Counter[tuple[int, int]]) -> Bound:
    changed, far_steps = near.sum(1), Counter[int]()
    for (exponent, step), count in far.items():
        changed[exponent] += count
        far_steps[step] += count
    every = changed.sum()
    steps = _plain(every) - _plain(near.sum(0)) - _plain([*far_steps.values()])
    steps_by_exponent = _plain(changed) - _plain(near) - _plain([*far.values()])
    return Bound(
        changed=int(every),
        alike=(_position_bits(total.sum(), every) + steps) / 8,
        by_exponent=(_position_bits(total, changed) + steps_by_exponent) / 8,
    )


def ordinals(bits: Bits) -> Numbers:
    """The place of each bf16 value in the order of all values: neighbours differ by one."""
    wide = bits.astype(np.int32)
    return np.where(wide & 0x8000, wide ^ 0xFFFF, wide | 0x8000)


def _exponents(bits: Bits) -> Numbers:
    return (bits.astype(np.int32) >> 7) & (EXPONENTS - 1)


def _position_bits(total: Counts, changed: Counts) -> float:
    """Bits that say which `changed` of `total` elements changed, over all classes."""
    return _plain(total) - _plain(changed) - _plain(total - changed)


def _plain(counts: Counts | list[int]) -> float:
    """Sum of n * log2(n): entropies are differences of these."""
    some = np.asarray(counts, np.float64)
    some = some[some > 0]
    return float((some * np.log2(some)).sum())
