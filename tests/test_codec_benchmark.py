"""What the codecs are held against: the entropy bounds, the other ways to ship a step, the steps."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import codec_data
from benchmarks.codec_bounds import bound, ordinals
from benchmarks.codec_peers import DenseXor, GapXor, IndexValue, WStore

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from benchmarks.codec_peers import Peer
    from wstore_codecs.tensors import Bits


def step(size: int, rate: float = 3e-5) -> tuple[Bits, Bits]:
    source = np.random.default_rng(3)
    master = source.normal(0, 0.02, size).astype(np.float32)
    moved = master + source.normal(0, rate, size).astype(np.float32)
    return codec_data.rounded(master), codec_data.rounded(moved)


def entropy(values: Iterable[Hashable]) -> float:
    """Bits of all the values, at the odds that they show themselves."""
    counts = Counter(values)
    total = sum(counts.values())
    return sum(n * math.log2(total / n) for n in counts.values())


def test_bounds_are_the_entropies_of_what_changed_and_by_how_much() -> None:
    base, new = step(20_000)
    new[7] ^= 0x8000  # a step across zero, larger than all others
    steps = (ordinals(new) - ordinals(base)).tolist()
    exponents = (base >> 7 & 0xFF).tolist()
    alike = entropy(bool(s) for s in steps) + entropy(s for s in steps if s)
    by_exponent = 0.0
    for exponent in set(exponents):
        own = [s for s, e in zip(steps, exponents, strict=True) if e == exponent]
        by_exponent += entropy(bool(s) for s in own) + entropy(s for s in own if s)

    found = bound(base, new)

    assert found.changed == sum(bool(s) for s in steps)
    assert found.alike == pytest.approx(alike / 8)
    assert found.by_exponent == pytest.approx(by_exponent / 8)
    assert found.by_exponent < found.alike


def test_ordinals_of_neighbours_differ_by_one() -> None:
    values = np.array([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0], np.float32)
    order = ordinals(codec_data.rounded(values))
    assert np.diff(order).tolist() == [128, 0x3F80, 1, 0x3F80, 128]


@pytest.mark.parametrize("peer", [DenseXor(), GapXor(), IndexValue(), WStore("weights", "auto")])
def test_every_way_gives_the_new_weights_back(peer: Peer) -> None:
    base, new = step(3 << 19)
    new[1 << 17 : 5 << 17] = base[1 << 17 : 5 << 17]  # a gap that 16 bits do not hold, twice over
    state = base.copy()
    peer.apply(peer.encode(new, base), state)
    assert np.array_equal(state, new)


def test_steps_change_more_the_faster_they_learn_and_are_the_same_for_one_seed() -> None:
    master = np.random.default_rng(5).normal(0, 0.02, 50_000).astype(np.float32)
    steps = dict(codec_data.adam_steps(master, seed=1))
    again = dict(codec_data.adam_steps(master, seed=1))
    changed = [step.changed for step in steps.values()]
    assert list(steps) == list(codec_data.RATES)
    assert changed == sorted(changed)
    assert 0 < changed[0] < changed[-1] < master.size
    assert all(np.array_equal(steps[key].new, again[key].new) for key in steps)
