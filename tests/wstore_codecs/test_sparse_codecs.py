"""`xor`, `ulp` and `context`: every dtype and density round trips, and no body does harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wstore_codecs.deltas import body, pair
from wstore.errors import IntegrityError, InvalidArgument, UnsupportedOperation
from wstore_codecs import dtypes, entropy, varint
from wstore_codecs.base import SparseCodec, codec
from wstore_codecs.context import Context, choose
from wstore_codecs.ulp import Ulp
from wstore_codecs.xor import Xor

if TYPE_CHECKING:
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

CODECS: tuple[SparseCodec, ...] = (
    Xor("zstd"),
    Xor("pcodec"),
    Ulp("pcodec"),
    Ulp("zstd"),
    Context(),
)
LONG = (CODECS[1], CODECS[3])
EACH = pytest.mark.parametrize(
    "one",
    [
        # One of each kind is in the quick tier, and between them both entropy coders.
        pytest.param(one, id=one.spec, marks=pytest.mark.long if one in LONG else ())
        for one in CODECS
    ],
)
BF16 = dtypes.DTYPES["BF16"]


def check(one: SparseCodec, old: Bits, new: Bits, dtype: DType) -> memoryview:
    encoded = one.encode(new, old, dtype)
    data = body(encoded)
    assert encoded.codec == one.spec
    assert encoded.changes is not None
    assert encoded.changes.count == one.count(data, new.size) == np.count_nonzero(old != new)
    if data.nbytes <= new.nbytes:
        out = np.empty_like(new)
        one.decode(data, old, out, dtype)
        np.testing.assert_array_equal(out, new)
        in_place = old.copy()
        one.decode(data, in_place, in_place, dtype)
        np.testing.assert_array_equal(in_place, new)
        listed = one.changes(data, old if one.needs_whole_base else None, new.size, dtype)
        np.testing.assert_array_equal(listed.gaps, encoded.changes.gaps)
        np.testing.assert_array_equal(listed.values, encoded.changes.values)
        assert listed.rule is one.rule(dtype)
    assert body(one.encode(new, old, dtype)) == data
    if not one.needs_whole_base:
        assert body(one.encode_changes(encoded.changes, dtype)) == data
    return data


@EACH
@pytest.mark.parametrize("dtype", dtypes.DTYPES.values(), ids=lambda one: one.name)
def test_every_dtype_round_trips(one: SparseCodec, dtype: DType) -> None:
    for size in (7, 3000):
        for density in (0.02, 0.4, 1.0):
            check(one, *pair(dtype.bits.str, size, density, seed=size), dtype)


@EACH
@given(data=st.data())
def test_any_bits_round_trip(one: SparseCodec, data: st.DataObject) -> None:
    dtype = dtypes.DTYPES[data.draw(st.sampled_from(["F8_E4M3", "BF16", "I32", "F64"]))]
    number = st.integers(0, (1 << 8 * dtype.itemsize) - 1)
    old = np.array(data.draw(st.lists(number, min_size=1, max_size=300)), dtype.bits)
    new = old.copy()
    for at in data.draw(st.lists(st.integers(0, old.size - 1), max_size=40)):
        new[at] = data.draw(number)
    check(one, old, new, dtype)


@EACH
def test_large_blocks_of_several_runs(one: SparseCodec) -> None:
    """More numbers than one pco chunk holds, gaps of several bytes, and a tail that fills no group."""
    rng = np.random.default_rng(3)
    old = (rng.standard_normal(1_000_001) * 0.02).astype(BF16.numpy).view(np.uint16)
    new = old.copy()
    new[100_000:] += (rng.random(900_001) < 0.32).astype(np.uint16) * np.uint16(2)
    new[3] ^= 0x8000
    check(one, old, new, BF16)
    sparse = old.copy()
    sparse[[0, 200, 20_000, 500_000, 1_000_000]] += np.uint16(1)
    assert check(one, old, sparse, BF16).nbytes < 200


@EACH
def test_no_change_is_one_byte(one: SparseCodec) -> None:
    old, _ = pair("<u2", 1000, 0.0)
    assert bytes(check(one, old, old.copy(), BF16)) == b"\0"


@EACH
def test_one_element(one: SparseCodec) -> None:
    for old, new in ((5, 5), (0, 0x8000), (0xFFFF, 0)):
        data = body(one.encode(np.array([new], np.uint16), np.array([old], np.uint16), BF16))
        out = np.array([old], np.uint16)
        if data.nbytes <= 2:
            one.decode(data, out, out, BF16)
            assert out[0] == new


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(0, min(len(changed), 40 if rng.random() < 0.6 else len(changed)))
        changed[at] = rng.integers(0, 256)
    kind = rng.random()
    if kind < 0.2:
        del changed[rng.integers(0, len(changed)) :]
    elif kind < 0.3:
        changed += bytes(int(rng.integers(1, 9)))
    return bytes(changed)


@EACH
@pytest.mark.parametrize("density", [0.003, 0.05, 0.4, 0.9])
def test_damaged_bodies_raise_or_are_changes_that_fit(one: SparseCodec, density: float) -> None:
    """Without the hashes of a frame, damage may go unnoticed; it never leads out of bounds, and the only
    error is IntegrityError."""
    rng = np.random.default_rng(5)
    old = (rng.standard_normal(3000) * 0.02).astype(BF16.numpy).view(np.uint16)
    new = old + (rng.random(3000) < density).astype(np.uint16)
    data = bytes(body(one.encode(new, old, BF16)))
    refused = 0
    for _ in range(120):
        guarded = np.zeros(3000 + 200, np.uint16)
        block = guarded[100:-100]
        block[:] = old
        try:
            one.decode(memoryview(mutated(data, rng)), block, block, BF16)
        except IntegrityError:
            refused += 1
            np.testing.assert_array_equal(block, old)
        assert not guarded[:100].any()
        assert not guarded[-100:].any()
    assert refused > 25


def stream(numbers: list[int]) -> bytes:
    return b"".join(bytes(piece) for piece in entropy.pack(np.array(numbers, np.uint32)))


def steps(numbers: list[int]) -> bytes:
    return b"".join(bytes(piece) for piece in entropy.pack(np.array(numbers, np.int16)))


HOSTILE_ULP = {
    "no body": b"",
    "more changes than elements": varint.pack(501) + b"\1" + stream([0] * 501) + steps([1] * 501),
    "a huge count": varint.pack(1 << 60) + b"\1",
    "an unknown mode": b"\1\4" + stream([3]) + steps([1]),
    "mode 0": b"\1\0" + stream([3]) + steps([1]),
    "a gap past the end": b"\1\1" + stream([500]) + steps([1]),
    "gaps past the end": b"\2\1" + stream([250, 250]) + steps([1, 1]),
    "gaps that wrap": b"\2\1" + stream([2**32 - 1, 2**32 - 1]) + steps([1, 1]),
    "a step of 0": b"\2\1" + stream([3, 4]) + steps([1, 0]),
    "too few gaps": b"\3\1" + stream([3, 9]) + steps([1, 5, 9]),
    "too many steps": b"\2\1" + stream([3, 4]) + steps([1, 5, 9]),
    "bytes after the end": b"\1\1" + stream([3]) + steps([1]) + b"\0",
    "bytes after no change": b"\0\0",
    "a count in long form": b"\x81\x00\1" + stream([3]) + steps([1]),
    "a bitmap of another count": b"\2\2" + b"\1" + bytes(62) + steps([1, 1]),
    "a bitmap that is too long": b"\1\2" + bytes(62) + b"\x80" + steps([1]),
    "a bitmap cut short": b"\1\2" + b"\1" + bytes(20),
    "a dense list of another count": b"\2\3" + steps([0] * 499 + [1]),
}


@pytest.mark.parametrize("name", HOSTILE_ULP)
def test_bodies_of_ulp_that_are_refused(name: str) -> None:
    block = np.zeros(500, np.uint16)
    with pytest.raises(IntegrityError):
        Ulp("pcodec").decode(memoryview(HOSTILE_ULP[name]), block, block, BF16)
    assert not block.any()


HOSTILE_CONTEXT = {
    "no classes": b"\1\0",
    "17 classes": b"\1\x11" + bytes(range(1, 17)) + b"\1" + bytes(16) + stream([3]) + steps([1]),
    "classes that do not ascend": b"\2\3\5\5\1\1\0" + stream([3]) + steps([1]) * 2,
    "a class from 0": b"\1\2\0\1\0" + stream([3]) + steps([1]),
    "classes of another count": b"\2\2\5\1\0" + stream([3]) + steps([1]),
    "a class of a huge count": b"\2\2\5" + varint.pack(1 << 62) + b"\0",
    "a gap that leaves the class": b"\1\1\1" + stream([500]) + steps([1]),
    "a class without elements": b"\1\2\5\0\1" + stream([0]) + steps([1]),
    "gaps that wrap": b"\2\1\2" + stream([2**32 - 1] * 2) + steps([1, 1]),
    "a step of 0": b"\1\1\1" + stream([3]) + steps([0]),
    "bytes after the end": b"\1\1\1" + stream([3]) + steps([1]) + b"\0",
}


@pytest.mark.parametrize("name", HOSTILE_CONTEXT)
def test_bodies_of_context_that_are_refused(name: str) -> None:
    block = np.zeros(500, np.uint16)
    with pytest.raises(IntegrityError):
        Context().decode(memoryview(HOSTILE_CONTEXT[name]), block, block, BF16)
    assert not block.any()


def test_a_body_larger_than_the_block_is_refused() -> None:
    block = np.zeros(3, np.uint16)
    for one in CODECS:
        with pytest.raises(IntegrityError, match="a body of 7 bytes"):
            one.decode(memoryview(b"\1" + bytes(6)), block, block, BF16)


def test_a_zstd_frame_that_declares_too_much_is_refused() -> None:
    block = np.zeros(5000, np.uint16)
    new = block.copy()
    new[::3] = 1
    other = body(Xor("zstd").encode(np.tile(new, 4), np.tile(block, 4), BF16))
    with pytest.raises(IntegrityError):
        Xor("zstd").decode(other, block, block, BF16)


def test_names_and_parameters() -> None:
    assert [codec(name).spec for name in ("xor", "ulp", "context", "xor:pcodec", "ulp:zstd")] == [
        *("xor:zstd", "ulp:pcodec", "context", "xor:pcodec", "ulp:zstd")
    ]
    for wrong in ("xor:lz4", "ulp:zstd3", "context:pcodec"):
        with pytest.raises(InvalidArgument):
            codec(wrong)
    for one in CODECS:
        assert isinstance(one, SparseCodec)
    old, new = pair("<u2", 100, 0.5)
    changes = Context().encode(new, old, BF16).changes
    assert changes is not None
    with pytest.raises(UnsupportedOperation):
        Context().encode_changes(changes, BF16)
    with pytest.raises(ValueError, match="rule"):
        Xor().encode_changes(changes, BF16)


def conditioned_bound(old: Bits, new: Bits) -> float:
    """Bytes: the sum over exponents of n H(p) + m H(step), see `context`."""
    bits = 0.0
    for exponent in range(256):
        mine = (old >> 7 & 0xFF) == exponent
        n, m = np.count_nonzero(mine), np.count_nonzero(mine & (old != new))
        if m:
            _, many = np.unique((new - old)[mine & (old != new)], return_counts=True)
            bits -= m * np.log2(m / n) - (many * np.log2(many / m)).sum() * -1
            bits -= (n - m) * np.log2((n - m) / n) if n > m else 0
    return bits / 8


def test_context_comes_near_the_bound_and_below_ulp() -> None:
    """An Adam-like step on weights of a normal distribution."""
    rng = np.random.default_rng(1)
    master = (rng.standard_normal(1 << 20) * 0.02).astype(np.float32)
    moved = master + np.float32(1e-6) * np.sign(rng.standard_normal(1 << 20)).astype(np.float32)
    old, new = (one.astype(BF16.numpy).view(np.uint16) for one in (master, moved))
    context = check(Context(), old, new, BF16).nbytes
    assert context < 1.06 * conditioned_bound(old, new)
    assert context < 0.85 * check(Ulp(), old, new, BF16).nbytes


def test_classes_are_chosen_where_they_pay() -> None:
    census, olds = np.zeros((256, 16), np.int64), np.zeros(256, np.int64)
    olds[100:120] = 100_000
    census[100:120, 0] = 1000
    assert choose(census, olds).tolist() == [0]
    census[110:120, 0] = 50_000
    assert choose(census, olds).tolist() == [0, 110]
    census[:], olds[:] = 7, 300  # every key in use
    assert choose(census, olds).tolist() == [0]
    rng = np.random.default_rng(0)
    census[:] = rng.integers(0, 1 << 12, census.shape)
    found = choose(census, np.full(256, 1 << 17))
    assert found[0] == 0
    assert found.size <= 16
    assert (np.diff(found.astype(int)) > 0).all()
