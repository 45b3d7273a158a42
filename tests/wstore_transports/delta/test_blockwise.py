"""fp8 with a scale a block, against an oracle that shares no code with it, and between numpy and torch."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes
from wstore_codecs import tensors as arrays
from wstore_transports.checkpoint.pieces import Shard, collect
from wstore_transports.delta import fp8_host, fp8_torch
from wstore_transports.delta.blockwise import BlockwiseFp8, linear_weights

if TYPE_CHECKING:
    from wstore_codecs.tensors import Array, HostArray

F8 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (BF16, np.dtype("<f2"), np.dtype("<f4"))


def weights(rows: int, columns: int, dtype: np.dtype[Any] = BF16, seed: int = 1) -> HostArray:
    numbers = np.random.default_rng(seed).standard_normal((rows, columns)) * 0.02
    return numbers.astype(dtype)


def by_hand(matrix: HostArray, block: tuple[int, int]) -> tuple[HostArray, HostArray]:
    """One block at a time, with ml_dtypes' own rounding."""
    high, wide = block
    tops, lefts = (range(0, n, size) for n, size in zip(matrix.shape, block, strict=True))
    codes, scales = np.zeros(matrix.shape, F8), np.ones((len(tops), len(lefts)), np.float32)
    for i, top in enumerate(tops):
        for j, left in enumerate(lefts):
            here = (slice(top, top + high), slice(left, left + wide))
            part = matrix[here].astype(np.float32)
            if part.any():
                scales[i, j] = max(np.abs(part).max() / np.float32(448), np.float32(2.0**-126))
            codes[here] = np.clip(part / scales[i, j], -448, 448).astype(F8)
    return codes, scales


def dequantised(codes: HostArray, scales: HostArray, block: tuple[int, int]) -> HostArray:
    rows, columns = codes.shape
    spread = scales.astype(np.float64).repeat(block[0], axis=0).repeat(block[1], axis=1)
    numbers: HostArray = codes.astype(np.float64) * spread[:rows, :columns]
    return numbers


def as_torch(array: HostArray) -> torch.Tensor:
    info = arrays.describe(array, name="")
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(info.dtype.torch)


def bits(array: Array | Shard) -> HostArray:
    assert not isinstance(array, Shard)
    return arrays.bit_view(array, name="")


def pair(array: Array, block: tuple[int, int] = (128, 128)) -> tuple[Array, Array]:
    """What a tensor called "a.weight" becomes."""
    one, two = BlockwiseFp8(block=block)("a.weight", array)
    assert (one[0], two[0]) == ("a.weight", "a.weight_scale_inv")
    assert not isinstance(one[1], Shard)
    assert not isinstance(two[1], Shard)
    return one[1], two[1]


