"""The additive digest: its formula, its additivity, what it detects, and that every engine agrees."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
import xxhash

from wstore.errors import InvalidArgument
from wstore_codecs import digest as digests
from wstore_codecs.digest import (
    TensorDigest,
    combine,
    digest_block,
    digest_each,
    digest_update,
    model_digest,
)
from wstore_codecs.digest_plan import index_map
from wstore_codecs.digest_reference import reference_lanes
from wstore_codecs.kernels import digest as kernels
from wstore_codecs.torch_kernels import digest as torch_kernels

if TYPE_CHECKING:
    from wstore_codecs.tensors import Bits

WORD = (1 << 64) - 1
WIDTHS = ("<u1", "<u2", "<u4", "<u8")
SHAPE, ORIGIN, EXTENT = (9, 10, 11), (2, 3, 4), (5, 7, 6)


def oracle(bits: Bits, shape: tuple[int, ...], origin: tuple[int, ...]) -> TensorDigest:
    """The formula of the docstring, in Python's own integers."""
    lane0 = lane1 = 0
    for at in np.ndindex(*bits.shape):
        index = 0
        for position, start, length in zip(at, origin, shape, strict=True):
            index = index * length + start + position
        x = ((index + 1) * 0x9E3779B97F4A7C15 + int(bits[at])) & WORD
        x ^= x >> 32
        x = x * 0xD6E8FEB86659FD93 & WORD
        x ^= x >> 32
        u = x * 0xD6E8FEB86659FD93 & WORD
        w = x * 0xFF51AFD7ED558CCD & WORD
        lane0 += u ^ (u >> 32)
        lane1 += w ^ (w >> 32)
    return TensorDigest((lane0 & WORD, lane1 & WORD))


def random_bits(width: str, shape: tuple[int, ...], seed: int = 7) -> Bits:
    dtype = np.dtype(width)
    data = np.random.default_rng(seed).bytes(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape).copy()


def test_golden_values() -> None:
    """The format: these never change."""
    assert digest_block(np.zeros((0, 3))).hex == "0" * 32
    assert digest_block(np.array(3, np.float32)).hex == GOLDEN["scalar"]
    assert digest_block(np.arange(1000, dtype="<u2")).hex == GOLDEN["arange"]
    assert model_digest([("w", "U16", (2,), TensorDigest((1, 2)))]) == GOLDEN["model"]


GOLDEN = {
    "scalar": "56fb3fc07962d3e14d9a14494dee4bb6",
    "arange": "272c788992925af2da44945deb0e443e",
    "model": "7a3ab9ca85a712b7169ddf1c1d1f2708",
}


