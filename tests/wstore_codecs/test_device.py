"""Blocks on a device: the paths that a GPU takes, walked on tensors that only count as being on one."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.wstore_codecs.frames import changed, weights
from wstore.errors import IntegrityError
from wstore_codecs import dtypes, tensors
from wstore_codecs.apply import apply, apply_to_copies
from wstore_codecs.block import Block
from wstore_codecs.chain import link
from wstore_codecs.cutting import Member, Unit
from wstore_codecs.frame import encode, encode_unit
from wstore_codecs.targets import Held

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

BF16 = dtypes.dtype("BF16")


def _torch(array: HostArray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.detach().view(torch.int16), other.detach().view(torch.int16))


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every torch tensor counts as outside host memory."""
    monkeypatch.setattr(
        tensors, "on_device", lambda array: array if isinstance(array, torch.Tensor) else None
    )


def test_frames_of_a_trainer_are_one_chain_whatever_each_step_was() -> None:
    """A whole frame, a delta that the device makes, one that changes everything, a delta again."""
    arrays = [weights(BF16, (300, 300)), weights(BF16, (300, 300), 7)]
    steps = [arrays[0], changed(arrays[0], BF16, 0.02), arrays[1], changed(arrays[1], BF16, 0.02)]
    states = [_torch(step) for step in steps]
    frames = [encode(states[0], name="w")]
    frames += [encode(new, old, name="w") for old, new in pairwise(states)]
    assert [frame.header.codec for frame in frames] == ["planes", "ulp:pcodec"] * 2
    assert link(frames).frames == tuple(frames[2:])
    state = {"w": states[0].clone()}
    apply(frames[1:], state)
    assert _same(state["w"], states[-1])


@pytest.mark.parametrize("codec", ["ulp", "xor", "context", "planes"])
def test_any_kind_of_tensor(codec: str) -> None:
    base = weights(BF16, (300, 300))
    old, new = _torch(base), _torch(changed(base, BF16, 0.05))
    frame = encode(new, old, codec=codec, name="w")
    with torch.inference_mode():
        frozen = old.clone()
    for tensor in (old.clone(), torch.nn.Parameter(old.clone()), old.T.contiguous().T, frozen):
        state = {"w": tensor}
        (copy,) = apply_to_copies([frame], state).values()
        assert _same(tensor, old)
        apply([frame], state)
        assert _same(tensor, new)
        assert isinstance(copy, torch.Tensor)
        assert _same(copy, new)
        if codec != "planes":
            with pytest.raises(IntegrityError, match="Nothing was written"):
                apply([frame], state)


def test_a_group_of_one_shard() -> None:
    """Its digest is that of the packed elements, not of their places in the tensor."""
    base = weights(BF16, (100,))
    new = changed(base, BF16, 0.1)
    unit = Unit(BF16, (Member(Block("w", (20,), (100,)), (300,)),), grouped=True)
    frame = encode_unit(unit, [new], [base], codec="ulp", digests=True)
    tensor = _torch(base)
    apply([frame], {"w": Held(tensor, (300,), (20,))})
    assert _same(tensor, _torch(new))


def test_no_memory_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    base = weights(BF16, (300, 300))
    frame = encode(changed(base, BF16, 0.05), base, codec="ulp", name="w", digests=True)

    def short(*_: object) -> None:
        raise torch.OutOfMemoryError

    tensor = _torch(base)
    monkeypatch.setattr("wstore_codecs.torch_kernels.sparse.patch", short)
    with pytest.raises(torch.OutOfMemoryError):
        apply([frame], {"w": tensor})
    assert _same(tensor, _torch(base))


def test_a_base_that_its_proof_does_not_prove() -> None:
    """A delta that promises the digest of what it makes of the true base would be believed."""
    true = weights(BF16, (300, 300))
    other = true.copy()
    other.view(np.uint16)[0, 0] ^= 1
    new = other.copy()
    new.view(np.uint16)[5:9, 7] ^= 3
    proof = encode(_torch(true), name="w").header.result
    with pytest.raises(IntegrityError, match="not the block that base_proof proves"):
        encode(_torch(new), _torch(other), codec="ulp", name="w", base_proof=proof)
    frame = encode(_torch(new), _torch(other), codec="ulp", name="w")
    known = encode(_torch(other), name="w").header.result
    again = encode(_torch(new), _torch(other), codec="ulp", name="w", base_proof=known)
    assert again.tobytes() == frame.tobytes()
