"""Whether the weights that a trainer starts from are a version's: then its chain goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wstore_codecs.digest import TensorDigest, combine, digest_block
from wstore_transports.delta.baseline import Baseline
from wstore_transports.delta.replicas import stored_elsewhere
from wstore_transports.delta.route import find_route
from wstore_transports.versions.manifest import stored_box

if TYPE_CHECKING:
    from wstore_transports.checkpoint.pieces import Inventory, Piece
    from wstore_transports.delta.baseline import Where
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest


def proven_baseline(
    inventory: Inventory, version: Version, *, where: Where, threads: int, rank: int, ranks: int
) -> Baseline | None:
    """A baseline of these pieces when they are a version's values, else None.

    Raises:
        IntegrityError, NewerFormat, VersionGone: of the version's manifest.
    """
    manifest = version.manifest()
    if ranks == 1 and (
        {piece.name for piece in inventory.pieces} != manifest.tensors.keys()
        or dict(inventory.aliases) != manifest.aliases
    ):
        return None
    with ThreadPoolExecutor(threads, "wstore-resume") as pool:
        if not all(pool.map(lambda piece: _is_there(piece, manifest), inventory.pieces)):
            return None
    baseline = Baseline(inventory, where=where, threads=threads)
    first = find_route(version, 0).whole
    if ranks > 1 and first is not None:
        baseline.give_up(stored_elsewhere(baseline, first.version.whole(first.anchor), rank))
    return baseline


def _is_there(piece: Piece, manifest: Manifest) -> bool:
    """Whether the version holds just these values in the piece's box.

    Its blocks must tile the box: a digest says nothing of a part of a block.
    """
    tensor = manifest.tensors.get(piece.name)
    if tensor is None or (tensor.dtype, tuple(tensor.shape)) != (piece.dtype.name, piece.shape):
        return False
    digests, elements = [], 0
    for block in tensor.blocks:
        box = stored_box(piece.name, block)
        if piece.box.contains(box):
            digests.append(TensorDigest.from_hex(block.digest))
            elements += box.size
    if elements != piece.box.size:
        return False
    found = digest_block(piece.array, piece.shape, piece.box.origin, name=piece.name)
    return combine(digests) == found