@pytest.mark.parametrize("width", WIDTHS)
def test_every_engine_computes_the_formula(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = random_bits(width, EXTENT)
    want = oracle(bits, SHAPE, ORIGIN)
    spread = index_map(EXTENT, SHAPE, ORIGIN, tensor="t")
    flat = bits.reshape(-1)
    assert reference_lanes(flat, spread.merged(), 0) == want.lanes
    assert kernels.digest_lanes(flat, spread.merged(), 0) == want.lanes
    tensor = torch.from_numpy(bits.view(width.replace("u", "i")))
    assert torch_kernels.torch_lanes(tensor, spread) == want.lanes
    for slice_elements in (1, 5, 13, 100):
        monkeypatch.setattr(torch_kernels, "SLICE", slice_elements)
        assert torch_kernels.torch_lanes(tensor, spread) == want.lanes
    assert digest_block(bits, SHAPE, ORIGIN) == want


@pytest.mark.parametrize("width", WIDTHS)
def test_memory_order_does_not_matter(width: str) -> None:
    bits = random_bits(width, EXTENT)
    want = oracle(bits, SHAPE, ORIGIN)
    unaligned = np.frombuffer(b"x" + bits.tobytes(), np.uint8)[1:].view(width).reshape(EXTENT)
    for same in (
        np.asfortranarray(bits),
        bits[::-1].copy()[::-1],
        np.ascontiguousarray(bits[:, ::-1, ::-1])[:, ::-1, ::-1],
        np.repeat(bits, 2, axis=2)[:, :, ::2],
        np.repeat(bits, 2, axis=0)[::2],
        bits.transpose(1, 2, 0).copy().transpose(2, 0, 1),
        unaligned,
    ):
        np.testing.assert_array_equal(same, bits)
        assert digest_block(same, SHAPE, ORIGIN) == want


def test_threads_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = random_bits("<u2", (50, 70))
    want = oracle(bits, (60, 90), (3, 20))
    monkeypatch.setattr(digests, "CHUNK_ELEMENTS", 333)
    assert digest_block(bits, (60, 90), (3, 20), threads=3) == want
    monkeypatch.setattr(digests, "COMPILED_FROM", 0)
    assert digest_block(bits, (60, 90), (3, 20), threads=3) == want
    spread = index_map(bits.shape, (60, 90), (3, 20), tensor="t")
    flat = bits.reshape(-1)
    parts = (
        digests.digest_flat(flat[at : at + 111], spread, first=at) for at in range(0, 3500, 111)
    )
    assert combine(parts) == want


@pytest.mark.parametrize("seed", range(20))
def test_additive_over_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 4)))
    bits = random_bits(rng.choice(WIDTHS), shape, seed)
    cuts = [sorted({0, n, *(rng.randint(0, n) for _ in range(2))}) for n in shape]
    total = TensorDigest()
    for which in np.ndindex(*(len(c) - 1 for c in cuts)):
        low = tuple(c[i] for c, i in zip(cuts, which, strict=True))
        high = tuple(c[i + 1] for c, i in zip(cuts, which, strict=True))
        box = bits[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
        total += digest_block(box, shape, low)
    assert total == digest_block(bits)
    assert total - digest_block(bits) == TensorDigest()


@pytest.mark.parametrize("width", ["uint8", "uint16", "uint32", "uint64"])
def test_many_tensors_at_once_have_the_digests_of_each(width: str) -> None:
    rng = np.random.default_rng(5)
    arrays = [
        rng.integers(0, 1 << 8 * np.dtype(width).itemsize, n, dtype=width) for n in (1, 7, 1, 300)
    ]
    each = digest_each(np.concatenate(arrays), [array.size for array in arrays])
    assert each == [digest_block(array) for array in arrays]
    assert digest_each(np.empty(0, width), []) == []


def test_positions_beyond_32_bits() -> None:
    """A shard far into a tensor of 2^41 elements: position arithmetic keeps all its bits."""
    shape, origin = (1 << 20, 1 << 21), ((1 << 20) - 2, (1 << 21) - 3)
    bits = random_bits("<u2", (2, 3))
    want = oracle(bits, shape, origin)
    spread = index_map((2, 3), shape, origin, tensor="t")
    assert digest_block(bits, shape, origin) == want
    assert kernels.digest_lanes(bits.reshape(-1), spread.merged(), 0) == want.lanes
    assert torch_kernels.torch_lanes(torch.from_numpy(bits.view("<i2")), spread) == want.lanes


@pytest.mark.parametrize("width", WIDTHS)
def test_update_follows_changes(width: str) -> None:
    old = random_bits(width, (40, 25))
    new = old.copy()
    where = np.random.default_rng(3).permutation(1000)[:37]
    new.reshape(-1)[where] ^= 1
    before, after = old.reshape(-1)[where], new.reshape(-1)[where]
    assert digest_update(digest_block(old), where, before, after) == digest_block(new)
    assert digest_update(digest_block(old), where[:0], before[:0], after[:0]) == digest_block(old)
    with pytest.raises(InvalidArgument, match="belong together"):
        digest_update(TensorDigest(), where, before, after[1:], name="w")
    with pytest.raises(InvalidArgument, match="integers"):
        digest_update(TensorDigest(), where.astype(float), before, after, name="w")


def test_sees_what_sums_and_xors_miss() -> None:
    bits = random_bits("<u2", (64,))
    whole = digest_block(bits)

    swapped = bits.copy()
    swapped[[3, 40]] = swapped[[40, 3]]
    blocks = bits.reshape(16, 4).copy()
    blocks[[2, 9]] = blocks[[9, 2]]
    flips = bits.copy()
    flips[[5, 13]] ^= 0x0100  # the same bit of two words: an XOR of words stays
    moved = bits.copy()
    moved[7] += 1
    moved[8] -= 1  # a sum stays
    shifted = np.roll(bits, 4)
    signs = np.zeros(64, np.float32)
    negative = signs.copy()
    negative[5] = -0.0
    for other in (swapped, blocks.reshape(-1), flips, moved, shifted):
        changed = digest_block(other)
        assert changed.lanes[0] != whole.lanes[0]
        assert changed.lanes[1] != whole.lanes[1]
    assert digest_block(signs) != digest_block(negative)
    assert digest_block(np.zeros(4, np.uint8)) != digest_block(np.zeros(5, np.uint8))


def test_lanes_avalanche() -> None:
    """Each bit of an element flips each bit of a lane about half the time."""
    rng = np.random.default_rng(5)
    count = 1000
    for flipped in (0, 7, 15):
        flips = np.zeros((2, 64))
        for index, value in enumerate(rng.integers(0, 1 << 16, count, dtype=np.uint16)):
            one = np.array([value], np.uint16)
            two = one ^ np.uint16(1 << flipped)
            place = ((1 << 20,), (index,))
            a, b = digest_block(one, *place).lanes, digest_block(two, *place).lanes
            for lane in (0, 1):
                word = a[lane] ^ b[lane]
                flips[lane] += [(word >> bit) & 1 for bit in range(64)]
        assert abs(flips / count - 0.5).max() < 0.09


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.float32, torch.int64]
)
def test_torch_and_numpy_arrays_agree(dtype: torch.dtype) -> None:
    tensor = (torch.randn(6, 10, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    raw = tensor.view(torch.uint8).numpy().reshape(6, -1)
    as_bits = raw.view(f"<u{tensor.element_size()}")
    want = oracle(as_bits, (6, 10), (0, 0))
    assert digest_block(tensor) == want
    assert digest_block(tensor.t().contiguous().t()) == want
    assert TensorDigest(torch_kernels.torch_lanes(tensor, index_map((6, 10), tensor="t"))) == want


def test_text_form() -> None:
    value = TensorDigest((0x0123456789ABCDEF, 7))
    assert value.hex == "0123456789abcdef0000000000000007"
    assert TensorDigest.from_hex(value.hex) == value
    for bad in ("", value.hex[:-1], value.hex.upper(), value.hex[:-1] + "g", "+" + value.hex[1:]):
        with pytest.raises(InvalidArgument, match="not a tensor digest"):
            TensorDigest.from_hex(bad)


def test_model_digest_is_the_documented_bytes() -> None:
    entries: list[tuple[str, str, tuple[int, ...], TensorDigest]] = [
        ("é", "BF16", (2, 3), TensorDigest((1, 2))),
        ("a", "F32", (), TensorDigest((3, WORD))),
    ]
    text = b"wstore model digest 1\n" + (2).to_bytes(8, "little")
    text += (1).to_bytes(4, "little") + b"a" + (3).to_bytes(4, "little") + b"F32"
    text += (0).to_bytes(4, "little") + (3).to_bytes(8, "little") + b"\xff" * 8
    text += (2).to_bytes(4, "little") + "é".encode() + (4).to_bytes(4, "little") + b"BF16"
    text += (2).to_bytes(4, "little") + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    text += (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert model_digest(entries) == xxhash.xxh3_128_hexdigest(text)
    assert model_digest(reversed(entries)) == model_digest(entries)
    with pytest.raises(InvalidArgument, match="twice"):
        model_digest([entries[0], entries[0]])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="leaves the shape"):
        digest_block(np.zeros((2, 3)), (4, 3), (3, 0), name="w")
    with pytest.raises(InvalidArgument, match="differ in rank"):
        digest_block(np.zeros((2, 3)), (6,), (0,), name="w")
    with pytest.raises(InvalidArgument, match="'w'"):
        digest_block(np.zeros(3, object), name="w")


_NO_CACHE = """
import numpy as np, sys
from wstore_codecs.digest import digest_block
from wstore_codecs.kernels import digest as kernels
assert "numba" not in sys.modules, "numba is imported on use"
a = np.arange(300_000, dtype=np.uint8)
one = digest_block(a)
assert kernels.loaded("uint8")
print(one.hex)
"""


@pytest.mark.long
def test_works_where_no_cache_can_be_written() -> None:
    """numba's cache directory cannot be made: compiled for the process alone."""
    environment: dict[str, Any] = {
        **os.environ,
        "NUMBA_CACHE_DIR": "/proc/self/no-such-place",
        "HOME": "/proc/self/no-such-place",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", _NO_CACHE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == digest_block(np.arange(300_000, dtype=np.uint8)).hex


def test_bf16_of_ml_dtypes_is_its_bits() -> None:
    bits = random_bits("<u2", (33,))
    assert digest_block(bits.view(ml_dtypes.bfloat16)) == digest_block(bits)
