"""Frames onto the weights that an engine holds, in place, all or nothing.

Before the first write: every label fits the state, the frames of each block form a chain, every touched
block is the base that its chain starts from, and there is room for what undoing may need. Then each block
is written and its result proven. When anything fails, all blocks are taken back, and proven to be what they
were.

`xor` and `ulp` deltas are their own undo. Of `context` deltas the changes are kept, of replaced blocks the
old bytes: in a `Journal`, or not at all with `apply_to_copies`, where the old arrays stay as they are.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs import base as registry
from wstore_codecs import tensors
from wstore_codecs.base import SparseCodec
from wstore_codecs.block import check_disjoint
from wstore_codecs.chain import Chain, advance, link
from wstore_codecs.changes import Changes, rule_of
from wstore_codecs.frame import Frame, check_result, decode_bits
from wstore_codecs.journal import Journal, Keeper, Kept
from wstore_codecs.slices import SliceProof, SliceTarget
from wstore_codecs.targets import Held, HostTarget, held_whole, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

    from wstore_codecs.block import Block
    from wstore_codecs.cutting import Unit
    from wstore_codecs.proof import Proof
    from wstore_codecs.targets import Piece, State, Target
    from wstore_codecs.tensors import Array, Bits

    T = TypeVar("T")


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
) -> Applied:
    """Bring the arrays of a state to the version that the frames lead to, in place, or change nothing.

    Args:
        frames: of any blocks; several of one block are versions of it, oldest first.
        state: arrays by tensor name; see `targets`. Nobody else may use them meanwhile.
        slices: proofs of units that are held in part only (`slices.slice_proof`); brought up to date.
        threads: how many blocks at once; each takes at most 4 blocks of memory beside the journal.
        journal: where undo goes; by default 256 MiB of memory and no file.

    Raises:
        InvalidArgument: a frame that does not fit the state, two frames that touch the same elements or
            memory, an unknown codec.
        IntegrityError: a block that is not the base of its frame (another version, or applied already),
            a version that is missing in between, a result that is not what was encoded.
        UnalignedSlice: a block that is held in part, with a `context` frame or without a proof.
        NoSpace: undo does not fit the journal.
    """
    planned = [_plan(chain, state, slices or {}) for chain in _chains(frames)]
    jobs = [one for one in planned if one is not None]
    _check_memory(jobs)
    with (journal or Journal()).open(sum(one.undo for one in jobs)) as keeper:
        _each(jobs, _check_base, threads)
        try:
            _each(jobs, lambda one: _run(one, keeper), threads)
        except BaseException:
            _each(jobs, _take_back, threads)
            raise
    if slices is not None:
        for one in jobs:
            if isinstance(one.target, SliceTarget):
                slices[one.chain.unit] = one.target.proof(one.chain.result)
    return _report(jobs)


def apply_to_copies(
    frames: Iterable[Frame],
    state: State,
    *,
    slices: MutableMapping[Unit, SliceProof] | None = None,
    threads: int = 1,
) -> dict[str, Array]:
    """New arrays of those tensors that the frames touch; the state's own are only read.

    The caller swaps them in. Takes the memory of the touched tensors, and no journal. Arguments and
    errors as `apply`.
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
    apply(frames, fresh, slices=proofs, threads=threads, journal=Journal(1 << 62))
    if slices is not None:
        slices.update(proofs)
    return copies


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
    sparse = [codec for codec in codecs if isinstance(codec, SparseCodec)]
    if len(sparse) < len(codecs):
        return _Work(chain, target, nbytes, replaces=True)
    undo = sum(
        codec.count(frame.body(), header.size) * (4 + unit.dtype.itemsize)
        for frame, codec in zip(chain.frames, sparse, strict=True)
        if codec.needs_whole_base
    )
    return _Work(chain, target, min(undo, nbytes), replaces=undo > nbytes)


def _target(chain: Chain, pieces: Sequence[Piece], slices: Mapping[Unit, SliceProof]) -> Target:
    unit = chain.unit
    if not held_whole(unit, pieces):
        return SliceTarget(chain, pieces, slices.get(unit))
    if len(pieces) == 1 and tensors.on_device(pieces[0].array) is not None:
        from wstore_codecs.device import DeviceTarget

        return DeviceTarget(unit, pieces)
    return HostTarget(unit, pieces)


