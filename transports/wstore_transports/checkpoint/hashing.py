"""Hash and digest of pieces, block by block; many small tensors together, for few calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore_codecs import tensors as arrays
from wstore_codecs.digest import TensorDigest, digest_each, digest_flat
from wstore_codecs.digest_plan import index_map
from wstore_transports.checkpoint.placement import cut_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wstore_codecs.block import Block
    from wstore_codecs.tensors import Bits
    from wstore_transports.checkpoint.pieces import Piece

SMALL_BYTES = 4 << 10
"""Whole tensors up to this size are copied and hashed together: calls cost more than their bytes."""

RUN_TENSORS = 1_000
"""Small tensors that are taken together, so at most 4 MB are."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block as it was streamed.

    Attributes:
        piece: what it is a part of.
        box: where it lies in the tensor.
        offset, nbytes: where it lies in the file.
        hash: xxh3-128 of its bytes, 32 hex digits.
        digest: the additive digest of its elements, at their place in the tensor.
    """

    piece: Piece
    box: Block
    offset: int
    nbytes: int
    hash: str
    digest: TensorDigest


def block_bits(piece: Piece) -> Iterator[tuple[Block, Bits]]:
    """A piece's blocks in order, each with its elements' bits as a flat contiguous array.

    Device tensors come to the host one chunk at a time.
    """
    boxes = list(cut_blocks(piece.box, piece.dtype.itemsize))
    for box in boxes:
        part = piece.array if len(boxes) == 1 else piece.array[piece.box.local(box).slices()]
        chunks = list(arrays.bit_chunks(part, name=piece.name))
        yield box, chunks[0] if len(chunks) == 1 else _joined(chunks, piece)


def _joined(chunks: list[Bits], piece: Piece) -> Bits:
    return np.concatenate([np.empty(0, piece.dtype.bits), *chunks])


def hash_block(piece: Piece, box: Block, offset: int, bits: Bits) -> StoredBlock:
    """Hash and digest one block."""
    spread = index_map(box.extent, piece.shape, box.origin, tensor=piece.name)
    return StoredBlock(
        piece,
        box,
        offset,
        bits.nbytes,
        xxhash.xxh3_128_hexdigest(bits.view("u1").data),
        digest_flat(bits, spread),
    )


def small(piece: Piece) -> bool:
    """Whether the piece is hashed together with others."""
    return piece.box.extent == piece.shape and 0 < piece.nbytes <= SMALL_BYTES


def small_runs(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Groups of consecutive pieces that can be hashed together; a piece that is not small is alone."""
    for key, group in itertools.groupby(pieces, lambda p: p.dtype.itemsize if small(p) else 0):
        yield from _batches(group, RUN_TENSORS if key else 1)


def elements(run: Sequence[Piece]) -> bytes:
    """The row-major bytes of small pieces, one behind the other: a copy."""
    return b"".join(
        piece.array.tobytes()
        if isinstance(piece.array, np.ndarray)
        else arrays.bit_view(piece.array, name=piece.name).tobytes()
        for piece in run
    )


def hash_run(run: Sequence[Piece], data: bytes, offset: int = 0) -> list[StoredBlock]:
    """Hash and digest each piece of a run of small ones.

    Args:
        data: their `elements`.
        offset: where that lies in the file.
    """
    digests = digest_each(np.frombuffer(data, run[0].dtype.bits), [piece.box.size for piece in run])
    view, start, stored = memoryview(data), 0, []
    for piece, digest in zip(run, digests, strict=True):
        nbytes = piece.nbytes
        text = xxhash.xxh3_128_hexdigest(view[start : start + nbytes])
        stored.append(StoredBlock(piece, piece.box, offset + start, nbytes, text, digest))
        start += nbytes
    return stored


def _batches(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    pieces = iter(pieces)
    while batch := list(itertools.islice(pieces, most)):
        yield batch
