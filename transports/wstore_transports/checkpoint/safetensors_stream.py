"""Writes safetensors files as a stream of chunks: no tensor is copied whole, nothing is held twice.

The library's own numpy writer corrupts strided and Fortran-ordered arrays and knows no bf16; and both
of its writers hold a second copy of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import InvalidArgument
from wstore_codecs import digest, tensors
from wstore_codecs.digest_plan import index_map
from wstore_transports.checkpoint.safetensors_header import build_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wstore_codecs.block import Shape
    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.safetensors_header import Header

SMALL_BYTES = 64 << 10
"""Chunks below this are joined into one of up to `JOINED_BYTES`, so that 100,000 small tensors do not
become 100,000 writes."""
JOINED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor to write: an array, and which box of the whole tensor it is.

    Attributes:
        name: its name in the file.
        array: its elements: numpy or torch, any strides, any device.
        shape: the whole tensor's shape; None when the array is the whole tensor.
        origin: where the array starts in it; None for its start.
    """

    name: str
    array: Array
    shape: Shape | None = None
    origin: Shape | None = None


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """What one tensor's bytes were as they were streamed.

    Attributes:
        digest: of its elements, at their places in the whole tensor.
        xxh3: xxh3-128 of its bytes in the file, 32 hex digits.
    """

    digest: TensorDigest
    xxh3: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a whole file's bytes were.

    Attributes:
        size: in bytes.
        xxh3: xxh3-128 of all its bytes, 32 hex digits.
        tensors: by name, in file order.
    """

    size: int
    xxh3: str
    tensors: Mapping[str, WrittenTensor]


class SafetensorsStream:
    """One pass over one file: iterate `chunks()` to its end, then read `written`.

    The arrays must keep their values until the iteration ends: chunks are views of their memory, and
    a hash proves what was streamed, not what an array held when the stream was made. A chunk is valid
    until the next one is asked for or longer; consumers must not write to it.

    Attributes:
        header: the file's table of contents (offsets, size), known before the first chunk.
    """

    header: Header

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        metadata: Mapping[str, str] | None = None,
        url: str = "",
    ) -> None:
        """Raises InvalidArgument for arrays that weights cannot be stored as, boxes outside their
        shape, and what `build_header` refuses; `url` names the file in errors."""
        infos = [tensors.describe(s.array, name=s.name) for s in sources]
        rows = [(s.name, i.dtype, i.shape) for s, i in zip(sources, infos, strict=True)]
        self._head, self.header = build_header(rows, metadata=metadata, url=url)
        self._sources = {s.name: s for s in sources}
        self._spreads = {
            s.name: index_map(i.shape, s.shape, s.origin, tensor=s.name)
            for s, i in zip(sources, infos, strict=True)
        }
        self._url = url
        self._written: WrittenFile | None = None
        self._taken = False

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes in order, in chunks of at most 8 MiB; small tensors are joined.

        Hashing happens between the chunks, in the thread that iterates. Can be taken once: a stream
        whose arrays may have moved on is made anew. Raises InvalidArgument the second time.
        """
        if self._taken:
            raise InvalidArgument("this stream was taken already: make a new one", url=self._url)
        self._taken = True
        return self._run()

    @property
    def written(self) -> WrittenFile:
        """Hashes of what `chunks` yielded. Raises InvalidArgument before it reached its end."""
        if self._written is None:
            raise InvalidArgument("the stream has not reached its end", url=self._url)
        return self._written

    def _run(self) -> Iterator[memoryview]:
        whole = xxhash.xxh3_128()
        size = 0
        done: dict[str, WrittenTensor] = {}
        for chunk in _joined(self._bytes(done)):
            whole.update(chunk)
            size += chunk.nbytes
            yield chunk
        self._written = WrittenFile(size, whole.hexdigest(), done)

    def _bytes(self, done: dict[str, WrittenTensor]) -> Iterator[memoryview]:
        for at in range(0, len(self._head), tensors.CHUNK_BYTES):
            yield memoryview(self._head)[at : at + tensors.CHUNK_BYTES]
        for name in self.header.tensors:
            yield from _tensor(self._sources[name], self._spreads[name], done)


def _tensor(
    source: Source, spread: IndexMap, done: dict[str, WrittenTensor]
) -> Iterator[memoryview]:
    """One tensor's bytes; its hashes go into `done` when the last were taken."""
    total, body, first = digest.TensorDigest(), xxhash.xxh3_128(), 0
    for chunk in tensors.bit_chunks(source.array, name=source.name):
        data = chunk.view(np.uint8).data
        body.update(data)
        total += digest.digest_flat(chunk, spread, first=first)
        first += chunk.size
        yield data
    done[source.name] = WrittenTensor(total, body.hexdigest())


def _joined(chunks: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes; runs of small chunks as one."""
    pending = bytearray()
    for chunk in chunks:
        if chunk.nbytes < SMALL_BYTES:
            pending += chunk
            if len(pending) >= JOINED_BYTES - SMALL_BYTES:
                yield memoryview(pending)
                pending = bytearray()
            continue
        if pending:
            yield memoryview(pending)
            pending = bytearray()
        yield chunk
    if pending:
        yield memoryview(pending)
