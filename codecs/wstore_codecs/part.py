"""A part: a sequence of frames with an index at its end. Pure: who writes and reads the bytes is elsewhere.

    0   4s   "WSTP", u8 format (1), 3 zero bytes
        frames, one behind the other
        4s   "WSTI", u32 number of frames, u32 bytes of the rows before compression
             the rows as one zstd frame that states its content size
        u64  offset of "WSTI", 16s xxh3-128 of all bytes from there to this field's start, 4s "WSTE"

A row is a varint, the frame's size; a varint, its header's size; then u8 0 and the member of a block (as in
a frame's member table), or u8 1 and the varint number of members of a group. Frames are in the order of
their rows, from byte 8 on without a gap, so an offset is a sum.

From its end, a part is read by two ranged reads and then any frame by one. From its front, it is read while
it grows: `FrontReader` hands out each frame that is complete.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import frame_header, varint, zstd
from wstore_codecs.block import MAX_BLOCK_ELEMENTS
from wstore_codecs.cutting import MAX_MEMBERS
from wstore_codecs.frame import Frame
from wstore_codecs.frame_header import MAX_HEADER, MAX_MEMBER, pack_member, parse_member

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wstore_codecs.cutting import Member

FORMAT = 1
START = b"WSTP" + bytes([FORMAT]) + b"\0\0\0"
"""The first bytes of every part."""
TAIL = 28
"""Bytes of the fixed end: read these first."""
MAX_FRAMES = 1 << 16
MAX_ROWS = 16 << 20
"""Bytes of the rows before compression."""
MAX_PART = 1 << 53

_INDEX = struct.Struct("<4sII")
_END = struct.Struct("<Q16s4s")
_MAX_ROW = 2 * 10 + 1 + MAX_MEMBER
_MAX_BODY = 8 * MAX_BLOCK_ELEMENTS


@dataclass(frozen=True, slots=True)
class Row:
    """Where a frame lies in its part, and what it holds.

    Attributes:
        offset: of its first byte, in the part.
        nbytes: of the frame.
        header_nbytes: of its header; reading that much from `offset` tells the rest.
        member: the box of a block; None for a group.
        members: how many boxes, 1 for a block.
    """

    offset: int
    nbytes: int
    header_nbytes: int
    member: Member | None
    members: int

    def check(self, frame: Frame) -> None:
        """Raises IntegrityError unless `frame` is the one that this row promised."""
        unit = frame.header.unit
        same = unit.grouped if self.member is None else (self.member,) == unit.members
        if not same or len(unit.members) != self.members or frame.nbytes != self.nbytes:
            raise IntegrityError(
                f"the index of the part promised another frame at {self.offset} than "
                f"{frame.header.label()}"
            )


class PartWriter:
    """Turns frames into the bytes of a part, in order: `START`, then each frame's pieces as they are
    added, then what `finish` returns."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._rows_size = 0
        self._at = len(START)

    @property
    def nbytes(self) -> int:
        """Bytes of the part so far."""
        return self._at

    def add(self, frame: Frame) -> Row:
        """Where `frame` lies: its pieces come next.

        Raises:
            InvalidArgument: the part is full.
        """
        unit = frame.header.unit
        header = memoryview(frame.pieces[0]).nbytes
        what = (
            b"\1" + varint.pack(len(unit.members))
            if unit.grouped
            else b"\0" + pack_member(unit.members[0])
        )
        row = varint.pack(frame.nbytes) + varint.pack(header) + what
        if len(self._rows) == MAX_FRAMES or self._rows_size + len(row) > MAX_ROWS:
            raise InvalidArgument(
                f"a part with {len(self._rows)} frames is full: start another one"
            )
        self._rows.append(row)
        self._rows_size += len(row)
        member = None if unit.grouped else unit.members[0]
        made = Row(self._at, frame.nbytes, header, member, len(unit.members))
        self._at += frame.nbytes
        return made

    def finish(self) -> bytes:
        """The part's last bytes: the index and the end."""
        rows = b"".join(self._rows)
        packed = zstd.compress(rows, zstd.level(3))
        index = _INDEX.pack(b"WSTI", len(self._rows), len(rows)) + packed
        offset = self._at
        self._at += len(index) + TAIL
        digest = xxhash.xxh3_128_digest(index)
        return index + _END.pack(offset, digest, b"WSTE")


def index_range(tail: Buffer, size: int) -> tuple[int, int]:
    """Where the index of a part of `size` bytes lies, [start, stop), from its last TAIL bytes.

    Raises:
        IntegrityError: not the end of a part; cut short, or still growing.
    """
    view = memoryview(tail).cast("B")
    if len(view) != TAIL or size < len(START) + TAIL:
        raise IntegrityError(f"{size} bytes are not a whole part")
    offset, _, magic = _END.unpack(view)
    stop = size - TAIL
    if magic != b"WSTE" or not len(START) <= offset <= stop - _INDEX.size or size > MAX_PART:
        raise IntegrityError(
            "the part has no end: it is cut short, damaged, or still being written"
        )
    return offset, stop


