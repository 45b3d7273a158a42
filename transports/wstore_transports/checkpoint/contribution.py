"""What one rank adds to a version: the objects, tensors and metadata of its done marker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from wstore_transports.versions.documents import Block, ObjectRef, Tensor

if TYPE_CHECKING:
    from wstore_transports.checkpoint.file_stream import FileStream
    from wstore_transports.checkpoint.hashing import StoredBlock
    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.checkpoint.sharing import Shared
    from wstore_transports.versions import Attempt
    from wstore_transports.versions.documents import Manifest


class Contribution:
    """Collects what `Attempt.done` takes.

    Attributes:
        objects: own ones and shared ones, each once.
        tensors: this rank's blocks by tensor.
        metadata: of the manifest.
        written_nbytes: bytes of own objects.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._index: dict[str, int] = {}
        self.objects: list[ObjectRef] = []
        self.tensors: dict[str, Tensor] = {}
        self.metadata: dict[str, str] = {}
        self.written_nbytes = 0

    def add_written(self, name: str, stream: FileStream) -> None:
        """Add a file that was streamed to the attempt's object `name`."""
        index = self._own_object(name, stream.size, stream.hash)
        for stored in stream.blocks:
            self._tensor(stored.piece).blocks.append(_block(stored, index))

    def add_shared(self, shared: Shared, base: Manifest) -> None:
        """Add a piece as the previous version stores it."""
        tensor = self._tensor(shared.piece)
        for block in shared.blocks:
            index = self._object(base.objects[block.object])
            tensor.blocks.append(
                Block(
                    origin=block.origin,
                    extent=block.extent,
                    object=index,
                    offset=block.offset,
                    nbytes=block.nbytes,
                    hash=block.hash,
                    digest=block.digest,
                )
            )

    def add_file(self, key: str, name: str, data: bytes) -> None:
        """Add an extra file, found by `key` in the manifest's metadata."""
        index = self._own_object(name, len(data), xxhash.xxh3_128_hexdigest(data))
        self.metadata[key] = self.objects[index].name

    def _own_object(self, name: str, size: int, digest: str) -> int:
        self.written_nbytes += size
        return self._object(ObjectRef(name=self._attempt.object_name(name), size=size, hash=digest))

    def _object(self, ref: ObjectRef) -> int:
        index = self._index.setdefault(ref.name, len(self.objects))
        if index == len(self.objects):
            self.objects.append(ref)
        return index

    def _tensor(self, piece: Piece) -> Tensor:
        found = self.tensors.get(piece.name)
        if found is None:
            found = Tensor(dtype=piece.dtype.name, shape=list(piece.shape), blocks=[])
            self.tensors[piece.name] = found
        return found


def _block(stored: StoredBlock, index: int) -> Block:
    return Block(
        origin=list(stored.box.origin),
        extent=list(stored.box.extent),
        object=index,
        offset=stored.offset,
        nbytes=stored.nbytes,
        hash=stored.hash,
        digest=stored.digest.hex,
    )
