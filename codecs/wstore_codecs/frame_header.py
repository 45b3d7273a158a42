"""The header of a frame, byte by byte, and what a parser refuses. `docs/format.md` states the same.

    0   4s   "WSTF"
    4   u8   format, 1
    5   u8   flags: 1 has a base, 2 hashes, 4 digests, 8 group, 16 the table is compressed
    6   u8   length of the codec's spec, 1 to 64
    7   u8   length of the dtype's name, 1 to 16
    8   u32  bytes of the header, all of it
    12  u32  bytes of the body
    16  16s  xxh3-128 of the body
    32  16s  xxh3-128 of the base block     with flags 1 and 2
        16s  xxh3-128 of the result block   with flag 2
        16s  digest of the base block       with flags 1 and 4 (lane 0, lane 1: u64 each)
        16s  digest of the result block     with flag 4
        the codec's spec, the dtype's name: ASCII
        u32  bytes of the table, before compression
        the member table, to 8 bytes before the end
        u64  xxh3-64 of all header bytes before it

The member table is a varint count (1 without flag 8), then for each member: varint length of the name,
the name (UTF-8); u8 number of dimensions, plus 128 when the box is the whole tensor; a varint per dimension
of the tensor's shape; unless whole, of the box's origin, then of its extent. With flag 16 it is one zstd
frame that states its content size. All integers are little-endian, varints LEB128.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import dtypes, varint, zstd
from wstore_codecs.base import MAX_SPEC
from wstore_codecs.block import MAX_BLOCK_ELEMENTS, Block
from wstore_codecs.cutting import MAX_MEMBERS, Member, Unit
from wstore_codecs.digest import TensorDigest
from wstore_codecs.digest_plan import IndexMap, index_map
from wstore_codecs.proof import Proof

if TYPE_CHECKING:
    from wstore_codecs.dtypes import DType

MAGIC = b"WSTF"
FORMAT = 1
MAX_NAME = 4096
"""Bytes of a tensor's name in UTF-8."""
MAX_AXES = 32
MAX_TABLE = 16 << 20
"""Bytes of a member table before compression."""
MAX_MEMBER = 2 + MAX_NAME + 1 + 3 * 10 * MAX_AXES
"""The most bytes of a member's row."""
MAX_HEADER = MAX_TABLE + 512

_FIXED = struct.Struct("<4s4BII16s")
_HAS_BASE, _HASHES, _DIGESTS, _GROUP, _PACKED = 1, 2, 4, 8, 16
_WHOLE = 128
_PACK_FROM = 256  # below it, zstd's own frame costs what it saves


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame says of itself.

    Attributes:
        codec: spec of the codec that decodes the body.
        unit: dtype and members.
        body_size: bytes of the body, at most those of the elements.
        body_hash: xxh3-128 of the body.
        base: proof of the block before, for a codec that needs it, else None.
        result: proof of the block after.
    """

    codec: str
    unit: Unit
    body_size: int
    body_hash: bytes
    base: Proof | None
    result: Proof

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.unit.dtype

    @property
    def size(self) -> int:
        """Elements of the block."""
        return self.unit.size

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, decoded."""
        return self.size * self.dtype.itemsize

    def spread(self) -> IndexMap:
        """Where the elements lie in the tensor (of a group: in the packed one), for digests."""
        return spread_of(self.unit)

    def label(self) -> str:
        """What it holds, for messages."""
        return label_of(self.unit)

    def pack(self) -> bytes:
        """The header's bytes. Raises InvalidArgument where a limit of the format is exceeded."""
        table, raw = _pack_table(self.unit)
        codec, kind = self.codec.encode("ascii"), self.dtype.name.encode("ascii")
        if not 0 < len(codec) <= MAX_SPEC:
            raise InvalidArgument(f"codec {self.codec!r}: a spec has 1 to {MAX_SPEC} characters")
        proofs = [proof for proof in (self.base, self.result) if proof is not None]
        hashes = [proof.hash for proof in proofs if proof.hash is not None]
        digests = [proof.digest for proof in proofs if proof.digest is not None]
        if {len(hashes), len(digests)} - {0, len(proofs)}:
            raise InvalidArgument(f"{self.label()}: base and result are proven by different means")
        flags = (
            _HAS_BASE * (self.base is not None)
            | _HASHES * bool(hashes)
            | _DIGESTS * bool(digests)
            | _GROUP * self.unit.grouped
            | _PACKED * (len(table) != raw)
        )
        tail = b"".join(
            (
                *hashes,
                *(struct.pack("<2Q", *digest.lanes) for digest in digests),
                codec,
                kind,
                struct.pack("<I", raw),
                table,
            )
        )
        size = _FIXED.size + len(tail) + 8
        fixed = _FIXED.pack(
            MAGIC, FORMAT, flags, len(codec), len(kind), size, self.body_size, self.body_hash
        )
        return seal(fixed + tail)


