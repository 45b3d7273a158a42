"""`planes`: dense weights as byte planes, each stored in the way that suits it.

The bytes of a float's elements differ in kind: the exponent takes few values, the mantissa is noise.
So byte k of all elements is put side by side (a plane), the exponent is squeezed by Huffman codes, and
noise is stored as it is. bf16 weights take 1.47 times less than plain at twice the speed of zstd over
whole elements.

**Body**, for a block of n elements of w bytes:

    u8      flags: bit 0 set: the elements are turned; the other bits are 0
    w times, the most significant plane first:
        u8      mode: 0 constant, 1 stored, 2 zstd
        LEB128  bytes of the plane's data, only where the mode is 2
    w times, in the same order: the plane's data:
        constant    1 byte, the value of all n
        stored      n bytes
        zstd        one Zstandard frame that declares a content size of n, as codec `zstd` has it

Turned: before the split the upper 16 bits of each element (as an unsigned integer) are rotated left by
one, so that the sign leaves the exponent's byte: bit 15 of these 16 becomes their bit 0. Encoders turn
F16, BF16, F32 and F64; elements of one byte are never turned.

A decoder refuses, before it takes memory: a body of more bytes than the block, other flags or modes, a
data length that is zero or at least n, a body that ends elsewhere than its last plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import varint, zstd
from wstore_codecs.base import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

Plane: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"

CONSTANT, STORED, COMPRESSED = 0, 1, 2
TURNED = 1
"""The flag of elements whose upper 16 bits were rotated."""

_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_RUNS, _RUN = 8, 2048
_WORTH = 0.97
"""A plane that would shrink to more than this is stored: it would cost the time of the others."""
_REPEATS = 0.95
"""How much smaller than by Huffman codes alone zstd must make the sample for its search to be used."""


def is_turned(dtype: DType) -> bool:
    """Whether the elements of this type are turned before they are split."""
    return dtype.name in _FLOATS


class Planes:
    """Byte planes. Takes no parameter."""

    spec = "planes"
    needs_base = False

    def __init__(self, parameter: str = "") -> None:
        if parameter:
            raise InvalidArgument(f"codec 'planes' has no parameter {parameter!r}")

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """Splits and encodes; takes up to twice the block's memory, the body included."""
        from wstore_codecs.kernels import planes as kernels

        return self.encode_planes(kernels.split(new, turned=is_turned(dtype)), dtype)

    def encode_planes(self, planes: Sequence[Plane], dtype: DType) -> Encoded:
        """The body for planes that were split elsewhere, as `kernels.planes.split` does with
        `is_turned(dtype)`. Keeps those that are stored; the caller must not change them."""
        header = bytearray([TURNED if is_turned(dtype) else 0])
        pieces: list[Buffer] = []
        for plane in planes:
            mode, piece = _encode_plane(plane)
            header.append(mode)
            if mode == COMPRESSED:
                header += varint.pack(len(piece))
            pieces.append(piece)
        return Encoded(self.spec, (bytes(header), *pieces))

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Fills `out`; takes up to the block's memory, and as much again while a plane is unpacked."""
        from wstore_codecs.kernels import planes as kernels

        planes, turned = self.decode_planes(body, out.size, out.itemsize)
        kernels.merge(planes, out, turned=turned)

    def decode_planes(self, body: memoryview, size: int, width: int) -> tuple[list[Plane], bool]:
        """The planes that a body holds, the most significant first, and whether the elements are
        turned: for merging elsewhere. Read-only, partly views of the body. Raises IntegrityError."""
        if body.nbytes > size * width:
            raise IntegrityError(f"a planes body of {body.nbytes} bytes for {size * width}")
        cursor = varint.Cursor(body, what="a planes body")
        flags = cursor.byte()
        if flags > (TURNED if width > 1 else 0):
            raise IntegrityError(f"a planes body with unknown flags {flags:#x}")
        heads = [_plane_head(cursor, size) for _ in range(width)]
        parts = [(mode, cursor.take(length)) for mode, length in heads]
        cursor.finish()
        return [_decode_plane(mode, data, size) for mode, data in parts], bool(flags & TURNED)


def _encode_plane(plane: Plane) -> tuple[int, bytes | memoryview]:
    """The plane's mode and data."""
    if plane[0] == plane[-1] and bool((plane == plane[0]).all()):
        return CONSTANT, plane[:1].tobytes()
    settings = _settings(plane)
    if settings is not None:
        data = zstd.compress(plane.data, settings)
        if len(data) < plane.size:
            return COMPRESSED, data
    return STORED, plane.data


def _settings(plane: Plane) -> zstd.Settings | None:
    """How to compress a plane, judged by a sample of 16 KiB; None: not at all."""
    sample = plane
    if plane.size > _RUNS * _RUN:
        starts = np.linspace(0, plane.size - _RUN, _RUNS).astype(np.int64)
        sample = np.concatenate([plane[start : start + _RUN] for start in starts])
    counts = np.bincount(sample, minlength=256)
    shares = counts[counts > 0] / sample.size
    by_codes = max(float(-(shares * np.log2(shares)).sum()) / 8, 1 / 8)
    by_search = len(zstd.compress(sample.data, zstd.level(1))) / sample.size
    if min(by_codes, by_search) > _WORTH:
        return None
    return zstd.level(1) if by_search < by_codes * _REPEATS else zstd.ENTROPY_ONLY


def _plane_head(cursor: varint.Cursor, size: int) -> tuple[int, int]:
    """The mode of a plane and the bytes of its data."""
    mode = cursor.byte()
    if mode == CONSTANT:
        return mode, 1
    if mode == STORED:
        return mode, size
    if mode != COMPRESSED:
        raise IntegrityError(f"a planes body with an unknown mode {mode}")
    length = cursor.varint()
    if not 0 < length < size:
        raise IntegrityError(f"a planes body: {length} bytes for a plane of {size}")
    return mode, length


def _decode_plane(mode: int, data: memoryview, size: int) -> Plane:
    if mode == CONSTANT:
        plane = np.full(size, data[0], np.uint8)
        plane.flags.writeable = False
        return plane
    if mode == STORED:
        return np.frombuffer(data, np.uint8)
    return np.frombuffer(zstd.decompress(data, size, what="a planes body"), np.uint8)
