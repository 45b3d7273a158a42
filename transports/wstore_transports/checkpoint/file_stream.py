"""One pass over one safetensors file: its bytes in order, and the hash and digest of each block.

A block is what a reader fetches and checks by itself, so a slice of a large tensor can be read and still
be verified. Hashing runs on threads beside the consumer, who is uploading meanwhile.

The library's own numpy writer corrupts strided and Fortran-ordered arrays and knows no bf16; and both
of its writers hold a second copy of the model.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import xxhash

from wstore_transports.checkpoint.hashing import (
    block_bits,
    elements,
    hash_block,
    hash_run,
    small,
    small_runs,
)
from wstore_transports.checkpoint.placement import stored_names
from wstore_transports.checkpoint.safetensors_header import build_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wstore_codecs.block import Block
    from wstore_codecs.tensors import Bits
    from wstore_transports.checkpoint.hashing import StoredBlock
    from wstore_transports.checkpoint.pieces import Piece

JOIN_BYTES = 256 << 10
"""Blocks below this are handed on joined, so many small tensors are few chunks."""

_AHEAD = 4
"""Blocks that may wait to be hashed while the consumer goes on."""


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
        self,
        pieces: Sequence[Piece],
        *,
        metadata: Mapping[str, str] | None = None,
        url: str = "",
        source: Callable[[Piece], Piece] | None = None,
    ) -> None:
        """Describe the file.

        Args:
            url: names the file in errors.
            source: called with each piece when its turn comes; gives the values that are written.

        Raises:
            InvalidArgument: what safetensors cannot say.
        """
        self._source = source
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
        waiting: deque[Future[list[StoredBlock]]] = deque()
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "wstore-hash") as pool:
            for data, hashed in self._walk():
                if data.nbytes < JOIN_BYTES:
                    self._settle(waiting, 0)
                    self.blocks += hashed()
                    joined += data
                else:
                    waiting.append(pool.submit(hashed))
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

    def _walk(self) -> Iterator[tuple[memoryview, Callable[[], list[StoredBlock]]]]:
        """The tensors' bytes in order, each with the work of hashing it."""
        offset = self._header.data_start
        pieces = (self._pieces[name] for name in self._header.tensors)
        for run in small_runs(pieces if self._source is None else map(self._source, pieces)):
            self.current = run[0].name
            if small(run[0]):
                data = elements(run)
                yield memoryview(data), partial(hash_run, run, data, offset)
                offset += len(data)
                continue
            for box, bits in block_bits(run[0]):
                yield bits.view("u1").data, partial(_hash_one, run[0], box, offset, bits)
                offset += bits.nbytes

    def _settle(self, waiting: deque[Future[list[StoredBlock]]], most: int) -> None:
        while len(waiting) > most:
            self.blocks += waiting.popleft().result()


def _hash_one(piece: Piece, box: Block, offset: int, bits: Bits) -> list[StoredBlock]:
    return [hash_block(piece, box, offset, bits)]
