"""Frames onto the weights that an engine holds, in place, all or nothing.

Before the first write: every label fits the state, the frames of each block form a chain, every touched
block is the base that its chain starts from, and there is room for what undoing may need. Then each block
is written and its result proven. When anything fails, all blocks are taken back, and proven to be what they
were. An interrupt counts as a failure: it is raised once all of that is done.

`xor` and `ulp` deltas are their own undo. Of `context` deltas the changes are kept, of replaced blocks the
old bytes: in a `Journal`, or not at all with `apply_to_copies`, where the old arrays stay as they are.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError, StateLost
from wstore_codecs import base as registry
from wstore_codecs import tensors
from wstore_codecs.block import check_disjoint
from wstore_codecs.chain import Chain, advance, link
from wstore_codecs.changes import Changes
from wstore_codecs.frame import Frame, check_result, decode_bits
from wstore_codecs.journal import Journal, Keeper, Kept
from wstore_codecs.shielding import each, shielded
from wstore_codecs.slices import SliceProof, SliceTarget
from wstore_codecs.targets import Held, HostTarget, check_apart, held_whole, locate

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence

    from wstore_codecs.base import SparseCodec
    from wstore_codecs.block import Block
    from wstore_codecs.cutting import Unit
    from wstore_codecs.proof import Proof
    from wstore_codecs.targets import Piece, State, Target
    from wstore_codecs.tensors import Array, Bits


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did.

    Attributes:
        proofs: of each unit that the frames held and the state holds at least in part, its new proof.
        changed: elements that the deltas list, summed over versions.
        replaced: elements of blocks that were replaced whole.
    """

    proofs: dict[Unit, Proof]
    changed: int
    replaced: int


@dataclass(slots=True, eq=False)
class _Work:
    """One chain, where it goes, and how far it got."""

    chain: Chain
    target: Target
    undo: int
    """Bytes that undoing it takes."""
    replaces: bool
    """Whether the old block is put away whole, rather than the deltas taken back."""
    old: Kept | None = None
    """The old block."""
    done: list[tuple[Frame, Kept | None]] = field(default_factory=list)
    """Deltas that were applied, with their changes where those cannot be found again."""


def apply(
    frames: Iterable[Frame],
    state: State,
    *,
    slices: MutableMapping[Unit, SliceProof] | None = None,
    threads: int = 1,
    journal: Journal | None = None,
    checked: Container[Unit] = (),
    confirm: Callable[[], None] | None = None,
) -> Applied:
    """Bring the arrays of a state to the version that the frames lead to, in place, or change nothing.

    Args:
        frames: of any blocks; several of one block are versions of it, oldest first.
        state: arrays by tensor name; see `targets`. Nobody else may use them meanwhile.
        slices: proofs of units that are held in part only (`slices.slice_proof`); brought up to date.
        threads: how many blocks at once; each takes at most 4 blocks of memory beside the journal.
        journal: where undo goes; by default 256 MiB of memory and no file.
        checked: units that `check_bases` has found to be the base since they were last written; they are
            not checked again. Were one changed meanwhile, its result would show it.
        confirm: called once all is written and proven; when it raises, all is taken back. Where several
            processes apply together, it is where they agree.

    Raises:
        InvalidArgument: a frame that does not fit the state, two frames that touch the same elements or
            memory, an unknown codec.
        IntegrityError: a block that is not the base of its frame (another version, or applied already),
            a version that is missing in between, a result that is not what was encoded.
        UnalignedSlice: a block that is held in part, with a `context` frame or without a proof.
        NoSpace: undo does not fit the journal.
        StateLost: something failed, and so did taking it back.
    """
    return _apply(frames, state, slices, threads, journal or Journal(), checked, confirm)


def apply_fresh(
    frames: Iterable[Frame],
    state: State,
    *,
    slices: MutableMapping[Unit, SliceProof] | None = None,
    threads: int = 1,
) -> Applied:
    """As `apply`, onto memory that is dropped when this raises: it needs no undo, and no journal."""
    return _apply(frames, state, slices, threads, None, (), None)


def check_bases(
    frames: Iterable[Frame],
    state: State,
    *,
    slices: Mapping[Unit, SliceProof] | None = None,
    threads: int = 1,
) -> set[Unit]:
    """Check all that `apply` checks before it writes, and write nothing: for while the state is in use.

    Returns:
        The units that are the base of their frames, for `apply(checked=)`.

    Raises:
        As `apply`, but NoSpace.
    """
    jobs = _jobs(frames, state, slices or {})
    shielded(lambda stop: each(jobs, _check_base, threads, stop))
    return {job.chain.unit for job in jobs}


