"""The entropy stages of the sparse codecs: gaps, values and bitmaps to bytes and back.

A **stage** writes a list of numbers as a *stream* into a body and reads it back; how many numbers there
are and what type they have is known from the body before it. Every stream carries its own length.

**pcodec.** n numbers (gaps as uint32; values as unsigned integers of the element's width for XOR, signed
ones for steps) are cut into k = ceil(n / 2^18) runs; run j holds the numbers from n*j//k to n*(j+1)//k.
For each run:

    LEB128  bytes that follow for this run, at least 1
    a chunk of the wrapped pco format, version 4.1: chunk metadata, then its one page

A bitmap is stored as it is.

**zstd.** Zstandard frames (RFC 8878) that declare their content size, each after a LEB128 of its bytes.

- gaps: u8 form, LEB128 number c of content bytes, frame length, frame. Form 0: each gap as LEB128 in its
  shortest form, at most four bytes; c is at most 4n. Form 1: each gap as one byte 255 for every whole 255
  in it, then one byte of what is left, 0 to 254; c is at most n + size // 255.
- values: frame length, frame. The content is n x width bytes: byte planes, the least significant first. A
  step s (as a signed integer) is stored zigzag, 2s for s >= 0 and -2s - 1 below, an XOR value as it is.
- a bitmap: frame length, frame.

Nothing is allocated by what a stream declares but what n and the block's size imply, and every fault that
a library reports becomes IntegrityError. pco has no checksum: damage may go unnoticed here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, PagingSpec, wrapped

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import varint, zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wstore_codecs.changes import UInt32s
    from wstore_codecs.tensors import Bits
    from wstore_codecs.varint import Cursor

RUN = 1 << 18
"""The most numbers of one pco chunk: its histogram follows the data, its memory stays small."""

PCO_LEVEL = 8
ZSTD_LEVEL = 1
LEB, ESCAPED = 0, 1


class Stage(Protocol):
    """Lists of numbers to pieces of a body and back. Reading raises IntegrityError.

    Attributes:
        name: the codec's parameter that names it.
        bitmap_from: share of changed elements from which a bitmap replaces the gaps.
        dense_from: share from which the values of all elements replace both.
    """

    @property
    def name(self) -> str: ...

    @property
    def bitmap_from(self) -> float: ...

    @property
    def dense_from(self) -> float: ...

    def gaps(self, gaps: UInt32s, size: int) -> list[Buffer]:
        """The stream of gaps in a block of `size` elements; at least one gap."""

    def read_gaps(self, body: Cursor, count: int, size: int) -> UInt32s:
        """That many gaps. They may still leave the block: `Changes.check` finds that."""

    def values(self, values: Bits, *, signed: bool) -> list[Buffer]:
        """The stream of values, at least one. `signed`: they are steps around 0."""

    def read_values(
        self, body: Cursor, count: int, dtype: np.dtype[np.unsignedinteger], *, signed: bool
    ) -> Bits:
        """That many values."""

    def bitmap(self, packed: Bits) -> list[Buffer]:
        """The stream of a bitmap's bytes, at least one."""

    def read_bitmap(self, body: Cursor, nbytes: int) -> Bits:
        """That many bytes of a bitmap."""


def stage(name: str, *, codec: str) -> Stage:
    """The stage that a codec's parameter names. Raises InvalidArgument for an unknown one."""
    found = _STAGES.get(name)
    if found is None:
        raise InvalidArgument(
            f"codec {codec!r} has no entropy stage {name!r}: {' or '.join(_STAGES)}, as in "
            f"'{codec}:pcodec'"
        )
    return found


class Pcodec:
    """pco: within a few per cent of the entropy of independent numbers."""

    name = "pcodec"
    bitmap_from = 0.3
    dense_from = 0.67

    def gaps(self, gaps: UInt32s, size: int) -> list[Buffer]:
        return pack(gaps)

    def read_gaps(self, body: Cursor, count: int, size: int) -> UInt32s:
        gaps = np.empty(count, np.uint32)
        unpack(body, gaps)
        return gaps

    def values(self, values: Bits, *, signed: bool) -> list[Buffer]:
        return pack(values.view(f"<i{values.itemsize}") if signed else values)

    def read_values(
        self, body: Cursor, count: int, dtype: np.dtype[np.unsignedinteger], *, signed: bool
    ) -> Bits:
        values = np.empty(count, dtype)
        unpack(body, values.view(f"<i{dtype.itemsize}") if signed else values)
        return values

    def bitmap(self, packed: Bits) -> list[Buffer]:
        return [packed.data]

    def read_bitmap(self, body: Cursor, nbytes: int) -> Bits:
        return np.frombuffer(body.take(nbytes), np.uint8)


