"""The frame: one block or group of a model, encoded, labelled and proven. The unit of storage.

`encode` and `decode` take any arrays that `tensors` knows. What a frame declares is checked in this order,
and nothing is written before the last one: the header's own checksum and limits, the body's hash, the
base. What was decoded is proven by the result's hash before it is handed out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

import numpy as np
import xxhash

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import base as registry
from wstore_codecs import frame_header, tensors
from wstore_codecs.block import MAX_BLOCK_ELEMENTS, Block
from wstore_codecs.changes import patch_digest
from wstore_codecs.cutting import Member, Unit
from wstore_codecs.digest import digest_block, digest_each, digest_flat
from wstore_codecs.frame_header import FrameHeader, label_of, spread_of
from wstore_codecs.proof import Proof, hash_bits, proves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from wstore_codecs.base import Codec, Encoded
    from wstore_codecs.changes import Changes
    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.tensors import A, Array, Bits, HostArray

RAW = "raw"
"""The codec that a block is stored with when another one would make it no smaller."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame in memory.

    Attributes:
        header: what it says of itself.
        pieces: its bytes in order, the header first.
        listed: what the body lists, where somebody has decoded it already (`decoded`).
    """

    header: FrameHeader
    pieces: tuple[Buffer, ...]
    listed: Changes | None = field(default=None, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the frame, header and body."""
        return sum(memoryview(piece).nbytes for piece in self.pieces)

    @property
    def unchanged(self) -> bool:
        """Whether the block after is proven to be the block before."""
        return self.header.base is not None and self.header.base == self.header.result

    def tobytes(self) -> bytes:
        """All of it, joined."""
        return b"".join(self.pieces)

    @classmethod
    def parse(cls, data: Buffer) -> Frame:
        """The frame that `data` holds, checked against its own hashes; shares the memory.

        Raises:
            IntegrityError: no frame, damaged, cut short, bytes too many, or beyond a limit.
            NewerFormat: of a newer format.
        """
        frame = cls.parse_proven(data)
        header = frame.header
        if xxhash.xxh3_128_digest(frame.body()) != header.body_hash:
            raise IntegrityError(f"{header.label()}: the frame's body is damaged, its hash differs")
        return frame

    @classmethod
    def parse_proven(cls, data: Buffer) -> Frame:
        """As `parse`, where another hash proves these bytes: that of the body is not taken."""
        view = memoryview(data).cast("B")
        header = frame_header.parse(view)
        size = frame_header.header_size(view)
        body = view[size:]
        if len(body) != header.body_size:
            raise IntegrityError(
                f"{header.label()}: the frame's body has {len(body)} bytes instead of {header.body_size}"
            )
        return cls(header, (view[:size], body))

    def decoded(self, most: int) -> Frame:
        """The same with what it lists, so that an apply is the shorter; itself where that cannot be listed
        without the block, or takes more than `most` bytes.

        Raises:
            IntegrityError: the body is damaged.
        """
        codec = registry.listing_codec(self.header.codec)
        if codec is None or codec.needs_whole_base or not self.header.size:
            return self
        size, dtype = self.header.size, self.header.dtype
        if codec.count(self.body(), size) * (4 + dtype.itemsize) > most:
            return self
        return replace(self, listed=codec.changes(self.body(), None, size, dtype))

    def body(self) -> memoryview:
        """The body in one piece; joined when it is in several."""
        rest = self.pieces[1:]
        if len(rest) == 1:
            return memoryview(rest[0]).cast("B")
        return memoryview(b"".join(rest))


def encode(
    new: Array,
    base: Array | None = None,
    *,
    codec: str = "auto",
    name: str = "",
    shape: Sequence[int] | None = None,
    origin: Sequence[int] | None = None,
    base_proof: Proof | None = None,
    digests: bool = False,
) -> Frame:
    """The frame of one block. Keeps no reference to the arrays. Deterministic.

    Args:
        new: the block, at most 4 Mi elements: numpy, ml_dtypes or torch, any strides, any device.
        base: the block before, of equal dtype and shape; None for a block that stands alone.
        codec: which codec (`base.codec`).
        name: the tensor's name.
        shape: the whole tensor's shape, by default that of `new`.
        origin: where the block starts in it, by default at zero.
        base_proof: what proves `base`, when that is known, such as the result of the frame that made
            it: saves hashing it again. With a digest in it, the frame proves both by digests, too. When
            `base` is another block, holders of the whole refuse the frame, those of a part cannot tell.
        digests: prove by digests, too; always so for a tensor on a device, where a delta that is made
            there has no other proof.

    Raises:
        InvalidArgument: arrays that weights cannot be stored as, that do not belong together, or that
            are too large; an unknown codec; a codec that needs a base and gets none.
        IntegrityError: on a device, a `base` that is not what `base_proof` proves.
    """
    info = tensors.describe(new, name=name)
    where = (0,) * len(info.shape) if origin is None else tuple(origin)
    whole = info.shape if shape is None else tuple(shape)
    unit = Unit(info.dtype, (Member(Block(name, where, info.shape), whole),), grouped=False)
    return encode_unit(
        unit,
        (new,),
        None if base is None else (base,),
        codec=codec,
        base_proof=base_proof,
        digests=digests,
    )