def apply_to_copies(
    frames: Iterable[Frame],
    state: State,
    *,
    slices: MutableMapping[Unit, SliceProof] | None = None,
    threads: int = 1,
) -> dict[str, Array]:
    """New arrays of those tensors that the frames touch; the state's own are only read.

    The caller swaps them in. Takes the memory of the touched tensors, and no journal: after a failure
    the copies are dropped. Arguments and errors as `apply`.
    """
    frames = list(frames)
    names = {member.block.tensor for one in frames for member in one.header.unit.members}
    fresh: dict[str, Array | Held | None] = dict(state)
    copies: dict[str, Array] = {}
    for name in names & state.keys():
        entry = state[name]
        if entry is None:
            continue
        if isinstance(entry, Held):
            copies[name] = tensors.copied(entry.array, name=name)
            fresh[name] = Held(copies[name], entry.shape, entry.origin)
        else:
            copies[name] = fresh[name] = tensors.copied(entry, name=name)
    proofs = dict(slices or {})
    _apply(frames, fresh, proofs, threads, None, (), None)
    if slices is not None:
        slices.update(proofs)
    return copies


def _apply(
    frames: Iterable[Frame],
    state: State,
    slices: MutableMapping[Unit, SliceProof] | None,
    threads: int,
    journal: Journal | None,
    checked: Container[Unit],
    confirm: Callable[[], None] | None,
) -> Applied:
    """As `apply`; without a journal nothing is taken back after a failure."""
    jobs = _jobs(frames, state, slices or {})
    unchecked = [job for job in jobs if job.chain.unit not in checked]
    report = _report(jobs)

    def work(stop: threading.Event) -> None:
        each(unchecked, _check_base, threads, stop)
        try:
            each(jobs, lambda one: _run(one, keeper), threads, stop)
            if confirm is not None:
                confirm()
        except BaseException:
            if keeper is not None:
                _take_all_back(jobs)
            raise
        if slices is not None:
            slices.update(_slice_proofs(jobs))

    with nullcontext() if journal is None else journal.open([job.undo for job in jobs]) as keeper:
        shielded(work)
    return report


def _jobs(frames: Iterable[Frame], state: State, slices: Mapping[Unit, SliceProof]) -> list[_Work]:
    planned = [_plan(chain, state, slices) for chain in _chains(frames)]
    jobs = [one for one in planned if one is not None]
    check_apart(piece for job in jobs for piece in job.target.pieces)
    return jobs


def _slice_proofs(jobs: Sequence[_Work]) -> dict[Unit, SliceProof]:
    return {
        job.chain.unit: job.target.proof(job.chain.result)
        for job in jobs
        if isinstance(job.target, SliceTarget)
    }


def _chains(frames: Iterable[Frame]) -> list[Chain]:
    versions: dict[Unit, list[Frame]] = {}
    for frame in frames:
        versions.setdefault(frame.header.unit, []).append(frame)
    by_tensor: dict[str, list[Block]] = {}
    for unit in versions:
        for member in unit.members:
            by_tensor.setdefault(member.block.tensor, []).append(member.block)
    for tensor, blocks in by_tensor.items():
        check_disjoint(blocks, tensor=tensor)
    return [link(one) for one in versions.values()]


def _plan(chain: Chain, state: State, slices: Mapping[Unit, SliceProof]) -> _Work | None:
    unit = chain.unit
    pieces = locate(unit, state)
    if not pieces:
        return None
    header = chain.frames[0].header
    codecs = [registry.codec(frame.header.codec) for frame in chain.frames]
    for frame, codec in zip(chain.frames, codecs, strict=True):
        if codec.needs_base != (frame.header.base is not None):
            raise IntegrityError(f"{header.label()}: a {codec.spec} frame with the wrong proofs")
    target = _target(chain, pieces, slices)
    nbytes = sum(piece.box.size for piece in pieces) * unit.dtype.itemsize
    listing = [registry.listing_codec(frame.header.codec) for frame in chain.frames]
    sparse = [codec for codec in listing if codec is not None]
    if len(sparse) < len(codecs):
        return _Work(chain, target, nbytes, replaces=True)
    if not isinstance(target, SliceTarget) and any(
        _outgrows(frame, codec) for frame, codec in zip(chain.frames, sparse, strict=True)
    ):
        return _Work(chain, target, nbytes, replaces=True)
    undo = sum(
        codec.count(frame.body(), header.size) * (4 + unit.dtype.itemsize)
        for frame, codec in zip(chain.frames, sparse, strict=True)
        if codec.needs_whole_base
    )
    return _Work(chain, target, min(undo, nbytes), replaces=undo > nbytes)


