"""The versions of a root that are alive, with what each one cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore_codecs import dtypes
from wstore_transports.errors import VersionGone
from wstore_transports.versions.parallel import in_parallel

if TYPE_CHECKING:
    from wstore_transports.versions import Root, Version
    from wstore_transports.versions.documents import Anchor, Manifest, Tensor, Weights


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version.

    Attributes:
        version: it.
        anchor: the record of its whole weights; None where it has only what changed.
        tensors: how many it holds.
        raw_nbytes: bytes of their elements.
        blocks: how many blocks they are cut into.
        changed: how many of those changed; all of a full version.
    """

    version: Version
    anchor: Weights | Anchor | None
    tensors: int
    raw_nbytes: int
    blocks: int
    changed: int

    @property
    def nbytes(self) -> int:
        """Bytes of its objects, without those of an anchor that a delta got later."""
        return self.version.record.nbytes

    @property
    def anchor_nbytes(self) -> int:
        """Bytes of that anchor; 0 for none."""
        later = self.anchor is not None and self.version.kind == "delta"
        return self.anchor.nbytes if later and self.anchor is not None else 0

    @property
    def changed_share(self) -> float:
        """The share of blocks that changed, 0 to 1."""
        return self.changed / self.blocks if self.blocks else 0.0

    @property
    def ratio(self) -> float:
        """How many times smaller than the weights it is; 0.0 where nothing is stored."""
        return self.raw_nbytes / self.nbytes if self.nbytes else 0.0


def history(root: Root) -> list[VersionRow]:
    """All versions that are alive, ascending. Reads each one's manifest.

    Raises:
        RecordMissing, IntegrityError, NewerFormat.
    """
    return [row for row in in_parallel(_row, root.versions()) if row is not None]


def _row(version: Version) -> VersionRow | None:
    try:
        manifest = version.manifest()
        return describe(version, manifest)
    except VersionGone:
        return None  # let go meanwhile


def describe(version: Version, manifest: Manifest) -> VersionRow:
    """The row of a version whose manifest is at hand."""
    blocks = [block for tensor in manifest.tensors.values() for block in tensor.blocks]
    return VersionRow(
        version=version,
        anchor=version.anchor(),
        tensors=len(manifest.tensors),
        raw_nbytes=sum(map(raw_nbytes, manifest.tensors.values())),
        blocks=len(blocks),
        changed=sum(block.encoding != "same" for block in blocks),
    )


def raw_nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * dtypes.dtype(tensor.dtype).itemsize