def parse_index(index: Buffer, tail: Buffer) -> list[Row]:
    """The rows of a part, from its index and its last TAIL bytes.

    Raises:
        IntegrityError: damaged, or beyond a limit of the format.
    """
    view, end = memoryview(index).cast("B"), memoryview(tail).cast("B")
    if len(end) != TAIL:
        raise IntegrityError(f"the part's end has {len(end)} bytes instead of {TAIL}")
    offset, digest, _ = _END.unpack(end)
    if len(view) < _INDEX.size or xxhash.xxh3_128_digest(view) != digest:
        raise IntegrityError("the part's index is damaged: its hash differs")
    magic, count, raw = _INDEX.unpack_from(view)
    if magic != b"WSTI" or count > MAX_FRAMES or raw > min(MAX_ROWS, count * _MAX_ROW):
        raise IntegrityError(f"the part's index claims {count} frames in {raw} bytes")
    rows = zstd.decompress(view[_INDEX.size :], raw, what="the part's index")
    cursor = varint.Cursor(memoryview(rows), what="the part's index")
    out, at = [], len(START)
    for _ in range(count):
        out.append(_parse_row(cursor, at))
        at += out[-1].nbytes
    cursor.finish()
    if at != offset:
        raise IntegrityError(f"the part's index ends its frames at {at}, they end at {offset}")
    return out


def _parse_row(cursor: varint.Cursor, at: int) -> Row:
    nbytes, header, kind = cursor.varint(), cursor.varint(), cursor.byte()
    fits = 0 < header <= MAX_HEADER and header <= nbytes <= header + _MAX_BODY
    if not fits or kind > 1 or at + nbytes > MAX_PART:
        raise IntegrityError(f"the part's index has an impossible frame of {nbytes} bytes at {at}")
    if kind == 0:
        return Row(at, nbytes, header, parse_member(cursor), 1)
    members = cursor.varint()
    if not 0 < members <= MAX_MEMBERS:
        raise IntegrityError(f"the part's index has a group of {members} members at {at}")
    return Row(at, nbytes, header, None, members)


class FrontReader:
    """Frames of a part whose bytes arrive in order, as it grows.

    Holds at most one incomplete frame: some 33 MiB, or 16 MiB more where a group has a table so large.

    Args:
        at: where in the part the first byte lies that is fed: 0, or what `at` of another reader was.
    """

    def __init__(self, at: int = 0) -> None:
        self._data = bytearray()
        self._at = at
        self._wanted = 0
        self._started, self._ended = at > 0, False
        self._failure = ""

    @property
    def at(self) -> int:
        """Where the frame starts that comes next: all before it were handed out."""
        return self._at

    @property
    def ended(self) -> bool:
        """Whether the index was reached: no further frame comes."""
        return self._ended

    def feed(self, data: Buffer) -> list[Frame]:
        """Take the next bytes; the frames that they complete, each checked against its own hashes.

        Raises:
            IntegrityError: not a part, or a damaged frame. So does every later call: read again from `at`.
            NewerFormat: of a newer format.
        """
        frames: list[Frame] = []
        if self._failure:
            raise IntegrityError(self._failure)
        if self._ended:
            return frames
        at = self._at
        self._data += memoryview(data).cast("B")
        try:
            if not self._started and len(self._data) >= len(START):
                self._start()
            while self._started and not self._ended:
                frame = self._next()
                if frame is None:
                    break
                frames.append(frame)
        except (IntegrityError, NewerFormat) as error:
            self._at, self._failure = at, error.message
            self._data.clear()
            raise
        return frames

    def _start(self) -> None:
        start = bytes(self._data[: len(START)])
        if start[:4] == START[:4] and start[4] > FORMAT:
            raise NewerFormat(f"the part has format {start[4]}; upgrade wstore to read it")
        if start != START:
            raise IntegrityError(f"no part starts with {start!r}")
        self._drop(len(START))
        self._started = True

    def _next(self) -> Frame | None:
        if self._data[:4] == b"WSTI":
            self._ended = True
            self._data.clear()
            return None
        if not self._wanted:  # once a frame: its table may be large
            if len(self._data) < 12:
                return None
            with memoryview(self._data) as view:
                size = frame_header.header_size(view)
                if len(view) < size:
                    return None
                self._wanted = size + frame_header.parse(view).body_size
        if len(self._data) < self._wanted:
            return None
        with memoryview(self._data) as view:
            frame = Frame.parse(bytes(view[: self._wanted]))
        self._drop(self._wanted)
        self._wanted = 0
        return frame

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._at += count
