"""How many elements each tensor of a version changed, from the first bytes of its frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import NotFound
from wstore_codecs import base as codecs
from wstore_codecs import frame_header
from wstore_transports.delta.wanted import wanted_frames
from wstore_transports.examining.history import raw_nbytes
from wstore_transports.versions.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.path import StoragePath
    from wstore_transports.delta.wanted import WantedFrame
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest

HEAD_BYTES = 1 << 10
"""Read of a frame at first: its header is shorter, but for long names and groups."""

MAX_GAP = 4 << 10
"""Heads so near to each other share a request."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of a version.

    Attributes:
        dtype: safetensors' name of it.
        shape: its dimensions.
        raw_nbytes: bytes of its elements.
        stored_nbytes: bytes of its frames, of a frame that it shares with others its part by elements.
        blocks, changed_blocks: how many it has, and how many of them are stored.
        changed: elements that changed; None where that is not known without decoding.
    """

    dtype: str
    shape: tuple[int, ...]
    raw_nbytes: int
    stored_nbytes: int
    blocks: int
    changed_blocks: int
    changed: int | None

    @property
    def elements(self) -> int:
        """How many it has."""
        return math.prod(self.shape)

    @property
    def density(self) -> float | None:
        """The share of elements that changed, 0 to 1."""
        if self.changed is None:
            return None
        return self.changed / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """How many times smaller than its elements it is stored; 0.0 where nothing is stored."""
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0


@dataclass(frozen=True, slots=True)
class Density:
    """What a delta changed.

    Attributes:
        tensors: by name.
        changed: elements of all tensors; None where some frame replaces its block whole.
    """

    tensors: dict[str, TensorRow]
    changed: int | None

    @property
    def elements(self) -> int:
        """Elements of all tensors."""
        return sum(row.elements for row in self.tensors.values())


def density(version: Version, manifest: Manifest) -> Density:
    """What a delta changed, with small ranged reads.

    What shares a frame with other tensors has no count of its own, what is stored whole has none at all.

    Raises:
        VersionGone, IntegrityError, NewerFormat.
    """
    frames = wanted_frames(manifest, {})
    by_object: dict[int, list[WantedFrame]] = {}
    for frame in frames:
        by_object.setdefault(frame.object, []).append(frame)
    counts: dict[tuple[int, int], int | None] = {}
    for found in in_parallel(
        lambda group: _count_frames(version, manifest, group), list(by_object.values())
    ):
        counts |= found
    changed: dict[str, list[int | None]] = {}
    stored: dict[str, int] = {}
    for frame in frames:
        count = counts[frame.object, frame.offset]
        total = sum(math.prod(block.extent) for _, block in frame.blocks) or 1
        alone = len({name for name, _ in frame.blocks}) == 1
        for name, block in frame.blocks:
            share = frame.nbytes * math.prod(block.extent) // total
            stored[name] = stored.get(name, 0) + share
            changed.setdefault(name, []).append(count if alone else None)
    rows = {
        name: TensorRow(
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            raw_nbytes=raw_nbytes(tensor),
            stored_nbytes=stored.get(name, 0),
            blocks=len(tensor.blocks),
            changed_blocks=sum(block.encoding != "same" for block in tensor.blocks),
            changed=_sum(changed.get(name, [])),
        )
        for name, tensor in manifest.tensors.items()
    }
    return Density(rows, _sum(list(counts.values())))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count_frames(
    version: Version, manifest: Manifest, frames: list[WantedFrame]
) -> dict[tuple[int, int], int | None]:
    path = version.object(manifest.objects[frames[0].object].name)
    places = [(frame.offset, frame.nbytes) for frame in frames]
    try:
        heads = read_heads(path, places)
    except NotFound as error:
        raise version.missing(error) from error
    return {
        (frame.object, frame.offset): changed_elements(head)
        for frame, head in zip(frames, heads, strict=True)
    }


def read_heads(path: StoragePath, places: Sequence[tuple[int, int]]) -> list[memoryview]:
    """The first bytes of the frames at these (offset, bytes) of an object: the header, and some of the body.

    Raises:
        IntegrityError: no frame is there. NotFound.
    """
    heads = path.read_ranges(
        [(offset, min(nbytes, HEAD_BYTES)) for offset, nbytes in places], max_gap=MAX_GAP
    )
    for index, (offset, nbytes) in enumerate(places):
        size = frame_header.header_size(heads[index])
        if size + HEAD_BYTES // 2 > len(heads[index]) < nbytes:
            wanted = min(nbytes, size + HEAD_BYTES)
            heads[index] = memoryview(path.read_range(offset, wanted))
    return heads


def changed_elements(head: memoryview) -> int | None:
    """How many elements a frame changes, by its first bytes; None where it replaces the block.

    Raises:
        IntegrityError, NewerFormat.
    """
    header = frame_header.parse(head)
    if header.base is None:
        return None
    if header.base == header.result:
        return 0
    codec = codecs.listing_codec(header.codec)
    if codec is None:
        return None
    return codec.count(head[frame_header.header_size(head) :], header.size)