def same(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    return all(np.array_equal(bits(a), bits(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(256, 384), (130, 257), (1, 1), (128, 1), (576, 64)])
def test_numpy_and_torch_agree_with_the_oracle(
    shape: tuple[int, int], dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = weights(*shape, dtype)
    expected = by_hand(matrix, (128, 128))
    made = pair(matrix)
    assert [arrays.describe(one, name="").dtype.name for one in made] == ["F8_E4M3", "F32"]
    assert made[1].shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    assert same(made, expected)
    tensor = as_torch(matrix)
    on_host = pair(tensor)
    assert [type(one) for one in on_host] == [torch.Tensor, torch.Tensor]
    assert [one.dtype for one in on_host] == [torch.float8_e4m3fn, torch.float32]
    assert same(on_host, expected)
    for chunk in (fp8_torch.CHUNK, 1):  # all at once, and a row of blocks at a time
        monkeypatch.setattr(fp8_torch, "CHUNK", chunk)
        assert same(fp8_torch.quantise(tensor, (128, 128)), expected)


@given(st.data())
def test_any_small_matrix(data: st.DataObject) -> None:
    dtype = dtypes.from_numpy(data.draw(st.sampled_from(FLOATS)), tensor="")
    rows, columns, high, wide = (data.draw(st.integers(1, 7)) for _ in range(4))
    numbers = st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    drawn = data.draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    matrix = np.array(drawn, dtype.bits).view(dtype.numpy).reshape(rows, columns)
    with np.errstate(invalid="ignore"):
        matrix[~np.isfinite(matrix.astype(np.float32))] = 0
    block = (high, wide)
    codes, scales = pair(matrix, block)
    assert same((codes, scales), by_hand(matrix, block))
    assert same((codes, scales), fp8_torch.quantise(as_torch(matrix), block))
    assert same((codes, scales), pair(matrix, block))
    assert isinstance(codes, np.ndarray)
    assert isinstance(scales, np.ndarray)
    exact = matrix.astype(np.float64)
    # Half of the last of 4 bits; below fp8's normal numbers, half of a step of 2^-9.
    step = scales.astype(np.float64).repeat(high, axis=0).repeat(wide, axis=1)[:rows, :columns]
    bound = np.maximum(np.abs(exact) * 2.0**-4, step * 2.0**-10) * (1 + 2.0**-20)
    assert (np.abs(dequantised(codes, scales, block) - exact) <= bound).all()


def test_every_bf16_number_and_its_neighbours_round_as_torch_casts() -> None:
    exact = np.arange(1 << 16, dtype=np.uint16).view(BF16).astype(np.float32)
    exact = exact[np.abs(exact) <= 448]  # which leaves out NaN
    near = [np.nextafter(exact, np.float32(to)) for to in (-448, 448)]
    numbers = np.concatenate([exact, *near]).reshape(1, -1)
    codes, scales = pair(numbers, numbers.shape)
    assert scales.tolist() == [[1.0]]
    cast = torch.from_numpy(numbers).to(torch.float8_e4m3fn)
    assert np.array_equal(bits(codes), bits(cast))
    assert set(bits(codes).ravel()) == set(range(256)) - {0x7F, 0xFF}  # all but the two NaN


def test_blocks_of_zeros_and_of_tiny_numbers() -> None:
    matrix = np.zeros((4, 6), np.float32)
    matrix[0, 0] = -0.0
    matrix[:2, 2:4] = 1e-45  # the smallest number: 448 times less is 0
    matrix[:2, 4:] = 3e38
    codes, scales = pair(matrix, (2, 2))
    assert isinstance(codes, np.ndarray)
    assert scales.tolist() == [[1.0, 2.0**-126, np.float32(3e38) / np.float32(448)], [1.0] * 3]
    assert codes.view(np.uint8)[0].tolist() == [0x80, 0, 0, 0, 0x7E, 0x7E]
    assert same((codes, scales), fp8_torch.quantise(torch.from_numpy(matrix), (2, 2)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_no_finite_number_is_refused(dtype: np.dtype[Any], bad: float) -> None:
    matrix = weights(300, 260, dtype)
    matrix[299, 130] = bad
    for array in (matrix, as_torch(matrix)):
        with pytest.raises(
            InvalidArgument, match=r"'a.weight' has a NaN.* 1 of 9 blocks, .* row 256, column 128"
        ):
            pair(array)
    _, scales = fp8_torch.quantise(as_torch(matrix), (128, 128))
    assert torch.isnan(scales).nonzero().tolist() == [[2, 1]]


def test_a_double_beyond_float32_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="beyond float32"):
        pair(np.full((2, 2), 1e300))
    assert same(pair(np.full((2, 2), 0.5)), pair(np.full((2, 2), 0.5, np.float32)))


@pytest.mark.parametrize("shape", [(0, 300), (300, 0), (0, 0)])
def test_no_rows_or_no_columns(shape: tuple[int, int]) -> None:
    matrix = np.zeros(shape, np.float32)
    across = tuple(-(-length // 128) for length in shape)
    for made in (
        pair(matrix),
        pair(as_torch(matrix)),
        fp8_torch.quantise(as_torch(matrix), (128, 128)),
    ):
        assert (made[0].shape, made[1].shape) == (shape, across)


def test_memory_of_any_order_is_read_and_kept() -> None:
    matrix = weights(260, 150, np.dtype("<f4"))
    before = matrix.copy()
    expected = by_hand(matrix.T[::2], (128, 128))
    assert same(pair(matrix.T[::2]), expected)
    assert same(pair(torch.from_numpy(matrix).T[::2].requires_grad_()), expected)
    assert np.array_equal(matrix, before)


def test_applied_twice_nothing_changes() -> None:
    transform = BlockwiseFp8()
    once = [
        *transform("a.weight", weights(130, 130)),
        *transform("a.bias", np.ones(130, np.float32)),
    ]
    twice = [pair for name, array in once for pair in transform(name, array)]
    assert [name for name, _ in once] == ["a.weight", "a.weight_scale_inv", "a.bias"]
    assert [name for name, _ in twice] == [name for name, _ in once]
    assert all(a is b for (_, a), (_, b) in zip(once, twice, strict=True))


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", True),
        ("model.layers.3.mlp.experts.7.down_proj.weight", True),
        ("bert.encoder.layer.0.attention.output.dense.weight", True),
        ("model.layers.3.mlp.gate.weight", False),
        ("model.layers.3.mlp.shared_expert_gate.weight", False),
        ("model.layers.0.input_layernorm.weight", False),
        ("model.embed_tokens.weight", False),
        ("transformer.wte.weight", False),
        ("bert.embeddings.word_embeddings.weight", False),
        ("lm_head.weight", False),
        ("output.weight", False),
        ("model.layers.0.self_attn.q_proj.bias", False),
        ("model.layers.3.mlp.experts.down_proj", False),
    ],
)
def test_the_usual_choice(name: str, chosen: bool) -> None:
    assert linear_weights(name, (256, 256), dtypes.dtype("BF16")) is chosen
    assert not linear_weights(name, (256,), dtypes.dtype("BF16"))
    assert not linear_weights(name, (256, 256), dtypes.dtype("F8_E4M3"))


def test_a_choice_of_ones_own() -> None:
    seen = []

    def only(name: str, shape: tuple[int, ...], dtype: dtypes.DType) -> bool:
        seen.append((name, shape, dtype.name))
        return name != "kept.weight"

    transform = BlockwiseFp8(only=only)
    matrix = weights(4, 4)
    ((_, kept),) = transform("kept.weight", matrix)
    assert kept is matrix
    assert [name for name, _ in transform("experts.down", matrix)] == [
        "experts.down",
        "experts.down_scale_inv",
    ]
    list(transform("part.weight", Shard(matrix, (132, 4), (128, 0))))
    with pytest.raises(InvalidArgument, match=r"'b': BF16 \(2, 2, 2\) is no matrix"):
        list(transform("b", np.zeros((2, 2, 2), BF16)))
    with pytest.raises(InvalidArgument, match="I32"):
        list(transform("c", np.zeros((2, 2), np.int32)))
    with pytest.raises(InvalidArgument, match="no element"):
        BlockwiseFp8(block=(0, 128))
    assert ("kept.weight", (4, 4), "BF16") in seen
    assert ("part.weight", (132, 4), "BF16") in seen  # the whole tensor's shape


@pytest.mark.parametrize("cuts", [(0, 128, 300), (0, 256, 256, 300), (0, 300, 300), (0, 300)])
def test_shards_together_are_what_the_whole_becomes(cuts: tuple[int, ...]) -> None:
    matrix = weights(300, 200)
    whole = pair(matrix)
    parts: list[list[HostArray]] = [[], []]
    for start, stop in pairwise(cuts):
        made = list(BlockwiseFp8()("a.weight", Shard(matrix[start:stop], (300, 200), (start, 0))))
        collect(made)  # a publisher takes them
        shapes = ((300, 200), (3, 2))
        for into, (_, shard), shape, size in zip(parts, made, shapes, (1, 128), strict=True):
            assert isinstance(shard, Shard)
            assert (shard.global_shape, shard.origin) == (shape, (-(-start // size), 0))
            into.append(bits(shard.array))
    for into, expected in zip(parts, whole, strict=True):
        assert np.array_equal(np.concatenate(into), bits(expected))


def test_columns_may_be_cut_too() -> None:
    matrix = as_torch(weights(128, 300))
    whole = pair(matrix)
    made = dict(BlockwiseFp8()("a.weight", Shard(matrix[:, 256:], (128, 300), (0, 256))))
    codes, scales = made["a.weight"], made["a.weight_scale_inv"]
    assert isinstance(codes, Shard)
    assert isinstance(scales, Shard)
    assert (scales.global_shape, scales.origin) == ((1, 3), (0, 2))
    assert np.array_equal(bits(codes.array), bits(whole[0])[:, 256:])
    assert np.array_equal(bits(scales.array), bits(whole[1])[:, 2:])


@pytest.mark.parametrize(("start", "stop", "said"), [(0, 100, 100), (64, 256, 64), (299, 300, 299)])
def test_a_shard_that_cuts_a_block_is_refused(start: int, stop: int, said: int) -> None:
    shard = Shard(weights(stop - start, 200), (300, 200), (start, 0))
    with pytest.raises(
        InvalidArgument, match=rf"'a.weight'.* ends at {said} of dimension 0.* multiples of 128"
    ):
        list(BlockwiseFp8()("a.weight", shard))


@pytest.mark.long  # importing transformers alone takes many seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_reads_the_pair() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    matrix = as_torch(weights(384, 256))
    codes, scales = pair(matrix)
    (read,) = Fp8Dequantize(None).convert({"weight": codes, "weight_scale_inv": scales}).values()
    assert torch.allclose(read.float(), matrix.float(), rtol=2.0**-4, atol=1e-6)


def test_the_host_never_makes_a_scale_of_zero() -> None:
    _, scales = fp8_host.quantise(np.full((3, 3), 1e-40, np.float32), (2, 2))
    assert (scales == np.float32(2.0**-126)).all()
