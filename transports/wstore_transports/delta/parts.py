"""Frames into parts, and parts to the store while later frames are still made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wstore_codecs.frame import Frame
from wstore_codecs.part import START, PartWriter
from wstore_transports.versions.documents import Block, ObjectRef, Tensor

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from wstore.path import StoragePath
    from wstore_codecs.part import Row
    from wstore_transports.checkpoint.hashing import StoredBlock
    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.delta.encoding import Made
    from wstore_transports.delta.spool import Kept, Spool

PART_BYTES = 4 << 20
"""Where a part ends and the next begins: small, so that readers begin to read early."""

UPLOADS = 4
"""Parts that are uploaded at once."""


class Destination:
    """Where a rank's parts go: an attempt, or the anchor of a version.

    Attributes:
        path: where to write an own object.
        object_name: its name relative to the root.
        prefix: what the names of the parts begin with, such as "r00000.p".
    """

    def __init__(
        self,
        path: Callable[[str], StoragePath],
        object_name: Callable[[str], str],
        prefix: str,
    ) -> None:
        self.path = path
        self.object_name = object_name
        self.prefix = prefix


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Where a unit's frame lies.

    Attributes:
        part: number of the part, from 0.
        row: where in the part.
        hash: xxh3-128 of the frame's bytes, 32 hex digits.
    """

    part: int
    row: Row
    hash: str


class PartSink:
    """Packs the frames of one rank into parts and uploads each as soon as it is full.

    `add` and `finish` are for one thread.

    Args:
        most_queued: parts that may wait for their upload; `add` waits for the oldest then, and each part is
            dropped once it is uploaded. None: any number, and all stay in the spool for `frame`, until
            `close`.
        before_upload: called on the uploading thread before each part; waits where another transfer
            goes first.
    """

    def __init__(
        self,
        destination: Destination,
        spool: Spool,
        *,
        most_queued: int | None = None,
        before_upload: Callable[[], None] | None = None,
        uploads: int = UPLOADS,
        cancel: threading.Event | None = None,
    ) -> None:
        self._to = destination
        self._spool = spool
        self._most_queued = most_queued
        self._before_upload = before_upload
        self._cancel = cancel
        self._writer = PartWriter()
        self._pieces: list[memoryview] = [memoryview(START)]
        self._kept: list[Kept] = []
        self._pool = ThreadPoolExecutor(uploads, "wstore-upload")
        self._uploads: list[Future[None]] = []
        self.objects: list[ObjectRef] = []
        self.nbytes = 0

    @property
    def to(self) -> Destination:
        """Where the parts go."""
        return self._to

    @property
    def queued(self) -> int:
        """Parts that are not uploaded yet."""
        return sum(not upload.done() for upload in self._uploads)

    def add(self, frame: Frame) -> Placed:
        """Put a frame into the part under way. Raises what an earlier upload raised."""
        if self._writer.nbytes + frame.nbytes > PART_BYTES and self._writer.nbytes > len(START):
            self._end_part()
        row = self._writer.add(frame)
        hashed = xxhash.xxh3_128()
        for piece in frame.pieces:
            view = memoryview(piece).cast("B")
            hashed.update(view)
            self._pieces.append(view)
        return Placed(len(self.objects), row, hashed.hexdigest())

    def finish(self) -> None:
        """Begin to upload what is left."""
        if len(self._pieces) > 1:
            self._end_part()

    def place(self, objects: Sequence[ObjectRef]) -> None:
        """Take objects that were written in another way in place of parts."""
        self.objects += objects
        self.nbytes += sum(one.size for one in objects)

    def wait(self) -> None:
        """Wait for all uploads. Raises the first failure, naming the URL."""
        for upload in self._uploads:
            upload.result()

    def frame(self, placed: Placed) -> Frame:
        """The frame again, from the spool."""
        row = placed.row
        return Frame.parse(self._kept[placed.part].data()[row.offset : row.offset + row.nbytes])

    def close(self) -> None:
        """Stop the uploads and give the spool's room back. Idempotent."""
        self._pool.shutdown(cancel_futures=True)
        for kept in self._kept:
            kept.drop()

    def _end_part(self) -> None:
        self._pieces.append(memoryview(self._writer.finish()))
        data = memoryview(b"".join(self._pieces))
        name = f"{self._to.prefix}{len(self.objects) + 1:04d}"
        ref = ObjectRef(
            name=self._to.object_name(name), size=data.nbytes, hash=xxhash.xxh3_128_hexdigest(data)
        )
        kept = self._spool.keep(data)
        self.objects.append(ref)
        self.nbytes += data.nbytes
        self._kept.append(kept)
        self._uploads.append(self._pool.submit(self._upload, self._to.path(name), kept))
        self._keep_up()
        self._writer = PartWriter()
        self._pieces = [memoryview(START)]

    def _keep_up(self) -> None:
        """Raise what an upload raised; wait for the oldest while too many are under way."""
        waiting = [upload for upload in self._uploads if not upload.done()]
        for upload in self._uploads:
            if upload.done():
                upload.result()
        if self._most_queued is not None:
            for upload in waiting[: len(waiting) - self._most_queued]:
                upload.result()

    def _upload(self, path: StoragePath, kept: Kept) -> None:
        if self._before_upload is not None:
            self._before_upload()
        path.write_file(kept.data(), cancel=self._cancel)
        if self._most_queued is not None:
            kept.drop()


class Contents:
    """What one rank says it contributes: the tensors of its done marker, from its units' frames."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self.tensors: dict[str, Tensor] = {
            name: Tensor(dtype=piece.dtype.name, shape=list(piece.shape), blocks=[])
            for name, piece in baseline.pieces.items()
        }

    def stored(self, made: Made, placed: Placed) -> None:
        """A unit whose frame lies in a part."""
        for member, digest in zip(
            self._baseline.units[made.index].members, made.digests, strict=True
        ):
            self._add(
                member.block.tensor,
                Block(
                    origin=list(member.block.origin),
                    extent=list(member.block.extent),
                    object=placed.part,
                    offset=placed.row.offset,
                    nbytes=placed.row.nbytes,
                    encoding="frame",
                    hash=placed.hash,
                    digest=digest,
                ),
            )

    def flat(self, stored: StoredBlock, number: int) -> None:
        """A block of a plain file, the `number`th object."""
        self._add(
            stored.piece.name,
            Block(
                origin=list(stored.box.origin),
                extent=list(stored.box.extent),
                object=number,
                offset=stored.offset,
                nbytes=stored.nbytes,
                hash=stored.hash,
                digest=stored.digest.hex,
            ),
        )

    def same(self, index: int) -> None:
        """A unit that is as in the version before."""
        for member, digest in zip(
            self._baseline.units[index].members, self._baseline.digests[index], strict=True
        ):
            self._add(
                member.block.tensor,
                Block(
                    origin=list(member.block.origin),
                    extent=list(member.block.extent),
                    object=-1,
                    offset=0,
                    nbytes=0,
                    encoding="same",
                    digest=digest,
                ),
            )

    def replica(self, name: str, blocks: Sequence[Block]) -> None:
        """A piece that another rank stores: what this rank vouches for."""
        piece = self._baseline.replicas[name]
        self.tensors[name] = Tensor(
            dtype=piece.dtype.name, shape=list(piece.shape), blocks=list(blocks)
        )

    def _add(self, name: str, block: Block) -> None:
        self.tensors[name].blocks.append(block)
