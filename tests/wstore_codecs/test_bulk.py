"""Whole states to frames and back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.wstore_codecs.frames import changed, same, weights
from wstore.errors import InvalidArgument
from wstore_codecs import bulk, cutting, dtypes
from wstore_codecs.apply import apply
from wstore_codecs.bulk import encode_state, plan_state
from wstore_codecs.frame import decode_unit
from wstore_codecs.targets import Held

BF16, F32 = dtypes.dtype("BF16"), dtypes.dtype("F32")


def _state() -> dict[str, np.ndarray]:
    return {
        "embed": weights(BF16, (700, 300)),
        "norm": weights(F32, (300,)),
        "bias": weights(BF16, (5,)),
        "none": weights(BF16, (0,)),
    }


def _next(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: changed(array, dtypes.from_numpy(array.dtype, tensor=name), 0.02)
        for name, array in state.items()
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_a_step_of_a_state(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "cut", lambda box, cuts: cutting.cut(box, 80_000, cuts=cuts))
    old = _state()
    new = _next(old)
    first = list(encode_state(old, threads=threads, digests=True))
    assert [frame.header.unit for frame in first] == plan_state(old)
    for frame in first:
        for member, array in zip(frame.header.unit.members, decode_unit(frame), strict=True):
            assert same(
                array, np.ascontiguousarray(old[member.block.tensor][member.block.slices()])
            )
    proofs = {frame.header.unit: frame.header.result for frame in first}
    frames = list(encode_state(new, old, threads=threads, proofs=proofs))
    one = [frame.tobytes() for frame in encode_state(new, old, digests=True)]
    assert [frame.tobytes() for frame in frames] == one
    assert len(frames) == 5
    apply(frames, old)
    assert all(same(old[name], new[name]) for name in new)


def test_cuts_of_engines() -> None:
    state = {"w": weights(BF16, (600, 400))}
    units = plan_state(state, cuts={"w": [[300], [200]]})
    assert [unit.members[0].block.origin for unit in units if not unit.grouped] == []
    assert {m.block.origin for unit in units for m in unit.members} == {
        (0, 0),
        (0, 200),
        (300, 0),
        (300, 200),
    }


def test_scales_of_quantised_weights_are_a_stream_of_their_own() -> None:
    """A step changes few fp8 elements and nearly all scales: together, neither would be coded well."""
    fp8 = dtypes.dtype("F8_E4M3")
    old = {"w": weights(fp8, (512, 512)), "w.scale_inv": weights(F32, (4, 4))}
    new = {"w": changed(old["w"], fp8, 0.002), "w.scale_inv": changed(old["w.scale_inv"], F32, 1)}
    frames = list(encode_state(new, old))
    assert [[m.block.tensor for m in f.header.unit.members] for f in frames] == [
        ["w"],
        ["w.scale_inv"],
    ]
    assert frames[0].nbytes < old["w"].nbytes / 50
    apply(frames, old)
    assert all(same(old[name], new[name]) for name in new)


def test_shards_of_a_trainer() -> None:
    whole = weights(BF16, (600, 300))
    new = changed(whole, BF16, 0.02)
    box = {"w": Held(whole[300:], (600, 300), (300, 0)), "elsewhere": None}
    frames = list(encode_state({"w": Held(new[300:], (600, 300), (300, 0))}, box))
    assert [frame.header.unit.members[0].block.origin for frame in frames] == [(300, 0)]
    full = {"w": whole.copy()}
    apply(frames, full)
    assert same(full["w"], np.concatenate([whole[:300], new[300:]]))


def test_a_base_that_lacks_something() -> None:
    state = {"w": weights(BF16, (600, 300))}
    with pytest.raises(InvalidArgument, match="tensor 'w' is missing"):
        list(encode_state(state, {}))
    with pytest.raises(InvalidArgument, match="not Block"):
        list(encode_state(state, {"w": Held(state["w"][:100], (600, 300), (0, 0))}))


def test_who_stops_taking_stops_the_work() -> None:
    state = {f"w{at}": weights(BF16, (300, 300)) for at in range(20)}
    frames = encode_state(state, threads=2)
    next(frames)
    frames.close()  # type: ignore[attr-defined]
