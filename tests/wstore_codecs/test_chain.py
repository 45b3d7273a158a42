"""Replaying and folding several versions equals applying one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wstore_codecs.frames import DELTAS, changed, same, weights
from wstore.errors import IntegrityError, InvalidArgument, UnsupportedOperation
from wstore_codecs import dtypes
from wstore_codecs.chain import fold, link, merge, replay
from wstore_codecs.changes import Rule, find
from wstore_codecs.frame import Frame, decode, encode

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

BF16 = dtypes.dtype("BF16")


def _versions(
    codecs: list[str], shape: tuple[int, ...] = (40, 50), density: float = 0.05
) -> tuple[list[HostArray], list[Frame]]:
    states = [weights(BF16, shape)]
    frames = []
    for at, codec in enumerate(codecs):
        states.append(changed(states[-1], BF16, density, seed=at))
        frames.append(encode(states[-1], states[-2], codec=codec, name="w"))
    return states, frames


@given(st.lists(st.sampled_from([*DELTAS, "planes", "raw", "auto"]), min_size=1, max_size=6))
def test_replay_is_one_after_the_other(codecs: list[str]) -> None:
    states, frames = _versions(codecs)
    assert same(replay(frames, states[0]), states[-1])


def test_a_frame_without_base_starts_anew() -> None:
    states, frames = _versions(["ulp", "planes", "context", "xor"])
    assert same(replay(frames), states[-1])
    assert link(frames).frames == tuple(frames[1:])
    assert same(replay(frames[1:2]), states[2])


def test_a_missing_version_shows_before_anything_is_decoded() -> None:
    states, frames = _versions(["ulp", "ulp", "ulp"])
    for wrong in ([frames[0], frames[2]], [frames[1], frames[0]], [frames[0], frames[0]]):
        with pytest.raises(IntegrityError, match="a version is missing"):
            replay(wrong, states[0])
    other = encode(states[2], states[1], codec="ulp", name="v")
    with pytest.raises(IntegrityError, match="is followed by a frame of tensor 'v'"):
        replay([frames[0], other], states[0])
    with pytest.raises(IntegrityError, match="not the block"):
        replay(frames, states[1])
    with pytest.raises(InvalidArgument, match="needs its base"):
        replay(frames)
    with pytest.raises(InvalidArgument, match="needs a frame"):
        replay([])


def test_unchanged_versions_cost_nothing() -> None:
    base = weights(BF16, (500,))
    still = encode(base, base, codec="ulp", name="w")
    new = changed(base, BF16, 0.1)
    step_on = encode(new, base, codec="ulp", name="w")
    assert link([still, still, step_on]).frames == (step_on,)
    assert link([still, still]).frames == (still,)
    assert same(replay([still, step_on], base), new)


@pytest.mark.parametrize("codec", ["ulp", "ulp:zstd", "xor", "xor:pcodec"])
def test_folding_is_one_after_the_other(codec: str) -> None:
    states, frames = _versions([codec] * 5)
    folded = fold(frames)
    assert same(np.asarray(decode(folded.tobytes(), states[0])), states[-1])
    assert folded.nbytes < sum(frame.nbytes for frame in frames)
    assert (folded.header.base, folded.header.result) == (
        frames[0].header.base,
        frames[-1].header.result,
    )
    assert folded.header.codec == frames[-1].header.codec


def test_changes_that_cancel_vanish() -> None:
    a = weights(BF16, (3000,))
    b = changed(a, BF16, 0.1)
    there, back = encode(b, a, codec="ulp", name="w"), encode(a, b, codec="ulp", name="w")
    folded = fold([there, back])
    assert same(np.asarray(decode(folded, a)), a)
    assert folded.unchanged
    assert folded.nbytes < 200


def test_what_does_not_fold() -> None:
    _, mixed = _versions(["ulp", "xor"])
    with pytest.raises(UnsupportedOperation, match="do not fold with each other"):
        fold(mixed)
    _, conditioned = _versions(["ulp", "context"])
    with pytest.raises(UnsupportedOperation, match="does not fold"):
        fold(conditioned)
    _, dense = _versions(["planes", "ulp"])
    with pytest.raises(UnsupportedOperation, match="without a base does not fold"):
        fold(dense)
    assert fold(dense[:1]) is dense[0]


@given(st.integers(0, 3), st.sampled_from(Rule), st.integers(0, 1 << 32))
def test_plain_arithmetic_and_kernels_agree(power: int, rule: Rule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = np.dtype(f"u{1 << power}")
    old, new = (np.frombuffer(rng.bytes(kind.itemsize * 200), kind) for _ in range(2))
    new = np.where(rng.random(200) < 0.5, old, new)
    changes = find(old, new, rule)
    where = changes.positions()
    assert np.array_equal(where, np.flatnonzero(old != new))
    assert np.array_equal(rule.step(old[where], changes.values), new[where])
    assert np.array_equal(rule.back(new[where], changes.values), old[where])
    third = np.where(rng.random(200) < 0.5, new, old)
    both = merge([changes, find(new, third, rule)])
    moved = old.copy()
    both.apply(moved)
    assert np.array_equal(moved, third)
    both.undo(moved)
    assert np.array_equal(moved, old)
    assert (both.values != 0).all()
