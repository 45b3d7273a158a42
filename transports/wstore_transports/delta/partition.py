"""Which frames of successive versions can be replayed together; pure.

A trainer cuts its tensors into the same units from version to version, until engines ask for other cuts or it
starts anew. Frames of two ways of cutting cannot form chains: each way is a segment, applied after the one
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstore_codecs.block import Block
    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame


def segments(versions: Iterable[list[Frame]]) -> list[list[Frame]]:
    """The frames of several versions, oldest first, as segments: in one of them, two frames hold the same
    unit or nothing in common."""
    found: list[list[Frame]] = []
    cut = _Cut()
    for frames in versions:
        if found and cut.takes(frames):
            found[-1] += frames
        else:
            cut = _Cut()
            found.append(list(frames))
        cut.add(frames)
    return found


class _Cut:
    """One way of cutting, as far as it was seen."""

    def __init__(self) -> None:
        self._units: set[Unit] = set()
        self._blocks: dict[str, list[Block]] = {}

    def takes(self, frames: Iterable[Frame]) -> bool:
        """Whether these frames are of this way."""
        new = (frame.header.unit for frame in frames if frame.header.unit not in self._units)
        return not any(
            member.block.clip(block) is not None
            for unit in new
            for member in unit.members
            for block in self._blocks.get(member.block.tensor, ())
        )

    def add(self, frames: Iterable[Frame]) -> None:
        """Note the units of these frames."""
        for frame in frames:
            unit = frame.header.unit
            if unit in self._units:
                continue
            self._units.add(unit)
            for member in unit.members:
                self._blocks.setdefault(member.block.tensor, []).append(member.block)
