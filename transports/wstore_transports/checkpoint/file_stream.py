"""One pass over one safetensors file: its bytes in order, and the hash and digest of each block.

A block is what a reader fetches and checks by itself, so a slice of a large tensor can be read and still
be verified. Hashing runs on threads beside the consumer, who is uploading meanwhile.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore_codecs import tensors as arrays
from wstore_codecs.digest import TensorDigest, digest_flat
from wstore_codecs.digest_plan import index_map
from wstore_transports.checkpoint.placement import cut_blocks, stored_names
from wstore_transports.checkpoint.safetensors_header import build_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wstore_codecs.block import Block
    from wstore_codecs.tensors import Bits
    from wstore_transports.checkpoint.pieces import Piece

JOIN_BYTES = 256 << 10
"""Blocks below this are handed on joined, so many small tensors are few chunks."""

_AHEAD = 4
"""Blocks that may wait to be hashed while the consumer goes on."""


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


class FileStream:
    """Iterate `chunks()` to its end, then read `blocks` and `hash`.

    The arrays must keep their values until then: chunks are views of their memory.

    Attributes:
        size: of the file in bytes, known before the first chunk.
        blocks: in file order, once the stream has ended.
        hash: xxh3-128 of the whole file, once the stream has ended.
        current: the tensor that the stream is at, for errors.
    """

    def __init__(
        self, pieces: Sequence[Piece], *, metadata: Mapping[str, str] | None = None, url: str = ""
    ) -> None:
        """Raises InvalidArgument for what safetensors cannot say; `url` names the file in errors."""
        names = stored_names(pieces)
        self._head, self._header = build_header(
            ((n, piece.dtype, piece.box.extent) for n, piece in zip(names, pieces, strict=True)),
            metadata=metadata,
            url=url,
        )
        self._pieces = dict(zip(names, pieces, strict=True))
        self.size = self._header.size
        self.blocks: list[StoredBlock] = []
        self.hash = ""
        self.current = ""

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes in order, in chunks of at most 8 MiB."""
        whole = xxhash.xxh3_128(self._head)
        yield memoryview(self._head)
        joined = bytearray()
        waiting: deque[Future[StoredBlock]] = deque()
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "wstore-hash") as pool:
            for piece, box, offset, bits in self._walk():
                data = bits.view("u1").data
                if data.nbytes < JOIN_BYTES:
                    self._settle(waiting, 0)
                    self.blocks.append(hash_block(piece, box, offset, bits))
                    joined += data
                else:
                    waiting.append(pool.submit(hash_block, piece, box, offset, bits))
                if joined and (len(joined) >= JOIN_BYTES or data.nbytes >= JOIN_BYTES):
                    whole.update(joined)
                    yield memoryview(joined)
                    joined = bytearray()
                if data.nbytes >= JOIN_BYTES:
                    whole.update(data)
                    yield data
                self._settle(waiting, _AHEAD)
            self._settle(waiting, 0)
        if joined:
            whole.update(joined)
            yield memoryview(joined)
        self.hash = whole.hexdigest()

    def _walk(self) -> Iterator[tuple[Piece, Block, int, Bits]]:
        for name, entry in self._header.tensors.items():
            piece, offset = self._pieces[name], entry.offset
            self.current = piece.name
            for box, bits in block_bits(piece):
                yield piece, box, offset, bits
                offset += bits.nbytes

    def _settle(self, waiting: deque[Future[StoredBlock]], most: int) -> None:
        while len(waiting) > most:
            self.blocks.append(waiting.popleft().result())


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