def spread_of(unit: Unit) -> IndexMap:
    """Where a unit's elements lie in the tensor that its digest is taken over."""
    if unit.grouped:
        return index_map((unit.size,), tensor=label_of(unit))
    (member,) = unit.members
    block = member.block
    return index_map(block.extent, member.shape, block.origin, tensor=block.tensor)


def label_of(unit: Unit) -> str:
    """What a unit is, for messages."""
    first = unit.members[0].block
    if unit.grouped:
        return f"group of {len(unit.members)} from tensor {first.tensor!r} on"
    if first.origin == (0,) * len(first.origin) and first.extent == unit.members[0].shape:
        return f"tensor {first.tensor!r}"
    return f"tensor {first.tensor!r}, the block at {first.origin} of {first.extent}"


def seal(head: bytes) -> bytes:
    """A header with its checksum."""
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))


def header_size(data: memoryview) -> int:
    """How many bytes the header has that starts here; 12 bytes are enough to tell.

    Raises:
        IntegrityError: no frame starts here, or too few bytes.
        NewerFormat: a frame of a newer format.
    """
    if len(data) < 12:
        raise IntegrityError(f"a frame is cut short: {len(data)} bytes")
    if data[:4] != MAGIC:
        raise IntegrityError(f"no frame starts here: {bytes(data[:4])!r} instead of {MAGIC!r}")
    if data[4] > FORMAT:
        raise NewerFormat(
            f"the frame has format {data[4]}, this version of wstore reads up to {FORMAT}: upgrade it"
        )
    (size,) = struct.unpack_from("<I", data, 8)
    if not _FIXED.size < size <= MAX_HEADER:
        raise IntegrityError(f"a frame claims a header of {size} bytes")
    return int(size)


def parse(data: memoryview) -> FrameHeader:
    """The header at the start of `data`, fully checked.

    Raises:
        IntegrityError: not a header, damaged, cut short, or beyond a limit of the format.
        NewerFormat: of a newer format.
    """
    size = header_size(data)
    head = data[:size]
    if len(head) < size:
        raise IntegrityError(f"a frame's header is cut short: {len(head)} of {size} bytes")
    if xxhash.xxh3_64_intdigest(head[:-8]) != int.from_bytes(head[-8:], "little"):
        raise IntegrityError("a frame's header is damaged: its checksum does not match")
    _, version, flags, codec_size, dtype_size, _, body_size, body_hash = _FIXED.unpack_from(head)
    if version != FORMAT or flags >= 32 or not flags & (_HASHES | _DIGESTS):
        raise IntegrityError(f"a frame of format {version} has flags {flags}")
    cursor = varint.Cursor(head[_FIXED.size : -8], what="a frame's header")
    base, result = _parse_proofs(cursor, flags)
    codec, kind = (_ascii(cursor.take(count)) for count in (codec_size, dtype_size))
    if not 0 < len(codec) <= MAX_SPEC:
        raise IntegrityError(f"a frame names a codec of {len(codec)} characters")
    raw = int.from_bytes(cursor.take(4), "little")
    unit = _parse_table(cursor.rest(), raw, flags, _dtype(kind))
    header = FrameHeader(codec, unit, body_size, body_hash, base, result)
    if header.size > MAX_BLOCK_ELEMENTS:
        raise IntegrityError(f"{header.label()} has {header.size} elements, a frame has fewer")
    if body_size > header.nbytes:
        raise IntegrityError(
            f"{header.label()}: a body of {body_size} bytes for {header.nbytes} bytes of elements"
        )
    return header


def _parse_proofs(cursor: varint.Cursor, flags: int) -> tuple[Proof | None, Proof]:
    has_base = bool(flags & _HAS_BASE)
    hashes: list[bytes | None] = [None, None]
    digests: list[TensorDigest | None] = [None, None]
    for which in (0, 1) if has_base else (1,):
        if flags & _HASHES:
            hashes[which] = bytes(cursor.take(16))
    for which in (0, 1) if has_base else (1,):
        if flags & _DIGESTS:
            digests[which] = TensorDigest(struct.unpack("<2Q", cursor.take(16)))
    base = Proof(hashes[0], digests[0]) if has_base else None
    return base, Proof(hashes[1], digests[1])