def _check_memory(jobs: Sequence[_Work]) -> None:
    """Raises InvalidArgument when two places share memory: a change would be applied twice."""
    places = [piece for job in jobs for piece in job.target.pieces if piece.box.size]
    spans = sorted(
        (*tensors.span(piece.array, name=piece.box.tensor), at) for at, piece in enumerate(places)
    )
    active: list[tuple[int, Piece]] = []
    for start, stop, at in spans:
        piece = places[at]
        active = [(end, other) for end, other in active if end > start]
        for _, other in active:
            if tensors.overlap(piece.array, other.array, name=piece.box.tensor):
                raise InvalidArgument(
                    f"tensors {other.box.tensor!r} and {piece.box.tensor!r} share memory in the state, "
                    "and there are frames for both"
                )
        active.append((stop, piece))


def _check_base(job: _Work) -> None:
    base = job.chain.base
    if base is not None and not job.target.agrees(base):
        raise IntegrityError(
            f"{job.chain.frames[0].header.label()}: the state holds another block than the one that the "
            "frame was made from: another version, or the frame was applied already. Nothing was written"
        )


def _run(job: _Work, keeper: Keeper) -> None:
    target, chain = job.target, job.chain
    if job.replaces:
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


def _patch(frame: Frame, job: _Work, keeper: Keeper) -> None:
    header = frame.header
    codec = registry.codec(header.codec)
    assert isinstance(codec, SparseCodec)  # _plan made sure
    old = job.target.load() if codec.needs_whole_base else None
    changes = codec.changes(frame.body(), old, header.size, header.dtype)
    kept = keeper.keep([changes.gaps, changes.values]) if codec.needs_whole_base else None
    job.done.append((frame, kept))
    job.target.patch(changes)


def _take_back(job: _Work) -> None:
    header = job.chain.frames[0].header
    if job.old is not None:
        job.target.restore(job.old.arrays())
    for frame, kept in reversed(job.done):
        job.target.unpatch(_changes_again(frame, kept))
    base = job.chain.base
    if (job.old is not None or job.done) and base is not None and not job.target.agrees(base):
        raise IntegrityError(
            f"{header.label()}: an apply failed and the old block could not be put back: reload it"
        )


def _changes_again(frame: Frame, kept: Kept | None) -> Changes:
    header = frame.header
    codec = registry.codec(header.codec)
    assert isinstance(codec, SparseCodec)  # _plan made sure
    if kept is None:
        return codec.changes(frame.body(), None, header.size, header.dtype)
    gaps, values = kept.arrays()
    return Changes(rule_of(header.dtype), header.size, gaps, values)


def _each(jobs: Sequence[T], step: Callable[[T], None], threads: int) -> None:
    """Run a step for each job; after a failure no further one starts. Raises the first failure once all
    that started have ended.

    The steps run in threads even when it is one at a time: an interrupt reaches the main thread only, so
    it cannot come between a change and the note of it.
    """
    stop = threading.Event()

    def guarded(job: T) -> None:
        if not stop.is_set():
            try:
                step(job)
            except BaseException:
                stop.set()
                raise

    with ThreadPoolExecutor(max(1, threads), "wstore-apply") as pool:
        futures = [pool.submit(guarded, job) for job in jobs]
        _wait_for_all(futures, stop)
    for future in futures:
        future.result()


def _wait_for_all(futures: Sequence[Future[None]], stop: threading.Event) -> None:
    """Waits until no step runs any more, whatever interrupts; raises the interrupt then."""
    try:
        wait(futures)
    except BaseException:
        stop.set()
        _wait_for_all(futures, stop)
        raise


def _report(jobs: Sequence[_Work]) -> Applied:
    changed = replaced = 0
    for job in jobs:
        if job.replaces:
            replaced += job.chain.unit.size
        else:
            changed += sum(_listed(frame) for frame in job.chain.frames)
    return Applied({job.chain.unit: job.chain.result for job in jobs}, changed, replaced)


def _listed(frame: Frame) -> int:
    codec = registry.codec(frame.header.codec)
    assert isinstance(codec, SparseCodec)
    return codec.count(frame.body(), frame.header.size)
