"""What an engine holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.cutting import Unit
    from wstore_codecs.slices import SliceProof
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions.documents import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """The version in an engine's memory.

    Attributes:
        version: its number; 0 when none is known.
        manifest: its manifest; None then.
        holding: what is held of it.
        slices: proofs of the units that are held in part.
    """

    version: int = 0
    manifest: Manifest | None = None
    holding: Holding = field(default_factory=dict)
    slices: Mapping[Unit, SliceProof] = field(default_factory=dict)
