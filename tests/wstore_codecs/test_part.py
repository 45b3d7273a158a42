"""Parts: from the end by an index, from the front while they grow; damage never passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_codecs.frames import changed, same, weights
from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import dtypes, frame_header, part, varint
from wstore_codecs.cutting import Member, plan
from wstore_codecs.frame import Frame, decode, decode_unit, encode, encode_unit
from wstore_codecs.part import START, TAIL, FrontReader, PartWriter, Row, index_range, parse_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_codecs.frame_header import FrameHeader

BF16, F32 = dtypes.dtype("BF16"), dtypes.dtype("F32")


def _frames() -> list[Frame]:
    base = weights(BF16, (300, 300))
    (unit,) = plan([(F32, Member.whole(f"norm.{at}", (at,))) for at in range(5)])
    return [
        encode(changed(base, BF16, 0.02), base, codec="ulp", name="layers.0.w"),
        encode_unit(unit, [weights(F32, (at,)) for at in range(5)]),
        encode(base[:10], name="layers.1.w", shape=(99, 300), origin=(7, 0)),
    ]


def _part(frames: Sequence[Frame]) -> tuple[bytes, list[Row]]:
    writer, out, rows = PartWriter(), [START], []
    for frame in frames:
        rows.append(writer.add(frame))
        out.append(frame.tobytes())
    out.append(writer.finish())
    whole = b"".join(out)
    assert writer.nbytes == len(whole)
    return whole, rows


def _rows(whole: bytes) -> list[Row]:
    start, stop = index_range(whole[-TAIL:], len(whole))
    return parse_index(whole[start:stop], whole[-TAIL:])


def test_any_frame_by_its_row() -> None:
    frames = _frames()
    whole, rows = _part(frames)
    assert _rows(whole) == rows
    for frame, row in zip(frames, rows, strict=True):
        found = Frame.parse(whole[row.offset : row.offset + row.nbytes])
        row.check(found)
        assert found.tobytes() == frame.tobytes()
        assert found.header == frame.header
    assert [row.members for row in rows] == [1, 5, 1]
    with pytest.raises(IntegrityError, match="promised another frame"):
        rows[0].check(frames[2])
    with pytest.raises(IntegrityError, match="promised another frame"):
        rows[1].check(frames[0])


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_from_the_front_while_it_grows(step: int) -> None:
    frames = _frames()
    whole, _ = _part(frames)
    reader, got = FrontReader(), []
    for at in range(0, len(whole), step):
        got += reader.feed(whole[at : at + step])
    assert [frame.tobytes() for frame in got] == [frame.tobytes() for frame in frames]
    assert reader.ended
    assert reader.at == sum(frame.nbytes for frame in frames) + len(START)
    assert reader.feed(b"more") == []


def test_a_part_without_frames() -> None:
    whole, _ = _part([])
    assert _rows(whole) == []
    reader = FrontReader()
    assert reader.feed(whole) == []
    assert reader.ended


def test_a_tiny_tensor_costs_at_most_256_bytes() -> None:
    (unit,) = plan([(F32, Member.whole("b", ()))])
    base, new = np.full((), 1, np.float32), np.full((), 2, np.float32)
    for frame in (encode_unit(unit, [new]), encode_unit(unit, [new], [base], digests=True)):
        whole, _ = _part([frame])
        assert len(whole) <= new.nbytes + 256, len(whole)


def test_many_incompressible_blocks_grow_by_at_most_one_percent() -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.integers(0, 256, 1 << 16, np.uint8) for _ in range(20)]
    frames = [
        encode(array, array[::-1], digests=True, name=f"model.layers.{at}.mlp.weight")
        for at, array in enumerate(arrays)
    ]
    whole, _ = _part(frames)
    assert len(whole) <= 1.01 * sum(array.nbytes for array in arrays) + 256


def test_a_part_that_is_cut_short_anywhere() -> None:
    whole, _ = _part(_frames()[1:2])
    for end in range(len(whole)):
        with pytest.raises(IntegrityError):
            index_range(whole[max(0, end - TAIL) : end], end)
        reader = FrontReader()
        reader.feed(whole[:end])
        assert not reader.ended or end >= reader.at


def test_every_flipped_bit_of_the_index() -> None:
    frames = _frames()[1:]
    whole, rows = _part(frames)
    start = rows[-1].offset + rows[-1].nbytes
    for at in range(start, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(IntegrityError):
                _rows(bytes(damaged))


def test_a_damaged_frame_stops_the_front_reader() -> None:
    whole, rows = _part(_frames())
    damaged = bytearray(whole)
    damaged[rows[1].offset + rows[1].nbytes - 1] ^= 1
    reader = FrontReader()
    with pytest.raises(IntegrityError, match=r"norm\.0"):
        reader.feed(bytes(damaged))
    with pytest.raises(IntegrityError, match=r"norm\.0"):
        reader.feed(b"")
    assert reader.at == 0
    reader = FrontReader()
    assert len(reader.feed(bytes(damaged[: rows[1].offset + 100]))) == 1
    with pytest.raises(IntegrityError, match=r"norm\.0"):
        reader.feed(bytes(damaged[rows[1].offset + 100 :]))
    assert reader.at == rows[1].offset
    again = FrontReader(reader.at).feed(whole[reader.at :])
    assert [frame.nbytes for frame in again] == [row.nbytes for row in rows[1:]]


def test_a_header_is_parsed_once_however_small_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = _frames()[1]
    calls, parse = [], frame_header.parse

    def counted(data: memoryview) -> FrameHeader:
        calls.append(len(data))
        return parse(data)

    monkeypatch.setattr(frame_header, "parse", counted)
    reader = FrontReader()
    for byte in START + frame.tobytes():
        reader.feed(bytes([byte]))
    assert reader.at == len(START) + frame.nbytes
    assert len(calls) == 2  # once for the frame's size, once as a whole


def test_what_is_no_part() -> None:
    with pytest.raises(IntegrityError, match="no part starts"):
        FrontReader().feed(b"WSTQ" + bytes(100))
    with pytest.raises(NewerFormat, match="format 2"):
        FrontReader().feed(b"WSTP\2\0\0\0")
    with pytest.raises(IntegrityError, match="no frame starts here"):
        FrontReader().feed(START + bytes(100))


def _sealed(count: int, raw: int, rows: bytes) -> tuple[bytes, bytes]:
    import struct

    import xxhash

    from wstore_codecs import zstd

    packed = zstd.compress(rows, zstd.level(1))
    index = struct.pack("<4sII", b"WSTI", count, raw) + packed
    tail = struct.pack("<Q16s4s", 8, xxhash.xxh3_128_digest(index), b"WSTE")
    return index, tail


def test_an_index_that_lies_is_refused_before_it_is_unpacked() -> None:
    for count, raw, rows in (
        (part.MAX_FRAMES + 1, 100, b"x" * 100),
        (1, 200 << 20, b"x" * 100),
        (1, 90, b"x" * 100),
        (1, 4, b"\5\6\0\0"),
        (1, 4, b"\5\4\2\0"),
        (2, 4, b"\5\4\1\1"),
        (1, 4, b"\5\4\1\1"),
    ):
        index, tail = _sealed(count, raw, rows)
        with pytest.raises(IntegrityError):
            parse_index(index, tail)


def _row(nbytes: int, header: int, members: int) -> bytes:
    return varint.pack(nbytes) + varint.pack(header) + b"\1" + varint.pack(members)


@pytest.mark.parametrize(
    "row",
    [
        _row(0, 0, 1),
        _row(1 << 40, 100, 1),
        _row(50 << 20, 20 << 20, 1),
        _row(99, 90, 0),
        _row(99, 90, 1 << 40),
    ],
)
def test_a_row_of_what_no_frame_is(row: bytes) -> None:
    index, tail = _sealed(1, len(row), row)
    with pytest.raises(IntegrityError, match=r"impossible frame|members at"):
        parse_index(index, tail)
    with pytest.raises(IntegrityError, match="end has 27 bytes"):
        parse_index(index, tail[1:])


def test_a_full_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "MAX_FRAMES", 2)
    writer, frames = PartWriter(), _frames()
    writer.add(frames[0])
    writer.add(frames[1])
    with pytest.raises(InvalidArgument, match="with 2 frames is full"):
        writer.add(frames[2])


def test_what_a_part_holds_decodes() -> None:
    base = weights(BF16, (300, 300))
    frames = _frames()
    assert same(np.asarray(decode(frames[0].tobytes(), base)), changed(base, BF16, 0.02))
    assert all(map(same, decode_unit(frames[1]), [weights(F32, (at,)) for at in range(5)]))
