"""The engine's side: brings the weights in its memory to each version, whole or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wstore import telemetry
from wstore.errors import InvalidArgument, StateLost
from wstore_codecs.journal import Journal
from wstore_transports.delta.agreement import Alone, same, together
from wstore_transports.delta.applying import Applier, report_of
from wstore_transports.delta.arrivals import Arrivals
from wstore_transports.delta.binding import bind, holding_of
from wstore_transports.delta.layouts import Registration
from wstore_transports.delta.observing import tell_apply
from wstore_transports.delta.origin import Protection, origin_of
from wstore_transports.delta.position import Position
from wstore_transports.delta.preparing import Preparation
from wstore_transports.delta.shared_cache import SharedCache
from wstore_transports.delta.spool import MEMORY_BYTES, Spool
from wstore_transports.delta.staging import Stager

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from wstore.path import StoragePath
    from wstore_codecs.cutting import Unit
    from wstore_codecs.slices import SliceProof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.targets import Framework
    from wstore_transports.delta.agreement import Group
    from wstore_transports.delta.binding import Bound, EngineState
    from wstore_transports.delta.reports import ApplyReport
    from wstore_transports.delta.staged import Staged
    from wstore_transports.versions import Mirrors, Version

T = TypeVar("T")

_log = logging.getLogger("wstore.delta")

DEAD_AFTER_S = 35.0
"""How long a publisher's counter may stand still until it counts as gone, unless told otherwise."""


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
        variant: str = "",
        shared_cache: SharedCache | Path | str | None = None,
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
            variant: the id of the form of the weights to follow; "" for the model itself.
            shared_cache: a local directory where the engines of this host share their downloads.
            threads: blocks that are decoded and applied at once; the machine's cores when None.
            memory_bytes: of encoded weights that are kept in memory; what is more goes to local disk.
            spill: a directory for that; the system's temporary directory when None.
            journal: where undo goes that deltas do not hold themselves; when None, 256 MiB of memory, and
                what is more goes where `spill` says.
            dead_after_s: how long a publisher may give no sign of life until `wait` raises.

        Raises:
            InvalidArgument: no URL, or one twice.
        """
        self._origin = origin_of(root, variant)
        cache = shared_cache
        if isinstance(cache, (str, Path)):
            cache = SharedCache(cache)
        self._pinned: int | None = None
        self._group = group or Alone()
        threads = threads or os.cpu_count() or 1
        self._spool = Spool(memory_bytes, spill)
        undo = journal or Journal(spill=spill or tempfile.gettempdir())
        self._applier = Applier(threads, undo)
        self._protection = Protection(lambda: self._origin.followed.lease(reader_id))
        self._arrivals = Arrivals(
            self._origin,
            Stager(self._origin, self._spool, cache=cache, threads=threads),
            self._protection,
            self._spool,
            cache=cache,
            dead_after_s=dead_after_s,
        )
        self._registration: Registration | None = None
        self._position = Position()
        self._preparation = Preparation(self._origin, self._arrivals, self._applier, self._group)

    @classmethod
    def at(
        cls,
        version_url: str,
        *,
        reader_id: str | None = None,
        group: Group | None = None,
        shared_cache: SharedCache | Path | str | None = None,
    ) -> Self:
        """A subscriber for one version, "URL@N", as an orchestrator hands it to its engines: `load` and
        `sync` come to version N, and wait for it where a mirror does not have it yet.

        Raises:
            InvalidArgument: no "@N" at the end.
        """
        url, at, number = version_url.rpartition("@")
        if not at or not (number.isascii() and number.isdigit()):
            raise InvalidArgument(f"{version_url!r} names no version: give URL@N")
        found = cls(url, reader_id=reader_id, group=group, shared_cache=shared_cache)
        found._pinned = int(number)
        return found

    @property
    def held(self) -> int:
        """The version that the engine holds; 0 when none is known."""
        return self._position.version

    # Looking

    def latest(self) -> Version:
        """The newest version. Raises NoVersion, NoRoot, NotARoot, ..."""
        return self._arrivals.find(None)

    def version(self, number: int) -> Version:
        """Version `number`. Raises NoVersion, VersionGone, ..."""
        return self._arrivals.find(number)

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
        number = self._position.version if after is None else after
        return self._arrivals.wait(number, timeout, cancel)

    # Loading

    def load(
        self,
        version: int | Version | None = None,
        names: Iterable[str] | None = None,
        box: Mapping[str, tuple[slice, ...]] | None = None,
        *,
        framework: Framework = "numpy",
        timeout: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> dict[str, Array]:
        """A version in new memory: the nearest whole weights, and the deltas after them.

        From then on this is what the engine holds: hand these arrays to `apply` and `sync`.

        Args:
            version: which one; the newest by default. A number that is not there yet is waited for.
            names: what to load; everything by default. Tied names resolve.
            box: by tensor, the slices (step 1) to load of it; others are loaded whole.
            framework: of the memory: "numpy" (bf16 and fp8 by ml_dtypes) or "torch".
            timeout: seconds to wait for a version that is named and not there yet.

        Returns:
            By name, tied names too; tied names are one array.

        Raises:
            InvalidArgument: names or boxes that do not fit. IntegrityError: naming tensor and URL.
            VersionGone: retention let it go. NoVersion, NoRoot, NotARoot.
        """
        wanted = self._pinned if version is None else version
        if wanted is None:
            target = self.latest()
        else:
            target = self._arrivals.await_version(wanted, timeout, cancel)
        chosen = None if names is None else list(names)
        shapes = self._origin.manifest(target)
        holding = holding_of(shapes, chosen, box or {})
        staged = self._arrivals.stage(target, 0, holding, None, framework=framework, cancel=cancel)
        loaded = staged.loaded
        if loaded is None:
            raise AssertionError("a route from nothing begins with whole weights")
        self._hold(staged, loaded.slices)
        self._renew(staged.version)
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
        wanted = self._pinned if version is None else version
        target = self._arrivals.find(wanted)
        return self._preparation.prefetch(self._position, target, state, cancel=cancel)

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
        url = self._origin.path.url
        with telemetry.span("apply", url, level=logging.INFO) as operation:
            started = time.monotonic()
            try:
                outcome = together(
                    self._group,
                    lambda confirm: self._applier.run(
                        staged,
                        self._bind(staged, state),
                        self._position.slices,
                        confirm,
                        arrived=lambda slices: self._hold(staged, slices),
                    ),
                )
            except StateLost:
                self._position = Position()
                raise
            staged.seconds["apply"] = time.monotonic() - started
            self._renew(staged.version)
            report = report_of(staged, outcome, self._spool.spilled_nbytes)
            tell_apply(operation, report)
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
        wanted = self._pinned if version is None else version
        staged = together(
            self._group,
            lambda confirm: self._preparation.next(
                self._position, state, wanted, timeout, cancel, confirm
            ),
        )
        try:
            return self.apply(staged, state)
        except BaseException:
            staged.close()
            raise

    def register(self, state: EngineState, engine: str) -> None:
        """Ask the publisher to cut blocks at the bounds of what this engine holds, from the next anchor on.

        Deltas then hold fewer blocks that the engine needs only in part. It is asked again of each later
        publisher of the root, after the first version of its that is applied here.

        Args:
            state: what is held, as `apply` takes it.
            engine: a name that no other engine of the root has; ranks of one engine each need their own.

        Raises:
            InvalidArgument: a bad name, a state that does not fit the newest version. NoVersion; the
                store's errors.
        """
        newest = self.latest()
        holding = bind(state, self._origin.manifest(newest)).holding()
        boxes = {name: [box] for name, box in holding.items() if box is not None}
        self._registration = Registration(engine, boxes)
        self._registration.renew(newest)

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

    def _bind(self, staged: Staged, state: EngineState) -> Bound:
        if staged.route.start is not None and staged.route.start != self._position.version:
            raise InvalidArgument(
                f"version {staged.version.number} was staged for a holder of version "
                f"{staged.route.start}, and version {self._position.version} is held",
                url=self._origin.path.url,
            )
        return bind(state, staged.manifest).within(staged.holding)

    def _hold(self, staged: Staged, slices: Mapping[Unit, SliceProof]) -> None:
        self._position = Position(staged.version.number, staged.manifest, staged.holding, slices)

    def _renew(self, version: Version) -> None:
        if self._registration is not None:
            self._registration.renew_quietly(version)
