"""Changes and byte planes in torch: by their definitions, and bit for bit as the compiled kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import torch_tensors
from wstore_codecs.changes import Changes, Rule, find
from wstore_codecs.digest import TensorDigest, digest_block
from wstore_codecs.digest_plan import index_map
from wstore_codecs.kernels import planes as compiled_planes
from wstore_codecs.kernels import sparse as compiled
from wstore_codecs.torch_kernels import planes, sparse

if TYPE_CHECKING:
    from wstore_codecs.tensors import Bits

WIDTHS = (1, 2, 4, 8)
EVERY = [(width, rule) for width in WIDTHS for rule in Rule]
BY_RULE = pytest.mark.parametrize(("width", "rule"), EVERY, ids=lambda v: getattr(v, "name", v))


def noise(width: int, count: int, seed: int) -> Bits:
    return np.frombuffer(np.random.default_rng(seed).bytes(width * count), f"<u{width}").copy()


def changed(old: Bits, share: float, seed: int = 5) -> Bits:
    """Some elements anew, and the special ones: +-0, the extremes, NaN payloads."""
    rng = np.random.default_rng(seed)
    new = np.where(rng.random(old.size) < share, noise(old.itemsize, old.size, seed), old)
    top = 1 << 8 * old.itemsize - 1
    special = np.array([0, top, top - 1, 2 * top - 1, 1, top + 1], old.dtype)
    count = min(old.size // 3, 60)
    where = rng.permutation(old.size)[:count]
    old[where], new[where] = rng.choice(special, count), rng.choice(special, count)
    return new


def tensor_of(bits: Bits) -> torch.Tensor:
    """A torch tensor over the same memory."""
    return torch.from_numpy(bits.view(f"<i{bits.itemsize}"))


def bits_of(tensor: torch.Tensor) -> Bits:
    return torch_tensors.integers(tensor).numpy().view(f"<u{tensor.element_size()}")


def oracle(old: Bits, new: Bits, rule: Rule) -> tuple[list[int], list[int]]:
    """Gaps and values by the definition, in Python's own integers."""
    bits = 8 * old.itemsize
    sign, mask = 1 << bits - 1, (1 << bits) - 1

    def ordinal(b: int) -> int:
        return ~b & mask if b & sign else b | sign

    gaps, values, last = [], [], -1
    for at, (a, b) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
        if a == b:
            continue
        gaps.append(at - last - 1)
        last = at
        if rule is Rule.XOR:
            values.append(a ^ b)
        elif rule is Rule.ORDINAL:
            values.append(ordinal(b) - ordinal(a) & mask)
        else:
            values.append(b - a & mask)
    return gaps, values


@BY_RULE
@pytest.mark.parametrize("step", [7, sparse.SLICE])
def test_changes_are_the_definition(
    width: int, rule: Rule, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "SLICE", step)
    for size, share in ((1, 1.0), (2, 0.5), (701, 0.05), (500, 0.0), (300, 1.0)):
        old = noise(width, size, size)
        new = changed(old, share)
        found = sparse.find(tensor_of(old), tensor_of(new), rule)
        gaps, values = oracle(old, new, rule)
        assert (found.rule, found.size) == (rule, size)
        assert (found.gaps.dtype, found.values.dtype) == (np.dtype(np.uint32), old.dtype)
        assert (found.gaps.tolist(), found.values.tolist()) == (gaps, values)
        assert found.values.all()

        block = tensor_of(old.copy())
        sparse.patch(block, found)
        np.testing.assert_array_equal(bits_of(block), new)
        sparse.unpatch(block, found)
        np.testing.assert_array_equal(bits_of(block), old)
        assert sparse.equal(tensor_of(old), tensor_of(new)) == (not gaps)
        assert sparse.equal(tensor_of(old), block)


@BY_RULE
@pytest.mark.parametrize("step", [7, sparse.SLICE])
def test_digest_follows_the_changes(
    width: int, rule: Rule, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "SLICE", step)
    place = ((9, 1 << 20, 1 << 21), (2, (1 << 20) - 7, (1 << 21) - 6))
    old = noise(width, 5 * 7 * 6, 1)
    new = changed(old, 0.2)
    found = sparse.find(tensor_of(old), tensor_of(new), rule)
    for extent in ((5, 7, 6), (1, 7, 6)):
        size = int(np.prod(extent))
        a, b = old[:size].reshape(extent), new[:size].reshape(extent)
        found = sparse.find(tensor_of(a), tensor_of(b), rule)
        gain = sparse.patch_lanes(tensor_of(a), found, index_map(extent, *place, tensor="t"))
        assert digest_block(a, *place) + TensorDigest(gain) == digest_block(b, *place)
    gain = sparse.patch_lanes(tensor_of(old), Changes(rule, 210, found.gaps[:0], found.values[:0]),
                              index_map((210,), tensor="t"))  # fmt: skip
    assert gain == (0, 0)


