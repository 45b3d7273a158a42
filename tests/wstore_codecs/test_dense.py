"""The codecs without a base: raw, zstd, planes. Round trips, the format, and bodies made to harm."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import dtypes, varint, zstd
from wstore_codecs.kernels import planes as kernels
from wstore_codecs.planes import Planes
from wstore_codecs.raw import Raw
from wstore_codecs.zstd import Zstd

if TYPE_CHECKING:
    from wstore_codecs.base import Codec
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

EVERY = list(dtypes.DTYPES.values())
BF16, U8 = dtypes.dtype("BF16"), dtypes.dtype("U8")
CODECS: list[Codec] = [Raw(), Zstd(), Zstd("3"), Planes()]
BY_SPEC = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)


def body_of(codec: Codec, bits: Bits, dtype: DType) -> bytes:
    encoded = codec.encode(bits, None, dtype)
    body = b"".join(encoded.pieces)
    assert encoded.codec == codec.spec
    assert encoded.nbytes == len(body)
    assert encoded.changes is None
    return body


def decoded(codec: Codec, body: bytes, like: Bits, dtype: DType) -> Bits:
    out = np.full_like(like, 0xA5)
    codec.decode(memoryview(body), None, out, dtype)
    return out


def weights(count: int, seed: int = 1) -> Bits:
    """bf16 of a bell curve, as bits."""
    values = np.random.default_rng(seed).normal(0, 0.02, count)
    return values.astype(ml_dtypes.bfloat16).view("<u2")


def patterns(dtype: DType) -> dict[str, Bits]:
    rng, width = np.random.default_rng(3), dtype.itemsize
    noise = np.frombuffer(rng.bytes(width * 40_001), dtype.bits)
    special = np.array([0, 1, 1 << 8 * width - 1, (1 << 8 * width) - 1], dtype.bits)
    return {
        "one": noise[:1],
        "two": noise[1:3],
        "odd noise": noise,
        "zeros": np.zeros(257, dtype.bits),
        "constant": np.full(70_001, noise[5]),
        "zeros and noise": np.where(np.arange(40_001) % 7 == 0, noise, 0).astype(dtype.bits),
        "few values": special[rng.integers(0, 4, 30_000)],
        "repeating": np.tile(noise[:999], 40),
        "ascending": np.arange(40_000).astype(dtype.bits),
        "unequal last": np.concatenate([np.zeros(9_999, dtype.bits), special[1:2]]),
    }


@BY_SPEC
@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.name)
def test_round_trip_of_every_dtype(codec: Codec, dtype: DType) -> None:
    for name, bits in patterns(dtype).items():
        body = body_of(codec, bits, dtype)
        assert body_of(codec, bits, dtype) == body, name
        if len(body) <= bits.nbytes:
            np.testing.assert_array_equal(decoded(codec, body, bits, dtype), bits, name)
        else:
            with pytest.raises(IntegrityError):
                decoded(codec, body, bits, dtype)


@given(
    st.sampled_from(EVERY),
    st.lists(
        st.tuples(st.binary(min_size=8, max_size=8), st.integers(1, 200)), min_size=1, max_size=6
    ),
)
def test_round_trip_of_anything(dtype: DType, runs: list[tuple[bytes, int]]) -> None:
    """Runs of equal elements, so that constant, stored and compressed planes mix."""
    bits = np.concatenate(
        [np.frombuffer(data[: dtype.itemsize] * times, dtype.bits) for data, times in runs]
    )
    for codec in CODECS:
        body = body_of(codec, bits, dtype)
        if len(body) <= bits.nbytes:
            np.testing.assert_array_equal(decoded(codec, body, bits, dtype), bits)


def test_planes_of_weights_are_near_their_entropy() -> None:
    bits = weights(1 << 20)
    assert bits.nbytes / len(body_of(Planes(), bits, BF16)) > 1.45
    widened = (bits.astype("<u4") << 16).astype("<u4")  # fp32 that holds bf16
    assert widened.nbytes / len(body_of(Planes(), widened, dtypes.dtype("F32"))) > 2.9
    quantised = np.random.default_rng(2).normal(0, 12, 1 << 18).astype(np.int8).view("u1")
    assert len(body_of(Planes(), quantised, dtypes.dtype("I8"))) < 0.75 * quantised.nbytes
    tiled = np.tile(weights(2000), 300)  # repetition that only zstd's search finds
    assert len(body_of(Planes(), tiled, BF16)) < 0.2 * tiled.nbytes


def test_planes_body_is_as_documented() -> None:
    """The format: 0x3f80 turned is 0x7f00, 0xbf80 is 0x7f01."""
    bits = np.array([0x3F80, 0xBF80], "<u2")
    assert body_of(Planes(), bits, BF16).hex(" ") == "01 00 01 7f 00 01"
    assert body_of(Planes(), bits, dtypes.dtype("U16")).hex(" ") == "00 01 00 3f bf 80"
    assert body_of(Planes(), np.array([7, 7, 8], "u1"), U8).hex(" ") == "00 01 07 07 08"
    bits = weights(5000)
    turned = (bits << np.uint16(1)) | (bits >> np.uint16(15))
    body = body_of(Planes(), bits, BF16)
    assert body[:2] == b"\x01\x02"
    cursor = varint.Cursor(memoryview(body)[2:], what="planes")
    length = cursor.varint()
    assert cursor.byte() == 1
    high = zstandard.ZstdDecompressor().decompress(cursor.take(length))
    assert high == (turned >> 8).astype("u1").tobytes()
    assert cursor.rest() == (turned & 0xFF).astype("u1").tobytes()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("turned", [False, True])
def test_split_and_merge_are_the_definition(width: int, turned: bool) -> None:
    bits = np.frombuffer(np.random.default_rng(width).bytes(width * 1037), f"<u{width}")
    want = bits
    if turned and width > 1:
        up = 8 * width - 16
        top = [(int(b) >> up) << 1 & 0xFFFF | int(b) >> 8 * width - 1 for b in bits]
        want = np.array(
            [t << up | int(b) & (1 << up) - 1 for t, b in zip(top, bits, strict=True)], bits.dtype
        )
    planes = kernels.split(bits, turned=turned)
    for k, plane in enumerate(planes):
        shift = want.dtype.type(8 * (width - 1 - k))
        np.testing.assert_array_equal(plane, (want >> shift).astype("u1"))
    out = np.empty_like(bits)
    kernels.merge(planes, out, turned=turned)
    np.testing.assert_array_equal(out, bits)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.merge(planes[1:], out, turned=turned)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.merge([plane[:-1] for plane in planes], out, turned=turned)


@BY_SPEC
def test_the_body_keeps_no_reference_to_the_block(codec: Codec) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 5000, dtype="u1")
    for bits, dtype in ((weights(5000), BF16), (noise, U8)):
        encoded, want = codec.encode(bits, None, dtype), body_of(codec, bits, dtype)
        bits[:] = 0
        assert b"".join(encoded.pieces) == want


@BY_SPEC
def test_threads_share_a_codec(codec: Codec) -> None:
    blocks = [weights(60_000, seed) for seed in range(8)]
    want = [body_of(codec, block, BF16) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda block: body_of(codec, block, BF16), blocks)) == want
        back = pool.map(lambda body: decoded(codec, body, blocks[0], BF16), want)
        for block, out in zip(blocks, back, strict=True):
            np.testing.assert_array_equal(out, block)


def harmed(codec: Codec, body: bytes, like: Bits, dtype: DType) -> bool:
    """Whether a body was refused; any other outcome than that or a full `out` is a failure."""
    tracemalloc.start()
    try:
        decoded(codec, body, like, dtype)
    except IntegrityError:
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * like.nbytes + (64 << 10)
    return False


@BY_SPEC
def test_cut_and_extended_bodies_are_refused(codec: Codec) -> None:
    bits = weights(700)
    body = body_of(codec, bits, BF16)
    assert not harmed(codec, body, bits, BF16)
    for size in range(len(body)):
        assert harmed(codec, body[:size], bits, BF16), size
    for more in (b"\0", b"\x28\xb5\x2f\xfd", body):
        assert harmed(codec, body + more, bits, BF16)
    for wrong in (bits[:-1], np.append(bits, bits[:1])):
        assert harmed(codec, body, wrong, BF16)


@BY_SPEC
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_flipped_bits_never_harm(codec: Codec, count: int) -> None:
    """The frame's hash finds these; a codec must only survive them."""
    rng = np.random.default_rng(11)
    sources = [weights(900), np.tile(weights(50), 40)]
    decoded(codec, body_of(codec, sources[0], BF16), sources[0], BF16)  # loads its kernels
    for index in range(count):
        bits = sources[index % 2]
        body = bytearray(body_of(codec, bits, BF16))
        for _ in range(int(rng.integers(1, 4))):
            # The first bytes are where the lengths are.
            limit = 24 if rng.random() < 0.5 else len(body)
            body[int(rng.integers(0, min(limit, len(body))))] ^= 1 << int(rng.integers(0, 8))
        harmed(codec, bytes(body), bits, BF16)