def encode_unit(
    unit: Unit,
    new: Sequence[Array],
    base: Sequence[Array] | None = None,
    *,
    codec: str = "auto",
    base_proof: Proof | None = None,
    digests: bool = False,
) -> Frame:
    """The frame of a block or a group; `new` and `base` have one array a member. As `encode`."""
    # Frames of a device are a chain, and the ones that are made there have nothing but digests.
    digests = digests or any(tensors.on_device(array) is not None for array in new)
    chosen = registry.codec(codec)
    if unit.size > MAX_BLOCK_ELEMENTS:
        raise InvalidArgument(
            f"{label_of(unit)} has {unit.size} elements, a frame at most {MAX_BLOCK_ELEMENTS}: cut it"
        )
    check_arrays(unit, new)
    if base is None:
        if chosen.needs_base:
            raise InvalidArgument(f"{label_of(unit)}: codec {codec!r} needs a base")
    else:
        check_arrays(unit, base)
    if base is not None and not unit.grouped:
        made = _encode_on_device(unit, new[0], base[0], chosen, base_proof)
        if made is not None:
            return made
    new_bits = pack_bits(unit, new)
    old_bits = None if base is None else pack_bits(unit, base)
    return _encode_bits(unit, new_bits, old_bits, chosen, base_proof, digests)


def _encode_on_device(
    unit: Unit, new: Array, base: Array, codec: Codec, base_proof: Proof | None
) -> Frame | None:
    a, b = tensors.on_device(base), tensors.on_device(new)
    if a is None or b is None or a.device != b.device or not unit.size:
        return None
    from wstore_codecs import device

    made = device.encode_changes(unit, b, a, codec, base_proof)
    return None if made is None else build(unit, *made)


def _encode_bits(
    unit: Unit,
    new: Bits,
    old: Bits | None,
    codec: Codec,
    base_proof: Proof | None,
    digests: bool,
) -> Frame:
    if new.size == 0:
        codec, old = registry.codec(RAW), None
    encoded = codec.encode(new, old, unit.dtype) if new.size else registry.Encoded(RAW, ())
    if encoded.nbytes >= new.nbytes and encoded.codec != RAW:
        encoded = registry.codec(RAW).encode(new, None, unit.dtype)
    digests = digests or (base_proof is not None and base_proof.digest is not None)
    spread = spread_of(unit)
    if old is None or not registry.codec(encoded.codec).needs_base:
        result = Proof(hash_bits(new), digest_flat(new, spread) if digests else None)
        return build(unit, encoded, None, result)
    known_hash, known_digest = (
        (base_proof.hash, base_proof.digest) if base_proof is not None else (None, None)
    )
    old_hash = hash_bits(old) if known_hash is None else known_hash
    if encoded.changes is not None and not encoded.changes.count:
        new_hash = old_hash
    else:
        new_hash = hash_bits(new)
    if not digests:
        return build(unit, encoded, Proof(old_hash), Proof(new_hash))
    old_digest = digest_flat(old, spread) if known_digest is None else known_digest
    if encoded.changes is not None:
        new_digest = old_digest + patch_digest(old, encoded.changes, spread)
    else:
        new_digest = digest_flat(new, spread)
    return build(unit, encoded, Proof(old_hash, old_digest), Proof(new_hash, new_digest))


def build(unit: Unit, encoded: Encoded, base: Proof | None, result: Proof) -> Frame:
    """The frame of a body that was made and proven elsewhere."""
    hasher = xxhash.xxh3_128()
    for piece in encoded.pieces:
        hasher.update(memoryview(piece).cast("B"))
    header = FrameHeader(encoded.codec, unit, encoded.nbytes, hasher.digest(), base, result)
    return Frame(header, (header.pack(), *encoded.pieces))


@overload
def decode(frame: Frame | Buffer, base: Array | None = None) -> HostArray: ...


@overload
def decode(frame: Frame | Buffer, base: Array | None, out: A) -> A: ...


def decode(frame: Frame | Buffer, base: Array | None = None, out: Array | None = None) -> Array:
    """The block that a frame holds, of the header's dtype and extent.

    Args:
        frame: a frame of one block, or its bytes.
        base: the block before, where the frame needs it.
        out: where to, in host memory, any strides; written only once the result is proven. By default
            a fresh numpy array.

    Raises:
        IntegrityError: the frame is damaged, `base` is not the block that it was made from, or the
            result is not what was encoded.
        InvalidArgument: no base where one is needed, arrays of another dtype or shape, `out` read-only
            or overlapping `base`, a group, an unknown codec.
        NewerFormat: a frame of a newer format.
    """
    parsed = frame if isinstance(frame, Frame) else Frame.parse(frame)
    header = parsed.header
    if header.unit.grouped:
        raise InvalidArgument(f"{header.label()}: decode it with decode_unit")
    into = None if out is None else _writable(header, out, base)
    (array,) = decode_unit(parsed, None if base is None else (base,))
    if out is None or into is None:
        return array
    np.copyto(into, array.view(header.dtype.bits))
    return out


