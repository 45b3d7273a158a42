"""Which frames of a version a reader needs, by its manifest; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from wstore.errors import IntegrityError
from wstore_transports.versions.manifest import stored_box

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.block import Block
    from wstore_codecs.frame import Frame
    from wstore_transports.versions import documents
    from wstore_transports.versions.documents import Manifest

Holding: TypeAlias = "Mapping[str, Block | None]"
"""What a reader holds, by stored name: a box of the tensor, or None for nothing of it. Names that are not
in it are held whole."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedFrame:
    """A frame to read.

    Attributes:
        object: index into the manifest's objects.
        offset, nbytes: where in the object.
        hash: of its bytes, 32 hex digits.
        blocks: what of it belongs to the version: by tensor, with the block as the manifest has it.
    """

    object: int
    offset: int
    nbytes: int
    hash: str
    blocks: tuple[tuple[str, documents.Block], ...]

    def check(self, frame: Frame, manifest: Manifest) -> None:
        """Raises IntegrityError unless the frame holds what the manifest says."""
        unit = frame.header.unit
        shapes = {member.block: member.shape for member in unit.members}
        for name, block in self.blocks:
            tensor = manifest.tensors[name]
            box = stored_box(name, block)
            if (unit.dtype.name, shapes.get(box)) != (tensor.dtype, tuple(tensor.shape)):
                raise IntegrityError(
                    f"{box}: its frame holds something else than the manifest says"
                )
        digest = frame.header.result.digest
        if not unit.grouped and digest is not None and digest.hex != self.blocks[0][1].digest:
            raise IntegrityError(
                f"{frame.header.label()}: its frame leads to another digest than the manifest's"
            )


def wanted_frames(manifest: Manifest, holding: Holding) -> list[WantedFrame]:
    """The frames of a delta that touch what is held, in the order of the objects.

    Raises:
        IntegrityError: a block that is stored in another form than a delta's.
    """
    found: dict[tuple[int, int], list[tuple[str, documents.Block]]] = {}
    for name, tensor in manifest.tensors.items():
        whole = name not in holding
        box = holding.get(name)
        if box is None and not whole:
            continue
        for block in tensor.blocks:
            if block.encoding == "same":
                continue
            if block.encoding != "frame":
                raise IntegrityError(f"tensor {name!r}: a delta with plain bytes in it")
            if box is None or stored_box(name, block).clip(box) is not None:
                found.setdefault((block.object, block.offset), []).append((name, block))
    frames = []
    for (index, offset), blocks in sorted(found.items()):
        first = blocks[0][1]
        if any((b.nbytes, b.hash) != (first.nbytes, first.hash) for _, b in blocks):
            raise IntegrityError(
                f"tensor {blocks[0][0]!r}: its frame at {offset} is listed in two ways"
            )
        frames.append(WantedFrame(index, offset, first.nbytes, first.hash, tuple(blocks)))
    return frames


def check_same(before: Manifest, after: Manifest) -> None:
    """Check that a delta's manifest goes on from its base's: the same tensors, and blocks that say "same"
    have the digest that they had.

    Raises:
        IntegrityError: it does not.
    """
    if before.aliases != after.aliases or before.tensors.keys() != after.tensors.keys():
        raise IntegrityError("a delta holds other tensors than the version it applies to")
    for name, tensor in after.tensors.items():
        old = before.tensors[name]
        if (old.dtype, old.shape) != (tensor.dtype, tensor.shape):
            raise IntegrityError(
                f"tensor {name!r} is {tensor.dtype} {tensor.shape} in a delta and {old.dtype} {old.shape} "
                "in the version it applies to"
            )
        if old.digest == tensor.digest and all(b.encoding == "same" for b in tensor.blocks):
            continue
        known = {(tuple(b.origin), tuple(b.extent)): b.digest for b in old.blocks}
        for block in tensor.blocks:
            digest = known.get((tuple(block.origin), tuple(block.extent)))
            if block.encoding == "same" and digest is not None and digest != block.digest:
                raise IntegrityError(
                    f"tensor {name!r}, box at {block.origin} of {block.extent}: a delta calls it unchanged, "
                    "and its digest is another than before"
                )