def frame(content: bytes, **parameters: Any) -> bytes:
    return zstandard.ZstdCompressor(**parameters).compress(content)


def hostile_frames(nbytes: int) -> dict[str, bytes]:
    """zstd frames that are not one plain frame of `nbytes`."""
    good = frame(bytes(nbytes))
    half = frame(bytes(nbytes // 2))
    magic = b"\x28\xb5\x2f\xfd"
    return {
        "empty": b"",
        "magic alone": magic,
        "a bomb": frame(bytes(64 << 20)),
        "one byte more": frame(bytes(nbytes + 1)),
        "one byte less": frame(bytes(nbytes - 1)),
        "no content size": frame(bytes(nbytes), write_content_size=False),
        "two frames": half + half,
        "a skippable frame": b"\x50\x2a\x4d\x18"
        + nbytes.to_bytes(4, "little")
        + bytes(nbytes // 2),
        "trailing bytes": good + b"x",
        "cut": good[:-1],
        # Frame header descriptors: 4 byte content size; without and with a window of 2^41 bytes.
        "declares, holds nothing": magic + b"\xa0" + nbytes.to_bytes(4, "little"),
        "a window of 2 TiB": magic + b"\x80\xf8" + nbytes.to_bytes(4, "little") + b"\x01\0\0",
        "a dictionary": magic + b"\xa1\x07" + nbytes.to_bytes(4, "little") + b"\x01\0\0",
        "a reserved block": magic + b"\xa0" + nbytes.to_bytes(4, "little") + b"\x07\0\0",
        "an overlong block": magic + b"\xa0" + nbytes.to_bytes(4, "little") + b"\x03\xff\xff\0",
    }


@pytest.mark.parametrize("kind", list(hostile_frames(600)))
def test_hostile_zstd_frames_are_refused(kind: str) -> None:
    body = hostile_frames(600)[kind]
    assert harmed(Zstd(), body, np.zeros(600, "u1"), U8)
    in_planes = b"\0\x02" + varint.pack(len(body)) + body
    assert harmed(Planes(), in_planes, np.zeros(600, "u1"), U8)
    with pytest.raises(IntegrityError):
        zstd.decompress(memoryview(body), 600, what="here")


@pytest.mark.parametrize(
    "head",
    ["", "02", "ff", "01", "01 03", "01 00", "01 02 00", "01 02 80", "01 02 ff ff ff ff 7f 00",
     "01 02 ff ff ff ff ff ff ff ff ff ff 01", "01 02 90 4e 01", "01 01 02 81 00", "01 00 00 00"],
)  # fmt: skip
def test_hostile_planes_heads_are_refused(head: str) -> None:
    bits = weights(10_000)
    assert harmed(Planes(), bytes.fromhex(head) + bytes(9_000), bits, BF16)
    assert harmed(Planes(), bytes.fromhex(head), bits, BF16)


def test_bytes_are_never_turned() -> None:
    assert harmed(Planes(), bytes.fromhex("01 01 07 07 08"), np.zeros(300, "u1"), U8)


def test_bodies_above_the_block_are_refused() -> None:
    bits = np.array([3], "<u2")
    body = body_of(Planes(), bits, BF16)
    assert len(body) > bits.nbytes
    for codec in CODECS:
        assert harmed(codec, body + bytes(20), bits, BF16)


def test_parameters() -> None:
    assert [c.spec for c in CODECS] == ["raw", "zstd", "zstd:3", "planes"]
    assert not any(c.needs_base for c in CODECS)
    assert Zstd("19").spec == "zstd:19"
    for bad in ("0", "20", "01", "-1", "x", "3.5", "³", "100"):
        with pytest.raises(InvalidArgument, match="level"):
            Zstd(bad)
    for other in (Raw, Planes):
        with pytest.raises(InvalidArgument, match="no parameter"):
            other("fast")
    bits = weights(3000)
    for level in (1, 3, 4, 19):
        body = body_of(Zstd(str(level)), bits, BF16)
        assert body == zstandard.ZstdCompressor(level=level).compress(bits.tobytes())
        np.testing.assert_array_equal(decoded(Zstd(), body, bits, BF16), bits)
