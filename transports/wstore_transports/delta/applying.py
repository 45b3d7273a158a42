"""What was staged, into an engine's memory: all of it or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import StateLost
from wstore_codecs.apply import apply, apply_fresh
from wstore_codecs.shielding import shielded
from wstore_codecs.targets import Held
from wstore_codecs.tensors import copied
from wstore_transports.delta.copying import check_copies, copy_into
from wstore_transports.delta.reports import ApplyReport
from wstore_transports.delta.staging import missing_slices

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from wstore_codecs.block import Block
    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.journal import Journal
    from wstore_codecs.slices import SliceProof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.delta.binding import Bound
    from wstore_transports.delta.rehearsal import Rehearsal
    from wstore_transports.delta.staged import Loaded, Staged

    Slices = Mapping[Unit, SliceProof]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an apply did.

    Attributes:
        elements: of the frames' units.
        changed: elements that the deltas list, summed over versions.
        replaced: elements of blocks that were replaced whole.
    """

    elements: int
    changed: int
    replaced: int


def report_of(staged: Staged, outcome: Outcome, spilled_nbytes: int) -> ApplyReport:
    """What was done to bring a state to what was staged."""
    return ApplyReport(
        version=staged.version.number,
        step=staged.version.step,
        digest=staged.version.digest,
        versions=len(staged.route.deltas) if staged.route.whole is None else 0,
        elements=outcome.elements,
        changed=outcome.changed,
        replaced=outcome.replaced,
        fetched_nbytes=staged.fetched_nbytes,
        spilled_nbytes=spilled_nbytes,
        seconds=dict(staged.seconds),
    )


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies what was staged.

    Attributes:
        threads: blocks at once.
        journal: where undo goes that deltas do not hold themselves.
    """

    threads: int
    journal: Journal

    def check(self, staged: Staged, rehearsal: Rehearsal) -> None:
        """Check already what `run` would check first; the memory must not change until then. Raises as
        `run`."""
        segments = staged.segments()
        if len(segments) != 1:
            return  # of later segments the bases are not there yet
        segments[0][:] = rehearsal.prepare(segments[0], threads=self.threads)
        staged.checked = rehearsal.checked(segments[0])

    def run(
        self,
        staged: Staged,
        bound: Bound,
        slices: Slices,
        confirm: Callable[[], None],
        arrived: Callable[[Slices], None],
    ) -> Outcome:
        """Bring the memory to the version.

        Args:
            slices: proofs of the units that are held in part, of the version that is held.
            confirm: called at the point from which nothing can fail any more; when it raises, the memory is
                what it was.
            arrived: called with the new proofs once the memory is at the version, where no interrupt comes
                between.

        Raises:
            As `wstore_codecs.apply`.
        """
        if staged.loaded is not None:
            return self._replace(staged, staged.loaded, bound, confirm, arrived)
        segments = staged.segments()
        if not segments:
            shielded(lambda _: _last(confirm, arrived, slices))
            return Outcome(0, 0, 0)
        if len(segments) > 1:
            return self._over_copies(segments, bound, slices, confirm, arrived)
        memory = bound.state()
        proofs = missing_slices(segments[0], memory, slices)
        applied = apply(
            segments[0],
            memory,
            slices=proofs,
            threads=self.threads,
            journal=self.journal,
            checked=staged.checked,
            confirm=lambda: self._tied(
                segments[0], bound, 0, lambda: _last(confirm, arrived, proofs)
            ),
        )
        elements = sum(unit.size for unit in applied.proofs)
        return Outcome(elements, applied.changed, applied.replaced)

    def _replace(
        self,
        staged: Staged,
        loaded: Loaded,
        bound: Bound,
        confirm: Callable[[], None],
        arrived: Callable[[Slices], None],
    ) -> Outcome:
        """By whole weights, which are at the version already."""
        pieces = bound.all()
        check_copies(pieces, loaded.arrays, staged.holding)

        def put(_: threading.Event) -> None:
            confirm()
            _copy(pieces, loaded.arrays, staged.holding)
            arrived({})

        shielded(put)
        elements = sum(piece.box.size for piece in pieces)
        return Outcome(elements, 0, elements)

    def _over_copies(
        self,
        segments: Sequence[Sequence[Frame]],
        bound: Bound,
        slices: Slices,
        confirm: Callable[[], None],
        arrived: Callable[[Slices], None],
    ) -> Outcome:
        """Across a change of how tensors are cut: onto copies, which are then copied back."""
        fresh = {
            name: Held(copied(entry.array, name=name), entry.shape, entry.origin)
            for name, entry in bound.held().items()
        }
        memory: dict[str, Array | Held | None] = {name: fresh.get(name) for name in bound.pieces}
        elements = changed = replaced = 0
        for frames in segments:
            proofs = missing_slices(frames, memory, slices)
            applied = apply_fresh(frames, memory, slices=proofs, threads=self.threads)
            elements += sum(unit.size for unit in applied.proofs)
            changed, replaced = changed + applied.changed, replaced + applied.replaced
            slices = proofs
        pieces, boxes = bound.all(), bound.holding()
        arrays = {name: held.array for name, held in fresh.items()}
        check_copies(pieces, arrays, boxes)

        def put(_: threading.Event) -> None:
            confirm()
            _copy(pieces, arrays, boxes)
            arrived(slices)

        shielded(put)
        return Outcome(elements, changed, replaced)

    def _tied(
        self, frames: Sequence[Frame], bound: Bound, index: int, confirm: Callable[[], None]
    ) -> None:
        """The same for tied names that are apart in memory: each inside the undo of the one before."""
        if index == len(bound.copies):
            confirm()
            return
        piece = bound.copies[index]
        memory = bound.copy_state(piece)
        touching = [
            frame
            for frame in frames
            if any(member.block.tensor == piece.name for member in frame.header.unit.members)
        ]
        apply(
            touching,
            memory,
            slices=missing_slices(touching, memory, {}),
            threads=self.threads,
            journal=self.journal,
            confirm=lambda: self._tied(frames, bound, index + 1, confirm),
        )


def _last(confirm: Callable[[], None], arrived: Callable[[Slices], None], slices: Slices) -> None:
    """The last steps of an apply whose memory is at the version already."""
    confirm()
    arrived(slices)


def _copy(
    pieces: list[Piece], arrays: Mapping[str, Array], boxes: Mapping[str, Block | None]
) -> None:
    try:
        copy_into(pieces, arrays, boxes)
    except BaseException as error:
        raise StateLost(
            f"copying whole weights failed half-way: load the weights again ({error})"
        ) from error
