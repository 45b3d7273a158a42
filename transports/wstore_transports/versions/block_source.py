"""Which bytes of which object to read for a box of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore_codecs import block as boxes
from wstore_codecs.dtypes import dtype
from wstore_transports.versions.manifest import in_one_block, stored_box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_transports.versions.documents import Block, Manifest, Tensor


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes [offset, offset + nbytes) of object number `object` of the manifest.

    `place` is where they belong in the wanted box's own row-major bytes; for a frame, which holds its
    whole block in encoded form, it is 0 and has no meaning.
    """

    object: int
    offset: int
    nbytes: int
    place: int


class BlockSource:
    """A manifest as a source of exact byte ranges."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name, or the one that this alias stands for. Raises InvalidArgument."""
        found = self.manifest.tensors.get(self.manifest.aliases.get(name, name))
        if found is None:
            raise InvalidArgument(f"no tensor {name!r} in this version")
        return found

    def blocks(self, name: str, box: boxes.Block | None = None) -> list[Block]:
        """The stored blocks that share an element with `box` (all of the tensor by default).

        Raises:
            InvalidArgument: no such tensor, or a box that leaves it.
        """
        return [block for block, _, _ in touched(self.tensor(name), self._wanted(name, box))]

    def ranges(self, name: str, block: Block, box: boxes.Block | None = None) -> Iterator[Run]:
        """The bytes of `block` that `box` needs: exact runs for "flat", the whole frame for "frame".

        Runs ascend in the object. None for a "same" block and for one that `box` does not touch.

        Raises:
            InvalidArgument: as `blocks`.
        """
        wanted = self._wanted(name, box)
        stored = stored_box(wanted.tensor, block)
        common = stored.clip(wanted)
        if common is None or block.encoding == "same":
            return
        if block.encoding == "frame":
            yield Run(block.object, block.offset, block.nbytes, 0)
            return
        itemsize = dtype(self.tensor(name).dtype).itemsize
        here, there = stored.local(common), wanted.local(common)
        sources = boxes.flat_runs(stored.extent, here.origin, here.extent)
        targets = boxes.flat_runs(wanted.extent, there.origin, there.extent)
        for source, target, length in _pair(sources, targets):
            offset = block.offset + source * itemsize
            yield Run(block.object, offset, length * itemsize, target * itemsize)

    def _wanted(self, name: str, box: boxes.Block | None) -> boxes.Block:
        tensor = self.tensor(name)
        whole = boxes.Block.whole(name, tensor.shape)
        wanted = whole if box is None else boxes.Block(name, box.origin, box.extent)
        if not whole.contains(wanted):
            raise InvalidArgument(f"{wanted} is not a box of tensor {name!r}, shape {tensor.shape}")
        return wanted


def touched(tensor: Tensor, wanted: boxes.Block) -> Iterator[tuple[Block, boxes.Block, int]]:
    """The stored blocks that share an element with a box of the tensor: each with the box that it is
    and the number of elements shared. The sum of those is the wanted box's size, if nothing is missing.
    """
    if in_one_block(tensor) and wanted.extent == tuple(tensor.shape):
        if wanted.size:
            yield tensor.blocks[0], wanted, wanted.size
        return
    for block in tensor.blocks:
        box = stored_box(wanted.tensor, block)
        common = box.clip(wanted)
        if common is not None:
            yield block, box, common.size


def _pair(
    sources: Iterator[tuple[int, int]], targets: Iterator[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Cut two lists of runs of the same elements at each other's cuts: (source, target, length)."""
    source, left = next(sources)
    target, room = next(targets)
    while True:
        length = min(left, room)
        yield source, target, length
        source, left, target, room = source + length, left - length, target + length, room - length
        if left == 0:
            following = next(sources, None)
            if following is None:
                return
            source, left = following
        if room == 0:
            target, room = next(targets)
