"""The engine's side: brings the weights in its memory to each version, whole or not at all."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import InvalidArgument, NotFound, StateLost
from wstore.path import StoragePath
from wstore_codecs.apply import apply, check_bases
from wstore_codecs.block import Block
from wstore_codecs.journal import Journal
from wstore_codecs.shielding import shielded
from wstore_codecs.targets import Held
from wstore_codecs.tensors import copied
from wstore_transports.checkpoint.reader import box_of
from wstore_transports.delta.agreement import Alone, agree, decide, same
from wstore_transports.delta.binding import bind
from wstore_transports.delta.copying import check_copies, copy_into
from wstore_transports.delta.following import Follower, Patience
from wstore_transports.delta.origin import Origin, Protection
from wstore_transports.delta.reports import ApplyReport
from wstore_transports.delta.route import find_route
from wstore_transports.delta.spool import MEMORY_BYTES, Spool
from wstore_transports.delta.staging import Stager, missing_slices
from wstore_transports.errors import GroupFailed, VersionGone
from wstore_transports.versions import Mirrors
from wstore_transports.versions.pace import Pace

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.slices import SliceProof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.targets import Framework
    from wstore_transports.delta.agreement import Group
    from wstore_transports.delta.ahead import Ahead
    from wstore_transports.delta.binding import Bound, EngineState
    from wstore_transports.delta.staging import Staged
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest

T = TypeVar("T")

_log = logging.getLogger("wstore.delta")

DEAD_AFTER_S = 35.0
"""How long a publisher's counter may stand still until it counts as gone, unless told otherwise."""

_RESTARTS = 3  # how often a route is looked for when retention was faster