def _writable(header: FrameHeader, out: Array, base: Array | None) -> Bits:
    check_arrays(header.unit, (out,))
    if tensors.on_device(out) is not None:
        raise InvalidArgument(f"{header.label()}: `out` is not in host memory")
    tensors.check_writable(out, name=header.label())
    into = tensors.bit_view(out, name=header.label())
    if base is not None and tensors.on_device(base) is None:
        old = tensors.bit_view(base, name=header.label())
        if np.may_share_memory(into, old):
            raise InvalidArgument(
                f"{header.label()}: `out` overlaps `base`; `apply` works in place"
            )
    return into


def decode_unit(frame: Frame, base: Sequence[Array] | None = None) -> list[HostArray]:
    """The arrays of a frame's members, in order; views of one fresh array. Raises as `decode`."""
    header = frame.header
    old = None
    if header.base is not None:
        if base is None:
            raise InvalidArgument(f"{header.label()}: a {header.codec} frame needs its base")
        check_arrays(header.unit, base)
        old = pack_bits(header.unit, base)
        check_base(header, old)
    bits = decode_bits(frame, old)
    return unpack_bits(header.unit, bits)


def member_digests(frame: Frame, arrays: Sequence[Array]) -> list[TensorDigest]:
    """The digest of each member's values, at their place in its tensor: the header's where that says it.

    Args:
        arrays: the values that the frame leads to, one a member.
    """
    unit, digest = frame.header.unit, frame.header.result.digest
    if not unit.grouped and digest is not None:
        return [digest]
    if all(member.block.extent == member.shape for member in unit.members):
        return digest_each(pack_bits(unit, arrays), [m.block.size for m in unit.members])
    return [
        digest_block(array, m.shape, m.block.origin, name=m.block.tensor)
        for m, array in zip(unit.members, arrays, strict=True)
    ]


def check_base(header: FrameHeader, old: Bits) -> None:
    """Raises IntegrityError unless these bits are the base that a frame was made from."""
    if header.base is not None and not proves(header.base, old, header.spread()):
        raise IntegrityError(
            f"{header.label()}: this is not the block that the frame was made from: another version, "
            "or the frame was applied already"
        )


def check_result(header: FrameHeader, new: Bits) -> None:
    """Raises IntegrityError unless these bits are the ones that were encoded."""
    if not proves(header.result, new, header.spread()):
        raise IntegrityError(f"{header.label()}: the result is not the block that was encoded")


def decode_bits(frame: Frame, old: Bits | None) -> Bits:
    """Fresh bits of a frame whose base was checked, proven."""
    header = frame.header
    bits = np.empty(header.size, header.dtype.bits)
    if header.size:
        codec = registry.codec(header.codec)
        if codec.needs_base != (header.base is not None):
            raise IntegrityError(f"{header.label()}: a {header.codec} frame with the wrong proofs")
        codec.decode(frame.body(), old, bits, header.dtype)
    check_result(header, bits)
    return bits


def check_arrays(unit: Unit, arrays: Sequence[Array]) -> None:
    """Raises InvalidArgument unless there is one array a member, of its dtype and extent."""
    if len(arrays) != len(unit.members):
        raise InvalidArgument(
            f"{label_of(unit)}: {len(arrays)} arrays for {len(unit.members)} members"
        )
    for member, array in zip(unit.members, arrays, strict=True):
        name = member.block.tensor
        info = tensors.describe(array, name=name)
        if (info.dtype, info.shape) != (unit.dtype, member.block.extent):
            raise InvalidArgument(
                f"tensor {name!r}: {info.dtype.name} {info.shape} where the block is "
                f"{unit.dtype.name} {member.block.extent}"
            )


def pack_bits(unit: Unit, arrays: Sequence[Array]) -> Bits:
    """The elements as contiguous host bits: of a contiguous host array its own memory, else a copy."""
    flat = [_flat(a, m.block.tensor) for m, a in zip(unit.members, arrays, strict=True)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def _flat(array: Array, name: str) -> Bits:
    bits = tensors.bit_view(array, name=name)
    return np.require(bits, requirements=["C", "A"]).reshape(-1)


def unpack_bits(unit: Unit, bits: Bits) -> list[HostArray]:
    """Views of packed bits as the members' arrays."""
    arrays, at = [], 0
    for member in unit.members:
        part = bits[at : at + member.block.size]
        arrays.append(part.view(unit.dtype.numpy).reshape(member.block.extent))
        at += member.block.size
    return arrays