def _ascii(data: memoryview) -> str:
    try:
        return str(data, "ascii")
    except UnicodeDecodeError:
        raise IntegrityError(f"a frame's header holds the name {bytes(data)!r}") from None


def _dtype(kind: str) -> DType:
    try:
        return dtypes.dtype(kind)
    except InvalidArgument as error:
        raise IntegrityError(f"a frame has an unknown dtype: {error}") from None


def _pack_table(unit: Unit) -> tuple[bytes, int]:
    """The member table as stored, and its size before compression."""
    rows = [varint.pack(len(unit.members)), *map(pack_member, unit.members)]
    table = b"".join(rows)
    if len(table) > MAX_TABLE:
        raise InvalidArgument(f"a member table of {len(table)} bytes; a frame has {MAX_TABLE}")
    if unit.grouped and len(table) >= _PACK_FROM:
        packed = zstd.compress(table, zstd.level(3))
        if len(packed) < len(table):
            return packed, len(table)
    return table, len(table)


def pack_member(member: Member) -> bytes:
    """A member's row. Raises InvalidArgument where a limit of the format is exceeded."""
    block = member.block
    try:
        name = block.tensor.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tensor {block.tensor[:80]!r}: a name that is not UTF-8") from error
    if len(name) > MAX_NAME or len(member.shape) > MAX_AXES:
        raise InvalidArgument(
            f"tensor {block.tensor[:80]!r}: a name of {len(name)} bytes and {len(member.shape)} "
            f"dimensions; a frame takes {MAX_NAME} and {MAX_AXES}"
        )
    whole = block.extent == member.shape
    numbers = member.shape if whole else (*member.shape, *block.origin, *block.extent)
    return b"".join(
        (
            varint.pack(len(name)),
            name,
            bytes([len(member.shape) | _WHOLE * whole]),
            *map(varint.pack, numbers),
        )
    )


def parse_member(cursor: varint.Cursor) -> Member:
    """The row that comes next. Raises IntegrityError for what no writer writes."""
    length = cursor.varint()
    if length > MAX_NAME:
        raise IntegrityError(f"a frame holds a name of {length} bytes")
    try:
        name = str(cursor.take(length), "utf-8")
    except UnicodeDecodeError:
        raise IntegrityError("a frame holds a name that is not UTF-8") from None
    rank, whole = divmod(cursor.byte(), _WHOLE)[::-1]
    if rank > MAX_AXES:
        raise IntegrityError(f"tensor {name!r} has {rank} dimensions in a frame")
    shape = tuple(cursor.varint() for _ in range(rank))
    try:
        if whole:
            return Member.whole(name, shape)
        origin = tuple(cursor.varint() for _ in range(rank))
        extent = tuple(cursor.varint() for _ in range(rank))
        if extent == shape:
            raise IntegrityError(f"tensor {name!r}: a whole box that is not marked so")
        return Member(Block(name, origin, extent), shape)
    except InvalidArgument as error:
        raise IntegrityError(f"a frame holds an impossible box: {error}") from None


def _parse_table(stored: memoryview, raw: int, flags: int, dtype: DType) -> Unit:
    if raw > MAX_TABLE or len(stored) > raw:
        raise IntegrityError(f"a frame's member table has {len(stored)} bytes, {raw} unpacked")
    table = stored
    if flags & _PACKED:
        table = memoryview(zstd.decompress(stored, raw, what="a frame's member table"))
    if len(table) != raw:
        raise IntegrityError(f"a frame's member table has {len(table)} of {raw} bytes")
    cursor = varint.Cursor(table, what="a frame's member table")
    count, grouped = cursor.varint(), bool(flags & _GROUP)
    if not 0 < count <= MAX_MEMBERS or (count > 1 and not grouped):
        raise IntegrityError(f"a frame claims {count} members")
    unit = Unit(dtype, tuple(parse_member(cursor) for _ in range(count)), grouped)
    cursor.finish()
    try:
        spread_of(unit)
    except InvalidArgument as error:
        raise IntegrityError(f"a frame of an impossible tensor: {error}") from None
    return unit