class Subscriber:
    """Follows a root of deltas. One instance an engine process, used by one thread at a time.

    It remembers which version the engine holds, as of the last `load`, `apply` or `sync`, and fetches what
    leads from there to the next: deltas, or whole weights and the deltas after them. Everything is
    verified before the first byte of the engine's memory changes; when anything fails, the memory is what it
    was.

    Beside the engine's weights it takes at most `memory_bytes` of encoded weights and `journal.memory_bytes`
    of undo, and a few blocks a thread; loading whole weights into an engine that serves takes a second copy of
    what it holds.
    """

    def __init__(
        self,
        root: StoragePath | str | Sequence[StoragePath | str] | Mirrors,
        *,
        reader_id: str | None = None,
        group: Group | None = None,
        threads: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        spill: Path | str | None = None,
        journal: Journal | None = None,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        """Open lazily: nothing is read, and the root need not exist yet.

        Args:
            root: the root's URL, or those of mirrors of one root, the preferred one first.
            reader_id: a name for this reader's leases (default: host and process).
            group: the ranks of a tensor-parallel engine: they apply together or not at all. Every rank
                then makes the same calls in the same order.
            threads: blocks that are decoded and applied at once; the machine's cores when None.
            memory_bytes: of encoded weights that are kept in memory; what is more goes to local disk.
            spill: a directory for that; the system's temporary directory when None.
            journal: where undo goes that deltas do not hold themselves (256 MiB of memory when None).
            dead_after_s: how long a publisher may give no sign of life until `wait` raises.

        Raises:
            InvalidArgument: no URL, or one twice.
        """
        if isinstance(root, (str, StoragePath)):
            self._origin = Origin(StoragePath(root))
        else:
            mirrors = root if isinstance(root, Mirrors) else Mirrors([*map(StoragePath, root)])
            self._origin = Origin(mirrors)
        self._group = group or Alone()
        self._threads = threads or os.cpu_count() or 1
        self._spool = Spool(memory_bytes, spill)
        self._stager = Stager(self._origin, self._spool, threads=self._threads)
        self._journal = journal or Journal(spill=spill)
        self._dead_after_s = dead_after_s
        self._pace = Pace()
        self._protection = Protection(lambda: self._origin.followed.lease(reader_id))
        self._held = 0
        self._manifest: Manifest | None = None
        self._holding: Holding = {}
        self._slices: dict[Unit, SliceProof] = {}

    @property
    def held(self) -> int:
        """The version that the engine holds; 0 when none is known."""
        return self._held

    # Looking

    def latest(self) -> Version:
        """The newest version. Raises NoVersion, NoRoot, NotARoot, ..."""
        return self._origin.followed.latest()

    def version(self, number: int) -> Version:
        """Version `number`. Raises NoVersion, VersionGone, ..."""
        return self._origin.followed.version(number)

    def wait(
        self,
        after: int | None = None,
        timeout: float = 600.0,
        *,
        cancel: threading.Event | None = None,
    ) -> Version:
        """The newest version once there is one newer than `after`; also waits for the root itself.

        Args:
            after: a version; the held one when None.
            timeout: seconds.

        Raises:
            WaitTimeout: none within `timeout`. RunEnded: none will come. PublisherLost: the publisher gave
                no sign of life for `dead_after_s`; the weights stay as they are, call again to go on
                waiting. Cancelled.
        """
        number = self._held if after is None else after
        return self._origin.wait(
            number, timeout=timeout, cancel=cancel, dead_after_s=self._dead_after_s
        )

    # Loading

    def load(
        self,
        version: int | Version | None = None,
        names: Iterable[str] | None = None,
        box: Mapping[str, tuple[slice, ...]] | None = None,
        *,
        framework: Framework = "numpy",
        cancel: threading.Event | None = None,
    ) -> dict[str, Array]:
        """A version in new memory: the nearest whole weights, and the deltas after them.

        From then on this is what the engine holds: hand these arrays to `apply` and `sync`.

        Args:
            version: which one; the newest by default.
            names: what to load; everything by default. Tied names resolve.
            box: by tensor, the slices (step 1) to load of it; others are loaded whole.
            framework: of the memory: "numpy" (bf16 and fp8 by ml_dtypes) or "torch".

        Returns:
            By name, tied names too; tied names are one array.

        Raises:
            InvalidArgument: names or boxes that do not fit. IntegrityError: naming tensor and URL.
            VersionGone: retention let it go. NoVersion, NoRoot, NotARoot.
        """
        target = self._version(version)
        chosen = None if names is None else list(names)
        shapes = self._origin.manifest(target)
        holding = holding_of(shapes, chosen, box or {})
        staged = self._stage(target, 0, holding, framework, None, cancel)
        loaded = staged.loaded
        if loaded is None:
            raise AssertionError("a route from nothing begins with whole weights")
        self._hold(staged, loaded.slices)
        arrays = dict(loaded.arrays)
        found = {**arrays, **{a: arrays[n] for a, n in shapes.aliases.items() if n in arrays}}
        staged.close()
        return found if chosen is None else {name: found[name] for name in chosen}

    # Following

    def prefetch(
        self,
        version: int | Version | None = None,
        state: EngineState | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> Staged:
        """Fetch and prove what leads to a version, while the engine goes on serving.

        Args:
            version: which one; the newest by default.
            state: the engine's weights, to fetch what they need, and to check already that they are what
                the deltas apply to: the pause of `apply` is shorter then. They must not change until
                `apply`. By default everything that the last `load` or `apply` held.

        Returns:
            To be handed to `apply`, or closed.

        Raises:
            VersionGone: retention let the version go. IntegrityError, NoVersion, NoSpace, Cancelled, ...
        """
        return self._prefetch(self._version(version), state, None, cancel)

    def apply(self, staged: Staged, state: EngineState) -> ApplyReport:
        """Bring the engine's memory to the version that was staged: all of it, or nothing.

        With a group: on all ranks or on none. Nobody else may use the arrays meanwhile.

        Args:
            state: every tensor of the version by name: whole, a `Shard` or DTensor, or None where
                nothing of it is held here. Tied names that are apart in memory are both updated.

        Raises:
            InvalidArgument: the state does not fit, or was staged for another held version.
            IntegrityError: the memory is not the version that is held, or the result is not what was
                published. UnalignedSlice, NoSpace. GroupFailed: another rank could not.
            StateLost: the memory could not be put back: load the weights again.
        """
        same(self._group, str(staged.version.number), "the version to apply")
        started = time.monotonic()
        try:
            outcome = self._voting(lambda confirm: self._apply(staged, state, confirm))
        except StateLost:
            self._held = 0
            raise
        seconds = {**staged.seconds, "apply": time.monotonic() - started}
        elements, changed, replaced, slices = outcome
        self._hold(staged, slices)
        report = ApplyReport(
            version=staged.version.number,
            step=staged.version.step,
            digest=staged.version.digest,
            versions=len(staged.route.deltas) if staged.route.whole is None else 0,
            elements=elements,
            changed=changed,
            replaced=replaced,
            fetched_nbytes=staged.fetched_nbytes,
            spilled_nbytes=self._spool.spilled_nbytes,
            seconds=seconds,
        )
        staged.close()
        return report

    def sync(
        self,
        state: EngineState,
        version: int | Version | None = None,
        *,
        timeout: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> ApplyReport:
        """Wait for a version newer than the held one, prefetch it and apply it.

        Args:
            version: a version to come to in place of the newest.
            timeout: seconds to wait for one.

        Raises:
            As `wait`, `prefetch` and `apply`. In each case the memory is what it was.
        """
        staged = self._voting(
            lambda confirm: self._stage_next(state, version, timeout, cancel, confirm)
        )
        return self.apply(staged, state)

    def close(self) -> None:
        """Give leases and memory back. Idempotent."""
        self._protection.release()
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # How

    def _version(self, version: int | Version | None) -> Version:
        if version is None:
            return self.latest()
        return self.version(version) if isinstance(version, int) else version

    def _stage_next(
        self,
        state: EngineState,
        version: int | Version | None,
        timeout: float,
        cancel: threading.Event | None,
        confirm: Callable[[], None],
    ) -> Staged:
        """The version to come to, staged on all ranks."""
        started = time.monotonic()
        ahead: Ahead | None = None
        if version is None:
            target, ahead = self._next(state, timeout, cancel)
            chosen = int(decide(self._group, str(target.number)))
            if chosen != target.number:
                target = self.version(chosen)
        else:
            target = self._version(version)
        waited = time.monotonic() - started
        try:
            staged = self._insist(target, state, ahead, cancel)
        finally:
            if ahead is not None:
                ahead.close()
        try:
            confirm()
        except BaseException:
            staged.close()
            raise
        staged.seconds["wait"] = waited
        return staged

    def _next(
        self, state: EngineState, timeout: float, cancel: threading.Event | None
    ) -> tuple[Version, Ahead | None]:
        """The next version, read ahead where one root is followed from a version that is held."""
        root = self._origin.single
        if root is None or self._manifest is None:
            return self.wait(timeout=timeout, cancel=cancel), None
        holding = bind(state, self._manifest).holding()
        patience = Patience(timeout, cancel, self._dead_after_s, self._pace)
        return Follower(root, self._held, holding, self._spool, patience).wait()

    def _insist(
        self,
        target: Version,
        state: EngineState,
        ahead: Ahead | None,
        cancel: threading.Event | None,
    ) -> Staged:
        """The target, staged; an engine of one rank begins again from the newest version when retention was
        faster."""
        for left in reversed(range(_RESTARTS)):
            try:
                return self._prefetch(target, state, ahead, cancel)
            except VersionGone as error:
                if self._group.size > 1 or not left:
                    raise
                _log.warning("%s: beginning again from the newest version", error)
                target = self.latest()
        raise AssertionError("the last try returns or raises")

    def _prefetch(
        self,
        target: Version,
        state: EngineState | None,
        ahead: Ahead | None,
        cancel: threading.Event | None,
    ) -> Staged:
        holding = self._holding
        if state is not None:
            holding = bind(state, self._manifest or self._origin.manifest(target)).holding()
        staged = self._stage(target, self._held, holding, "numpy", ahead, cancel)
        if state is not None and staged.loaded is None:
            started = time.monotonic()
            try:
                self._check(staged, state)
            except BaseException:
                staged.close()
                raise
            staged.seconds["check"] = time.monotonic() - started
        return staged

    def _stage(
        self,
        target: Version,
        held: int,
        holding: Holding,
        framework: Framework,
        ahead: Ahead | None,
        cancel: threading.Event | None,
    ) -> Staged:
        route = find_route(target, held)
        if not route.versions:
            raise InvalidArgument(
                f"version {target.number} is held already", url=self._origin.path.url
            )
        self._protection.cover(*route.versions)
        try:
            return self._stager.stage(
                route, holding, self._manifest, framework=framework, ahead=ahead, cancel=cancel
            )
        except NotFound as error:
            raise target.missing(error) from error
        finally:
            self._protection.cover()

    def _check(self, staged: Staged, state: EngineState) -> None:
        """Check already what `apply` would check first."""
        bound = self._bound(staged, state)
        memory = bound.state()
        segments = staged.segments()
        if len(segments) != 1:
            return  # of later segments the bases are not there yet
        staged.slices = missing_slices(segments[0], memory, self._slices)
        staged.checked = check_bases(
            segments[0], memory, slices=staged.slices, threads=self._threads
        )

    def _bound(self, staged: Staged, state: EngineState) -> Bound:
        if staged.route.start is not None and staged.route.start != self._held:
            raise InvalidArgument(
                f"version {staged.version.number} was staged for a holder of version "
                f"{staged.route.start}, and version {self._held} is held",
                url=self._origin.path.url,
            )
        bound = bind(state, staged.manifest)
        for piece in bound.all():
            box = staged.holding.get(piece.name, Block.whole(piece.name, piece.shape))
            if box is None or (piece.box.size and not box.contains(piece.box)):
                raise InvalidArgument(
                    f"{piece.box} is held, and what was staged is {box}: prefetch with this state"
                )
        return bound

    def _apply(
        self, staged: Staged, state: EngineState, confirm: Callable[[], None]
    ) -> tuple[int, int, int, dict[Unit, SliceProof]]:
        """(elements of the frames, changed, replaced, proofs of slices)."""
        bound = self._bound(staged, state)
        loaded = staged.loaded
        if loaded is not None:
            pieces = bound.all()
            check_copies(pieces, loaded.arrays, staged.holding)
            confirm()
            shielded(lambda _: copy_into(pieces, loaded.arrays, staged.holding))
            elements = sum(piece.box.size for piece in pieces)
            return elements, 0, elements, {}
        segments = staged.segments()
        if not segments:
            confirm()
            return 0, 0, 0, self._slices
        if len(segments) > 1:
            return self._apply_segments(segments, bound, confirm)
        memory = bound.state()
        slices = missing_slices(segments[0], memory, staged.slices or self._slices)
        applied = apply(
            segments[0],
            memory,
            slices=slices,
            threads=self._threads,
            journal=self._journal,
            checked=staged.checked,
            confirm=lambda: self._apply_copies(segments[0], bound, 0, confirm),
        )
        elements = sum(unit.size for unit in applied.proofs)
        return elements, applied.changed, applied.replaced, slices

    def _apply_segments(
        self, segments: Sequence[Sequence[Frame]], bound: Bound, confirm: Callable[[], None]
    ) -> tuple[int, int, int, dict[Unit, SliceProof]]:
        """Across a change of how tensors are cut: onto copies, which are then copied back."""
        fresh = {
            name: Held(copied(entry.array, name=name), entry.shape, entry.origin)
            for name, entry in bound.held().items()
        }
        memory: dict[str, Array | Held | None] = {name: fresh.get(name) for name in bound.pieces}
        slices = self._slices
        elements = changed = replaced = 0
        for frames in segments:
            slices = missing_slices(frames, memory, slices)
            applied = apply(frames, memory, slices=slices, threads=self._threads)
            elements += sum(unit.size for unit in applied.proofs)
            changed, replaced = changed + applied.changed, replaced + applied.replaced
        pieces, boxes = bound.all(), bound.holding()
        arrays = {name: held.array for name, held in fresh.items()}
        check_copies(pieces, arrays, boxes)
        confirm()
        shielded(lambda _: copy_into(pieces, arrays, boxes))
        return elements, changed, replaced, slices

    def _apply_copies(
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
            threads=self._threads,
            journal=self._journal,
            confirm=lambda: self._apply_copies(frames, bound, index + 1, confirm),
        )

    def _voting(self, work: Callable[[Callable[[], None]], T]) -> T:
        """What `work` returns. It calls what it is given at the point where all ranks must be ready; when
        one of them is not, this raises on every rank."""
        voted = False

        def confirm() -> None:
            nonlocal voted
            voted = True
            agree(self._group, True, "")

        try:
            return work(confirm)
        except BaseException as error:
            if not voted:
                with suppress(GroupFailed):
                    agree(self._group, False, f"{type(error).__name__}: {error}")
            raise

    def _hold(self, staged: Staged, slices: dict[Unit, SliceProof]) -> None:
        self._held = staged.version.number
        self._manifest = staged.manifest
        self._holding = staged.holding
        self._slices = slices


def holding_of(
    manifest: Manifest, names: Sequence[str] | None, boxes: Mapping[str, tuple[slice, ...]]
) -> Holding:
    """What is held when these names are, whole but for those with a box.

    Raises:
        InvalidArgument: names that the version lacks, boxes of names that are not held.
    """
    stored = {**{name: name for name in manifest.tensors}, **manifest.aliases}
    wanted = stored if names is None else dict.fromkeys(names)
    unknown = sorted(name for name in (*wanted, *boxes) if name not in stored)
    stray = sorted(name for name in boxes if name in stored and name not in wanted)
    if unknown or stray:
        raise InvalidArgument(
            f"names do not fit: not in the version: {unknown[:10]}; boxes of others: {stray[:10]}"
        )
    holding: dict[str, Block | None] = dict.fromkeys(manifest.tensors)
    for name in wanted:
        tensor = manifest.tensors[stored[name]]
        box = box_of(stored[name], tuple(tensor.shape), boxes.get(name, ()))
        before = holding[stored[name]]
        if before is not None and before != box:
            raise InvalidArgument(f"tensor {name!r} is asked for under two names, with other boxes")
        holding[stored[name]] = box
    return holding
