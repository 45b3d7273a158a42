"""Whole weights as plain safetensors files, which any library opens."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from wstore_codecs.tensors import copied
from wstore_transports.checkpoint.file_stream import FileStream
from wstore_transports.checkpoint.placement import plan_files
from wstore_transports.versions.documents import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.delta.parts import Contents, Destination

SAFETENSORS = "safetensors"
"""What stands in place of a codec for plain files."""


class PieceSnapshot:
    """The pieces that a baseline holds now, though later versions change it meanwhile.

    Before the baseline changes a piece that was not taken, `before_change` copies it: into memory, so plain
    files suit trainers that have room for what changes while one is written.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._lock = threading.Lock()
        self._left = set(baseline.pieces)
        self._early: dict[str, Piece] = {}

    def take(self, piece: Piece) -> Piece:
        """A piece as it was when this object was made, in memory of its own. Each may be taken once."""
        with self._lock:
            early = self._early.pop(piece.name, None)
            self._left.discard(piece.name)
            return early or _copied(piece)

    def before_change(self, indices: Iterable[int]) -> None:
        """Copy the pieces of these units that were not taken yet; then they may be changed."""
        units = self._baseline.units
        names = {member.block.tensor for index in indices for member in units[index].members}
        with self._lock:
            for name in names & self._left:
                self._early[name] = _copied(self._baseline.pieces[name])
                self._left.discard(name)

    def drop(self) -> None:
        """Take no more: later changes cost nothing. Idempotent."""
        with self._lock:
            self._left.clear()
            self._early.clear()


def write_flat(
    baseline: Baseline,
    take: Callable[[Piece], Piece],
    to: Destination,
    contents: Contents,
    *,
    before_upload: Callable[[], None] | None = None,
    cancel: threading.Event | None = None,
) -> list[ObjectRef]:
    """Write a baseline's pieces as safetensors files.

    Args:
        take: gives a piece's values when its turn comes.
        contents: is told of each block.
        before_upload: called before each tensor; waits where another transfer goes first.

    Returns:
        The files.

    Raises:
        Whatever the store raises. Cancelled.
    """

    def next_piece(piece: Piece) -> Piece:
        if before_upload is not None:
            before_upload()
        return take(piece)

    objects: list[ObjectRef] = []
    for number, pieces in enumerate(plan_files(baseline.pieces.values()), 1):
        name = f"{to.prefix}{number:04d}.safetensors"
        path = to.path(name)
        names = {piece.name for piece in pieces}
        tied = {a: n for a, n in baseline.aliases.items() if n in names and a != "format"}
        stream = FileStream(
            pieces, metadata={**tied, "format": "pt"}, url=path.url, source=next_piece
        )
        path.write_file(stream.chunks(), cancel=cancel)
        for block in stream.blocks:
            contents.flat(block, len(objects))
        objects.append(ObjectRef(name=to.object_name(name), size=stream.size, hash=stream.hash))
    return objects


def _copied(piece: Piece) -> Piece:
    return replace(piece, array=copied(piece.array, name=piece.name))
