"""Frames: every dtype and codec round trips; whatever does not belong together is refused unwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.wstore_codecs.frames import (
    ALL_CODECS,
    DELTAS,
    DTYPES,
    changed,
    mostly_long,
    same,
    weights,
)
from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import dtypes, frame_header
from wstore_codecs.block import MAX_BLOCK_ELEMENTS, Block
from wstore_codecs.cutting import Member, Unit, plan
from wstore_codecs.digest import digest_block
from wstore_codecs.frame import Frame, decode, decode_unit, encode, encode_unit
from wstore_codecs.proof import Proof

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

BF16 = dtypes.dtype("BF16")


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("codec", mostly_long(ALL_CODECS, ["auto:max"]))
def test_every_dtype_with_every_codec(codec: str, name: str) -> None:
    dtype = dtypes.dtype(name)
    for shape, density in (((3, 700), 0.05), ((2100,), 0.9), ((7,), 0.5), ((), 1.0), ((0, 4), 0.0)):
        base = weights(dtype, shape)
        new = changed(base, dtype, density)
        frame = encode(new, base, codec=codec, name="w")
        again = decode(frame.tobytes(), base)
        assert same(again, new), (codec, name, shape)
        assert frame.header.dtype is dtype
        assert frame.header.body_size <= new.nbytes


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_encoding_is_deterministic(codec: str) -> None:
    base = weights(BF16, (200, 300))
    new = changed(base, BF16, 0.03)
    assert encode(new, base, codec=codec).tobytes() == encode(new, base, codec=codec).tobytes()


@given(
    st.binary(max_size=600).map(lambda data: data[: len(data) // 2 * 2]),
    st.binary(max_size=600),
    st.sampled_from(ALL_CODECS),
    st.sampled_from(["BF16", "F8_E4M3", "I8", "U8", "F16"]),
)
def test_any_bits(new: bytes, mask: bytes, codec: str, name: str) -> None:
    dtype = dtypes.dtype(name)
    a = np.frombuffer(new, np.uint8)
    b = a ^ np.resize(np.frombuffer(mask or b"\0", np.uint8), a.size)
    one, two = a.view(dtype.numpy), b.view(dtype.numpy)
    assert same(decode(encode(two, one, codec=codec), one), two)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_strided_torch_and_reversed_arrays(codec: str) -> None:
    base = weights(BF16, (40, 50))
    new = changed(base, BF16, 0.1)
    flipped = np.asfortranarray(new)[::-1]
    as_torch = torch.from_numpy(new.view(np.int16)).view(torch.bfloat16)
    assert same(decode(encode(flipped, base, codec=codec), base), np.ascontiguousarray(flipped))
    assert encode(as_torch, base, codec=codec).tobytes() == encode(new, base, codec=codec).tobytes()
    out = torch.zeros(50, 40, dtype=torch.bfloat16).T
    assert decode(encode(new, base, codec=codec), base, out) is out
    assert torch.equal(out.view(torch.int16), as_torch.view(torch.int16))


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_special_values_survive(codec: str) -> None:
    bits = np.array(
        [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFC1, 0x0001, 0x8001] * 40, np.uint16
    )
    base, new = bits.view(BF16.numpy), np.roll(bits, 1).view(BF16.numpy)
    assert same(decode(encode(new, base, codec=codec), base), new)
    zero, minus = np.zeros(9, BF16.numpy), -np.zeros(9, BF16.numpy)
    assert same(decode(encode(minus, zero, codec=codec), zero), minus)


@pytest.mark.parametrize("codec", DELTAS)
def test_a_wrong_base_is_refused_before_anything_is_written(codec: str) -> None:
    base = weights(BF16, (5000,))
    new = changed(base, BF16, 0.02)
    frame = encode(new, base, codec=codec, name="layers.0.w")
    other = base.copy()
    other.view(np.uint16)[17] ^= 1
    out = np.full(5000, 3, BF16.numpy)
    before = out.copy()
    for wrong in (other, new, np.zeros_like(base)):
        with pytest.raises(IntegrityError, match=r"'layers\.0\.w': this is not the block"):
            decode(frame, wrong, out)
        assert same(out, before)
    with pytest.raises(InvalidArgument, match="needs its base"):
        decode(frame)


@pytest.mark.parametrize("codec", DELTAS)
def test_a_delta_cannot_be_encoded_without_base(codec: str) -> None:
    with pytest.raises(InvalidArgument, match="needs a base"):
        encode(weights(BF16, (10,)), codec=codec)


def test_arrays_that_do_not_belong_together() -> None:
    base = weights(BF16, (10, 2))
    frame = encode(changed(base, BF16, 0.5), base, codec="ulp")
    with pytest.raises(InvalidArgument, match="where the block is BF16"):
        encode(weights(BF16, (2, 10)), base)
    with pytest.raises(InvalidArgument, match="F16"):
        encode(weights(dtypes.dtype("F16"), (10, 2)), base)
    with pytest.raises(InvalidArgument, match="where the block is"):
        decode(frame, base.reshape(20))
    with pytest.raises(InvalidArgument, match="where the block is"):
        decode(frame, base, np.empty((10, 3), BF16.numpy))
    frozen = np.empty((10, 2), BF16.numpy)
    frozen.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        decode(frame, base, frozen)
    with pytest.raises(InvalidArgument, match="overlaps"):
        decode(frame, base, base)
    with pytest.raises(InvalidArgument, match="cannot be written in place"):
        decode(encode(np.zeros((), np.float32)), None, cast("HostArray", np.float32(2)))
    with pytest.raises(InvalidArgument, match="cut it"):
        encode(np.zeros(MAX_BLOCK_ELEMENTS + 1, np.uint8))


def test_an_unknown_codec_lists_the_known_ones() -> None:
    with pytest.raises(
        InvalidArgument, match=r"no codec 'lzma' .* auto, context, planes, raw, ulp"
    ):
        encode(np.zeros(3, np.float32), codec="lzma")
    frame = encode(np.zeros(3, np.float32), codec="raw").tobytes()
    renamed = _resealed(frame.replace(b"raw", b"rat", 1))
    with pytest.raises(InvalidArgument, match="no codec 'rat' is installed"):
        decode(renamed)


def _resealed(frame: bytes) -> bytes:
    size = frame_header.header_size(memoryview(frame))
    return frame_header.seal(frame[: size - 8]) + frame[size:]


def test_a_newer_format() -> None:
    frame = bytearray(encode(np.zeros(3, np.float32)).tobytes())
    frame[4] = 2
    with pytest.raises(NewerFormat, match="format 2"):
        decode(bytes(frame))


@pytest.mark.parametrize("codec", mostly_long(ALL_CODECS, ["xor", "context"]))
def test_every_truncation_and_every_flipped_bit(codec: str) -> None:
    base = weights(BF16, (64,))
    frame = encode(changed(base, BF16, 0.2), base, codec=codec, name="w").tobytes()
    for end in range(len(frame)):
        with pytest.raises(IntegrityError):
            decode(frame[:end], base)
    with pytest.raises(IntegrityError):
        decode(frame + b"\0", base)
    for at in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << bit
            with pytest.raises((IntegrityError, NewerFormat)):
                decode(bytes(damaged), base)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_what_does_not_shrink_grows_by_the_header_alone(codec: str) -> None:
    rng = np.random.default_rng(3)
    base, new = (rng.integers(0, 256, 1 << 16, np.uint8) for _ in range(2))
    frame = encode(new, base, codec=codec)
    assert frame.nbytes <= new.nbytes + 200
    assert same(decode(frame, base), new)


def test_an_unchanged_block_costs_next_to_nothing() -> None:
    base = weights(BF16, (100_000,))
    for codec in (*DELTAS, "auto", "auto:max"):
        frame = encode(base.copy(), base, codec=codec)
        assert frame.unchanged
        assert frame.nbytes < 200
        assert same(decode(frame, base), base)


def test_proofs_that_are_known_are_not_computed_again() -> None:
    base = weights(BF16, (30, 20))
    new = changed(base, BF16, 0.1)
    whole, origin = (70, 40), (20, 10)
    place = {"shape": whole, "origin": origin}
    first = encode(base, digests=True, name="w", shape=whole, origin=origin)
    proof = first.header.result
    assert proof.digest == digest_block(base, whole, origin)
    frame = encode(new, base, codec="ulp", base_proof=proof, name="w", shape=whole, origin=origin)
    assert frame.header.base == proof
    assert frame.header.result.digest == digest_block(new, whole, origin)
    full = encode(new, base, codec="ulp", digests=True, name="w", shape=whole, origin=origin)
    assert frame.tobytes() == full.tobytes()
    assert place["shape"] == frame.header.unit.members[0].shape
    wrong = Proof(bytes(16), proof.digest)
    lie = encode(new, base, codec="ulp", base_proof=wrong, name="w", shape=whole, origin=origin)
    with pytest.raises(IntegrityError):
        decode(lie, base)


def test_a_block_far_inside_a_huge_tensor() -> None:
    shape, origin = (1 << 33, 3), ((1 << 32) + 5, 0)
    base = weights(BF16, (1000, 3))
    new = changed(base, BF16, 0.1)
    frame = Frame.parse(
        encode(new, base, name="w", shape=shape, origin=origin, digests=True).tobytes()
    )
    assert frame.header.unit.members[0] == Member(Block("w", origin, (1000, 3)), shape)
    assert frame.header.result.digest == digest_block(new, shape, origin)
    assert same(decode(frame, base), new)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_groups(codec: str) -> None:
    shapes = [(), (3, 5), (0,), (70,), (1, 1, 2)]
    members = [(BF16, Member.whole(f"layer.{at}.norm", s)) for at, s in enumerate(shapes)]
    (unit,) = plan(members)
    base = [weights(BF16, shape, seed) for seed, shape in enumerate(shapes)]
    new = [changed(array, BF16, 0.3, seed) for seed, array in enumerate(base)]
    frame = Frame.parse(encode_unit(unit, new, base, codec=codec).tobytes())
    assert frame.header.unit == unit
    assert all(map(same, decode_unit(frame, base), new))
    with pytest.raises(InvalidArgument, match="decode_unit"):
        decode(frame, base[0])
    with pytest.raises(InvalidArgument, match="4 arrays for 5 members"):
        encode_unit(unit, new[:4])


def test_a_group_of_many_names_stays_small() -> None:
    members = [(BF16, Member.whole(f"model.layers.{at}.norm.weight", (4,))) for at in range(10_000)]
    (unit,) = plan(members)
    arrays = [np.full(4, 1, BF16.numpy)] * 10_000
    names = sum(len(member.block.tensor) for _, member in members)
    frame = encode_unit(unit, arrays)
    assert frame.nbytes < names / 3
    assert Frame.parse(frame.tobytes()).header.unit == unit


def test_limits_of_the_header() -> None:
    with pytest.raises(InvalidArgument, match="a name of 5000 bytes"):
        encode(np.zeros(3), name="x" * 5000)
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        encode(np.zeros(3), name="\ud800")
    with pytest.raises(InvalidArgument, match="3 bytes instead of 16"):
        Proof(b"abc")
    with pytest.raises(InvalidArgument, match="33 dimensions"):
        encode(np.zeros((1,) * 33))
    with pytest.raises(InvalidArgument, match="2 members cannot be in one block"):
        Unit(BF16, (Member.whole("a", (1,)), Member.whole("b", (1,))), grouped=False)
    with pytest.raises(InvalidArgument, match="0 members cannot be in one group"):
        Unit(BF16, (), grouped=True)
