"""Changes of a block: what finds them, applies them, undoes them, and what they add to a digest."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wstore_codecs.deltas import DENSITIES, WIDTHS, pair
from wstore.errors import IntegrityError
from wstore_codecs import dtypes
from wstore_codecs.changes import (
    Changes,
    Rule,
    find,
    from_ordinals,
    ordinals,
    patch_digest,
    rule_of,
)
from wstore_codecs.digest import digest_flat, digest_update
from wstore_codecs.digest_plan import index_map
from wstore_codecs.kernels import sparse

if TYPE_CHECKING:
    from pathlib import Path

    from wstore_codecs.tensors import Bits

SIZES = (1, 63, 64, 65, 4097, 12_345)


def check(old: Bits, new: Bits, rule: Rule) -> Changes:
    """The changes, held against numpy and against what they promise."""
    changes = find(old, new, rule)
    where = np.flatnonzero(old != new)
    np.testing.assert_array_equal(changes.positions(), where)
    assert (changes.gaps.dtype, changes.values.dtype) == (np.dtype(np.uint32), old.dtype)
    assert changes.values.all()
    if rule is Rule.XOR:
        expected = old[where] ^ new[where]
    elif rule is Rule.DIFFERENCE:
        expected = new[where] - old[where]
    else:
        expected = ordinals(new[where]) - ordinals(old[where])
    np.testing.assert_array_equal(changes.values, expected)
    np.testing.assert_array_equal(rule.step(old[where], changes.values), new[where])
    np.testing.assert_array_equal(rule.back(new[where], changes.values), old[where])
    block = old.copy()
    changes.apply(block)
    np.testing.assert_array_equal(block, new)
    changes.undo(block)
    np.testing.assert_array_equal(block, old)
    again = Changes.at(rule, old.size, changes.positions(), changes.values)
    np.testing.assert_array_equal(again.gaps, changes.gaps)
    return changes


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("width", WIDTHS)
def test_changes_are_what_differs(width: str, rule: Rule) -> None:
    for size in SIZES:
        for density in DENSITIES:
            check(*pair(width, size, density, seed=size), rule)


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_ENABLE_AVX": "0"}], ids=lambda one: str(*one)
)
def test_the_same_on_a_processor_that_packs_no_vectors(
    tmp_path: Path, chosen: dict[str, str]
) -> None:
    """The code for any x86 in place of that for this machine."""
    environment = {
        **os.environ,
        **chosen,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    tests = f"{__file__}::{test_changes_are_what_differs.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert list(tmp_path.rglob("sparse._find*.nbi"))  # compiled for it, not taken from elsewhere


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=200))
def test_any_bits_survive(pairs: list[tuple[int, int]]) -> None:
    old, new = (np.array(side, np.uint16) for side in zip(*pairs, strict=True))
    for rule in Rule:
        check(old, new, rule)


def test_more_changes_than_expected_at_first() -> None:
    """Sparse at the front, then dense: the search starts over in larger arrays."""
    old = np.zeros(200_000, np.uint16)
    new = old.copy()
    new[100_000::2] = 3
    new[7] = 1
    assert check(old, new, Rule.ORDINAL).count == 50_001


def test_readonly_inputs_and_no_change() -> None:
    old, _ = pair("<u2", 1000, 0.0)
    same = old.copy()
    old.flags.writeable = same.flags.writeable = False
    changes = find(old, same, Rule.XOR)
    assert (changes.count, changes.size) == (0, 1000)


def test_ordinals_follow_the_order_of_floats() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(np.sort(ordinals(every)), every)
    np.testing.assert_array_equal(from_ordinals(ordinals(every)), every)
    values = every.view(np.float16).astype(np.float64)
    finite = np.isfinite(values)
    ranked = values[finite][np.argsort(ordinals(every)[finite])]
    assert (np.diff(ranked) >= 0).all()
    zeros = np.array([0x8000, 0x0000], np.uint16)
    assert np.diff(ordinals(zeros).astype(int)).tolist() == [1]


def test_rules_of_dtypes() -> None:
    floats = {name for name, one in dtypes.DTYPES.items() if rule_of(one) is Rule.ORDINAL}
    assert floats == {
        *("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16", "BF16", "F32", "F64")
    }
    assert rule_of(dtypes.DTYPES["F8_E8M0"]) is Rule.DIFFERENCE


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_digest_follows_in_the_number_of_changes(width: str, rule: Rule) -> None:
    shape, origin, extent = (9, 10, 50), (2, 3, 4), (5, 7, 41)
    spread = index_map(extent, shape, origin, tensor="t")
    old, new = pair(width, 5 * 7 * 41, 0.1)
    changes = find(old, new, rule)
    assert digest_flat(old, spread) + patch_digest(old, changes, spread) == digest_flat(new, spread)


def test_an_update_of_many_positions_is_the_digest_of_the_whole() -> None:
    old, new = pair("<u2", 50_000, 0.5)
    where = np.flatnonzero(old != new)[::-1]
    spread = index_map((50_000,), tensor="t")
    updated = digest_update(digest_flat(old, spread), where, old[where], new[where])
    assert updated == digest_flat(new, spread)


@pytest.mark.parametrize(
    ("gaps", "values", "size"),
    [([5, 5], [1, 1], 11), ([0], [0], 9), ([2**32 - 1], [1], 9), ([2**32 - 1] * 9, [1] * 9, 9)],
)
def test_changes_that_do_not_fit_touch_nothing(
    gaps: list[int], values: list[int], size: int
) -> None:
    changes = Changes(Rule.XOR, size, np.array(gaps, np.uint32), np.array(values, np.uint16))
    block = np.zeros(size, np.uint16)
    for act in (changes.check, lambda: changes.apply(block), lambda: changes.undo(block)):
        with pytest.raises(IntegrityError):
            act()
    assert not block.any()


def test_a_block_of_another_size_or_width_is_refused() -> None:
    old, new = pair("<u2", 100, 0.2)
    changes = find(old, new, Rule.XOR)
    for other in (np.zeros(99, np.uint16), np.zeros(101, np.uint16), np.zeros(100, np.uint8)):
        with pytest.raises(IntegrityError):
            changes.apply(other)


def test_reach_counts_in_64_bits() -> None:
    gaps = np.full(3, 2**32 - 1, np.uint32)
    assert sparse.reach(gaps, np.array([1, 0, 2], np.uint8)) == (3 * 2**32, 1)
