"""What the previous version already stores: unchanged pieces are referenced, not written again. Pure,
but for hashing the arrays.

Referencing has a price: a file stays as long as one tensor in it is needed. So a file is shared only
while most of it is; what is unchanged in other files is written once more, together and apart from what
changes, and is shared from then on. A root so never holds more than about twice what its versions need.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wstore_codecs.digest import digest_block
from wstore_transports.checkpoint.hashing import (
    block_bits,
    elements,
    hash_run,
    small,
    small_runs,
)
from wstore_transports.versions.manifest import in_one_block

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.versions.documents import Block, Manifest, Tensor

LIVE_SHARE = 0.5
"""A file is shared when at least this part of its bytes is unchanged, or all that the version before uses."""

SMALL_OBJECT = 1 << 20
"""Files up to this size are shared as long as anything in them is: keeping one costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A piece that the previous version stores bit for bit.

    Attributes:
        blocks: as that version's manifest lists them.
    """

    piece: Piece
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """What to do with each piece.

    Attributes:
        shared: reference these.
        still: unchanged, to be written once more, apart from the rest.
        moved: changed or new, to be written.
    """

    shared: tuple[Shared, ...]
    still: tuple[Piece, ...]
    moved: tuple[Piece, ...]

    def objects(self) -> list[int]:
        """Which objects of the base are referenced: indexes, ascending."""
        return sorted({block.object for shared in self.shared for block in shared.blocks})

    def without(self, objects: Collection[int]) -> SharingPlan:
        """The plan with nothing shared from these objects of the base: that is written once more too."""
        lost = [any(block.object in objects for block in shared.blocks) for shared in self.shared]
        pairs = list(zip(self.shared, lost, strict=True))
        return SharingPlan(
            tuple(shared for shared, gone in pairs if not gone),
            (*self.still, *(shared.piece for shared, gone in pairs if gone)),
            self.moved,
        )


def plan_sharing(pieces: Sequence[Piece], base: Manifest | None) -> SharingPlan:
    """Compare the pieces with the version before, by hash and digest of every block.

    Reads the arrays that the base may hold; stops at an array's first changed block.
    """
    if base is None:
        return SharingPlan((), (), tuple(pieces))
    same: list[Shared] = []
    moved: list[Piece] = []
    small_ones = _unchanged_small(pieces, base)
    for piece in pieces:
        blocks = small_ones.get(piece.name) if small(piece) else _unchanged(piece, base)
        if blocks is None:
            moved.append(piece)
        else:
            same.append(Shared(piece, blocks))
    live: Counter[int] = Counter()
    for shared in same:
        for block in shared.blocks:
            live[block.object] += block.nbytes
    listed: Counter[int] = Counter()
    for tensor in base.tensors.values():
        for block in tensor.blocks:
            listed[block.object] += block.nbytes
    # A file of which nothing changed is shared whatever its header takes: many small tensors have one
    # that is larger than they are.
    kept = {
        index
        for index, nbytes in live.items()
        if (size := base.objects[index].size) <= SMALL_OBJECT
        or nbytes >= min(LIVE_SHARE * size, listed[index])
    }
    keeps = [all(block.object in kept for block in shared.blocks) for shared in same]
    return SharingPlan(
        tuple(shared for shared, keep in zip(same, keeps, strict=True) if keep),
        tuple(shared.piece for shared, keep in zip(same, keeps, strict=True) if not keep),
        tuple(moved),
    )


def _unchanged_small(pieces: Sequence[Piece], base: Manifest) -> dict[str, tuple[Block, ...]]:
    """What `_unchanged` finds for each small piece that is as it was, by name."""
    found: dict[str, tuple[Block, ...]] = {}
    ordered = sorted(filter(small, pieces), key=lambda piece: piece.dtype.itemsize)
    for run in small_runs(ordered):
        for stored in hash_run(run, elements(run)):
            tensor = _stored(stored.piece, base)
            if tensor is None or not in_one_block(tensor):
                continue
            block = tensor.blocks[0]
            mine = ("flat", stored.hash, stored.digest.hex)
            if (block.encoding, block.hash, block.digest) == mine:
                found[stored.piece.name] = (block,)
    return found


def _stored(piece: Piece, base: Manifest) -> Tensor | None:
    """The base's tensor of that name when it has the same dtype and shape."""
    tensor = base.tensors.get(base.aliases.get(piece.name, piece.name))
    if tensor is None or tensor.dtype != piece.dtype.name or tuple(tensor.shape) != piece.shape:
        return None
    return tensor


def _unchanged(piece: Piece, base: Manifest) -> tuple[Block, ...] | None:
    """The base's blocks of exactly this piece when all its bytes are as they were, else None."""
    tensor = _stored(piece, base)
    if tensor is None:
        return None
    stored = {(tuple(block.origin), tuple(block.extent)): block for block in tensor.blocks}
    found = []
    for box, bits in block_bits(piece):
        block = stored.get((box.origin, box.extent))
        if block is None or block.encoding != "flat" or not block.hash:
            return None
        data = bits.view("u1").data
        if xxhash.xxh3_128_hexdigest(data) != block.hash:
            return None
        if digest_block(bits.reshape(box.extent), piece.shape, box.origin).hex != block.digest:
            return None
        found.append(block)
    return tuple(found)
