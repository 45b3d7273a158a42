"""Tensors that several ranks hold alike: one rank stores them, the others vouch for them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore_codecs import tensors
from wstore_codecs.cutting import cut
from wstore_codecs.digest import digest_block
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Block
from wstore_transports.versions.manifest import stored_box

if TYPE_CHECKING:
    from wstore_codecs.bulk import Cuts
    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.versions.documents import Manifest


def stored_elsewhere(baseline: Baseline, manifest: Manifest, rank: int) -> list[str]:
    """The tensors whose pieces this rank holds and another rank stored.

    Args:
        manifest: of a version of whole weights that this rank took part in.
    """
    found: list[str] = []
    for name, piece in baseline.pieces.items():
        mine = [
            block
            for block in manifest.tensors[name].blocks
            if piece.box.contains(stored_box(name, block))
        ]
        owners = {
            layout.owner_rank(manifest.objects[block.object].name.rpartition("/")[2])
            for block in mine
        }
        if mine and rank not in owners:
            found.append(name)
    return found


def vouched(piece: Piece, cuts: Cuts) -> list[Block]:
    """The blocks of a piece that another rank stores, with the digests of the values here."""
    blocks = []
    for box in cut(piece.box, cuts=cuts.get(piece.name, ())):
        array = tensors.box_view(piece.array, piece.box.local(box))
        digest = digest_block(array, piece.shape, box.origin, name=piece.name)
        blocks.append(
            Block(
                origin=list(box.origin),
                extent=list(box.extent),
                object=-1,
                offset=0,
                nbytes=0,
                encoding="replica",
                digest=digest.hex,
            )
        )
    return blocks