@BY_RULE
def test_compiled_kernels_agree(width: int, rule: Rule) -> None:
    old = noise(width, 30_011, 1)
    for share in (0.01, 0.6):
        new = changed(old, share)
        found, want = sparse.find(tensor_of(old), tensor_of(new), rule), find(old, new, rule)
        np.testing.assert_array_equal(found.gaps, want.gaps)
        np.testing.assert_array_equal(found.values, want.values)
        spread = index_map((old.size,), (1 << 41,), (1 << 40,), tensor="t")
        lanes = compiled.patch_lanes(old, want.gaps, want.values, rule.value, spread.merged())
        assert sparse.patch_lanes(tensor_of(old), found, spread) == lanes
        block = old.copy()
        found.apply(block)
        np.testing.assert_array_equal(block, new)
        sparse.unpatch(tensor_of(block), want)
        np.testing.assert_array_equal(block, old)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.float32, torch.int64]
)
def test_weights_of_any_dtype_in_their_shape(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    old = (torch.randn(12, 10, generator=generator) * 4).to(dtype)
    new = torch.where(torch.rand(12, 10, generator=generator) < 0.1, (-old.float()).to(dtype), old)
    target = torch.nn.Parameter(old.clone(), requires_grad=dtype.is_floating_point)
    found = sparse.find(target, new, Rule.DIFFERENCE)
    sparse.patch(target, found)
    assert torch.equal(target.detach().view(torch.uint8), new.view(torch.uint8))
    with pytest.raises(InvalidArgument, match="not contiguous"):
        sparse.patch(old.t(), found)
    with pytest.raises(InvalidArgument, match="not contiguous"):
        sparse.find(old.t(), new.t(), Rule.XOR)


def test_what_does_not_belong_together_is_refused() -> None:
    a = torch.zeros(6, dtype=torch.int16)
    for other in (torch.zeros(7, dtype=torch.int16), torch.zeros(6, dtype=torch.bfloat16)):
        with pytest.raises(InvalidArgument, match="belong together"):
            sparse.find(a, other, Rule.XOR)
        with pytest.raises(InvalidArgument, match="belong together"):
            sparse.equal(a, other)


@pytest.mark.parametrize(
    "kind", ["past the end", "overflow", "lengths", "width", "size", "gap type"]
)
def test_changes_that_do_not_fit_write_nothing(kind: str) -> None:
    gaps, values, size = np.array([0, 1, 2], "u4"), np.array([1, 2, 3], "<u2"), 6
    block = torch.arange(6, dtype=torch.int16)
    sparse.patch(block.clone(), Changes(Rule.XOR, size, gaps, values))
    if kind == "past the end":
        gaps[1] = 2
    elif kind == "overflow":
        gaps[:2] = 0xFFFFFFFF
    elif kind == "lengths":
        values = values[:2]
    elif kind == "width":
        values = values.astype("<u4")
    elif kind == "size":
        size = 7
    else:
        gaps = gaps.astype("i8")
    for rule in Rule:
        try:
            changes = Changes(rule, size, gaps, values)
        except IntegrityError:
            continue
        for call in (sparse.patch, sparse.unpatch):
            with pytest.raises(IntegrityError, match="do not fit"):
                call(block, changes)
        with pytest.raises(IntegrityError, match="do not fit"):
            sparse.patch_lanes(block, changes, index_map((6,), tensor="t"))
    assert block.tolist() == list(range(6))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("step", [100, planes.SLICE])
def test_planes_are_those_of_the_compiled_kernels(
    width: int, turned: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes, "SLICE", step)
    bits = noise(width, 1037, 2)
    split = planes.split(tensor_of(bits), turned=turned)
    want = compiled_planes.split(bits, turned=turned)
    assert [plane.numpy().tobytes() for plane in split] == [plane.tobytes() for plane in want]
    out = torch.zeros(1037, dtype=torch_tensors.INTEGERS[width])
    planes.merge(split, out, turned=turned)
    np.testing.assert_array_equal(bits_of(out), bits)
    assert split[0].numpy().tobytes() == want[0].tobytes()
    with pytest.raises(InvalidArgument, match="needed"):
        planes.merge(split[1:], out, turned=turned)
    with pytest.raises(InvalidArgument, match="needed"):
        planes.merge([plane[:-1] for plane in split], out, turned=turned)