def _outgrows(frame: Frame, codec: SparseCodec) -> bool:
    """Whether a list of the changes would take more than one and a half blocks of memory: then the block
    is replaced."""
    size, width = frame.header.size, frame.header.dtype.itemsize
    return codec.count(frame.body(), size) * (4 + width) > 3 * size * width // 2


def _target(chain: Chain, pieces: Sequence[Piece], slices: Mapping[Unit, SliceProof]) -> Target:
    unit = chain.unit
    if not held_whole(unit, pieces):
        return SliceTarget(chain, pieces, slices.get(unit))
    # The digest of a group is that of the packed tensor, of which a device holds nothing.
    if not unit.grouped and tensors.on_device(pieces[0].array) is not None:
        from wstore_codecs.device import DeviceTarget

        return DeviceTarget(unit, pieces)
    return HostTarget(unit, pieces)


def _check_base(job: _Work) -> None:
    base = job.chain.base
    if base is not None and not job.target.agrees(base):
        raise IntegrityError(
            f"{job.chain.frames[0].header.label()}: the state holds another block than the one that the "
            "frame was made from: another version, or the frame was applied already. Nothing was written"
        )


def _run(job: _Work, keeper: Keeper | None) -> None:
    target, chain = job.target, job.chain
    if job.replaces:
        if keeper is not None:
            job.old = keeper.keep(target.held())
        target.store(_replayed(chain, target))
    else:
        for frame in chain.frames:
            if not frame.unchanged:
                _patch(frame, job, keeper)
    if not target.agrees(chain.result):
        raise IntegrityError(
            f"{chain.frames[-1].header.label()}: the result is not the block that was encoded; the old "
            "weights were put back"
        )


def _replayed(chain: Chain, target: Target) -> Bits:
    """The new block of a chain, in fresh memory."""
    bits = decode_bits(chain.frames[0], None if chain.base is None else target.load())
    for frame in chain.frames[1:]:
        advance(frame, bits)
    if len(chain.frames) > 1:
        check_result(chain.frames[-1].header, bits)
    return bits


def _patch(frame: Frame, job: _Work, keeper: Keeper | None) -> None:
    header = frame.header
    codec = registry.sparse_codec(header.codec)
    old = job.target.load() if codec.needs_whole_base else None
    changes = frame.listed
    if changes is None:
        changes = codec.changes(frame.body(), old, header.size, header.dtype)
    kept = None
    if keeper is not None and codec.needs_whole_base:
        kept = keeper.keep([changes.gaps, changes.values])
    job.done.append((frame, kept))
    try:
        job.target.patch(changes)
    except BaseException:
        job.done.pop()  # a target that raises has changed nothing
        raise


def _take_all_back(jobs: Sequence[_Work]) -> None:
    """Each, whatever becomes of the others; in this thread, as there may be no room for another."""
    lost: list[BaseException] = []
    for job in jobs:
        try:
            _take_back(job)
        except BaseException as error:  # noqa: BLE001
            lost.append(error)
    if lost:
        raise StateLost(
            f"an apply failed, and so did putting back {len(lost)} of the old blocks: reload the weights "
            f"({lost[0]})"
        ) from lost[0]


def _take_back(job: _Work) -> None:
    restored = True
    if job.old is not None:
        old = job.old.arrays()
        job.target.restore(old)
        restored = all(map(np.array_equal, job.target.held(), old))
    for frame, kept in reversed(job.done):
        job.target.unpatch(_changes_again(frame, kept))
    base = job.chain.base
    if base is not None:
        restored = job.target.agrees(base)
    if not restored:
        raise IntegrityError(f"{job.chain.frames[0].header.label()}: another block than before")


def _changes_again(frame: Frame, kept: Kept | None) -> Changes:
    header = frame.header
    codec = registry.sparse_codec(header.codec)
    if kept is None and frame.listed is not None:
        return frame.listed
    if kept is None:
        return codec.changes(frame.body(), None, header.size, header.dtype)
    gaps, values = kept.arrays()
    return Changes(codec.rule(header.dtype), header.size, gaps, values)


def _report(jobs: Sequence[_Work]) -> Applied:
    changed = replaced = 0
    for job in jobs:
        if job.replaces:
            replaced += job.chain.unit.size
        else:
            changed += sum(_listed(frame) for frame in job.chain.frames)
    return Applied({job.chain.unit: job.chain.result for job in jobs}, changed, replaced)


def _listed(frame: Frame) -> int:
    codec = registry.sparse_codec(frame.header.codec)
    return codec.count(frame.body(), frame.header.size)