class Zstd:
    """Zstandard, after the numbers were made bytes that it compresses well."""

    name = "zstd"
    bitmap_from = 0.25
    dense_from = 0.67

    def gaps(self, gaps: UInt32s, size: int) -> list[Buffer]:
        # LEB128 below 1 % of changed elements, where escapes would be long.
        form = LEB if gaps.size * 100 < size else ESCAPED
        content = _leb(gaps) if form == LEB else _escaped(gaps)
        return [bytes((form,)) + varint.pack(content.size), *_frame(content)]

    def read_gaps(self, body: Cursor, count: int, size: int) -> UInt32s:
        form, nbytes = body.byte(), body.varint()
        most = 4 * count if form == LEB else count + size // 255
        if form not in (LEB, ESCAPED) or not count <= nbytes <= most:
            raise IntegrityError(f"{count} gaps in {nbytes} bytes of form {form}")
        content = _read_frame(body, nbytes)
        gaps = _unleb(content) if form == LEB else _unescaped(content)
        if gaps.size != count:
            raise IntegrityError(f"{gaps.size} gaps instead of {count}")
        return gaps

    def values(self, values: Bits, *, signed: bool) -> list[Buffer]:
        if signed:
            steps = values.view(f"<i{values.itemsize}")
            values = ((steps << 1) ^ (steps >> (8 * values.itemsize - 1))).view(values.dtype)
        planes = values.view(np.uint8).reshape(-1, values.itemsize).T
        return _frame(np.ascontiguousarray(planes).reshape(-1))

    def read_values(
        self, body: Cursor, count: int, dtype: np.dtype[np.unsignedinteger], *, signed: bool
    ) -> Bits:
        planes = _read_frame(body, count * dtype.itemsize).reshape(dtype.itemsize, count)
        values = np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
        if signed:
            values = (values >> dtype.type(1)) ^ np.negative(values & dtype.type(1))
        return values

    def bitmap(self, packed: Bits) -> list[Buffer]:
        return _frame(packed)

    def read_bitmap(self, body: Cursor, nbytes: int) -> Bits:
        return _read_frame(body, nbytes)


_STAGES: dict[str, Stage] = {one.name: one for one in (Zstd(), Pcodec())}


def pack(numbers: np.ndarray[tuple[int], np.dtype[np.integer]]) -> list[Buffer]:
    """The runs of a pco stream; at least one number. Deterministic; releases the GIL."""
    runs = -(-numbers.size // RUN)
    out: list[Buffer] = []
    for j in range(runs):
        part = numbers[numbers.size * j // runs : numbers.size * (j + 1) // runs]
        chunk = _compressor().chunk_compressor(part, _config(part.size))
        head, page = chunk.write_meta(), chunk.write_page(0)
        out += [varint.pack(len(head) + len(page)) + head, page]
    return out


def unpack(body: Cursor, out: np.ndarray[tuple[int], np.dtype[np.integer]]) -> None:
    """Fills `out` from a pco stream of as many numbers. Raises IntegrityError."""
    runs = -(-out.size // RUN)
    kind = f"{out.dtype.kind}{8 * out.itemsize}"
    for j in range(runs):
        part = out[out.size * j // runs : out.size * (j + 1) // runs]
        data = bytes(body.take(body.varint()))
        try:
            chunk, head = _decompressor().chunk_decompressor(data, kind)
            progress, page = chunk.read_page_into(data[head:], part.size, part)
        except RuntimeError as error:
            raise IntegrityError(f"a damaged pco chunk: {error}") from error
        if head + page != len(data) or progress.n_processed != part.size or not progress.finished:
            raise IntegrityError(f"a pco chunk of other than {part.size} numbers")


@cache
def _config(count: int) -> ChunkConfig:
    return ChunkConfig(
        compression_level=PCO_LEVEL,
        delta_spec=DeltaSpec.no_op(),
        mode_spec=ModeSpec.classic(),
        paging_spec=PagingSpec.exact_page_sizes([count]),
        enable_8_bit=True,
    )


@cache
def _compressor() -> wrapped.FileCompressor:
    return wrapped.FileCompressor()


@cache
def _decompressor() -> wrapped.FileDecompressor:
    return wrapped.FileDecompressor.new(_compressor().write_header())[0]


def _frame(content: Bits) -> list[Buffer]:
    frame = zstd.compress(content.data, zstd.level(ZSTD_LEVEL))
    return [varint.pack(len(frame)), frame]


def _read_frame(body: Cursor, nbytes: int) -> Bits:
    frame = body.take(body.varint())
    return np.frombuffer(zstd.decompress(frame, nbytes, what="a zstd stream"), np.uint8)


def _leb(gaps: UInt32s) -> Bits:
    lengths = 1 + (gaps >= 1 << 7).astype(np.int64) + (gaps >= 1 << 14) + (gaps >= 1 << 21)
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]), np.uint8)
    for place in range(4):
        some = np.flatnonzero(lengths > place)
        seven = (gaps[some] >> np.uint32(7 * place) & np.uint32(0x7F)).astype(np.uint8)
        more = lengths[some] > place + 1
        out[ends[some] - lengths[some] + place] = seven | more.astype(np.uint8) << 7
    return out


def _unleb(data: Bits) -> UInt32s:
    ends = np.flatnonzero(data < 0x80)
    lengths = np.diff(ends, prepend=-1)
    if not ends.size or ends[-1] != data.size - 1 or lengths.max() > 4:
        raise IntegrityError("gaps that are cut short or too large")
    if (data[ends[lengths > 1]] == 0).any():
        raise IntegrityError("gaps that are not in their shortest form")
    gaps = np.zeros(ends.size, np.uint32)
    for place in range(4):
        some = np.flatnonzero(lengths > place)
        seven = data[ends[some] - lengths[some] + 1 + place] & 0x7F
        gaps[some] |= seven.astype(np.uint32) << np.uint32(7 * place)
    return gaps


def _escaped(gaps: UInt32s) -> Bits:
    whole = gaps // np.uint32(255)
    ends = np.cumsum(whole, dtype=np.int64) + np.arange(1, gaps.size + 1)
    out = np.full(int(ends[-1]), 255, np.uint8)
    out[ends - 1] = gaps - whole * np.uint32(255)
    return out


def _unescaped(data: Bits) -> UInt32s:
    ends = np.flatnonzero(data != 255)
    if not ends.size or ends[-1] != data.size - 1:
        raise IntegrityError("gaps that are cut short")
    return ((np.diff(ends, prepend=-1) - 1) * 255 + data[ends]).astype(np.uint32)
