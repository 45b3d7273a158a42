"""The trainer's side: each version as what changed since the one before."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, WStoreError
from wstore.path import StoragePath
from wstore_codecs import base as codecs
from wstore_transports.checkpoint.pieces import Collector
from wstore_transports.delta.anchors import AnchorJob, Traffic
from wstore_transports.delta.flight import Flight, give_up
from wstore_transports.delta.parts import UPLOADS, Destination, PartSink
from wstore_transports.delta.pending import PendingDelta, PendingFull
from wstore_transports.delta.replicas import stored_elsewhere
from wstore_transports.delta.reports import PublishReport
from wstore_transports.delta.resuming import proven_baseline
from wstore_transports.delta.spool import MEMORY_BYTES, Spool
from wstore_transports.delta.whole import Snapshot
from wstore_transports.errors import AttemptAborted, NoVersion
from wstore_transports.versions import Retention, enter
from wstore_transports.versions.anchoring import Anchoring
from wstore_transports.versions.documents import Abort, Weights
from wstore_transports.versions.janitor import Janitor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Shard, Tensors
    from wstore_transports.delta.baseline import Baseline, Where
    from wstore_transports.delta.pending import Pending, Prepared
    from wstore_transports.delta.reports import CommitReport
    from wstore_transports.versions import Attempt, Version

_log = logging.getLogger("wstore.delta")

ANCHOR_EVERY = 10
"""Versions from one anchor to the next, unless told otherwise."""

LOST = "the baseline of this rank is lost"
"""Begins the reason of an abort after which all ranks publish whole weights."""

METADATA = {"format": "pt"}


class Publisher:
    """Publishes versions of a model under a root; one instance a rank, used by one thread at a time.

    Starting one takes the root over: a publisher of an earlier start can commit nothing more (`Fenced`).
    The first version holds whole weights, each later one what changed; every `anchor_every` versions whole
    weights follow in the background, for readers that join. One version is in flight at a time.

    It keeps a copy of this rank's tensors (the baseline), and beside it at most `memory_bytes` of encoded
    weights and a few blocks a thread.

    A context manager: leaving it normally says that the run has ended, so that waiting readers stop;
    leaving it by an exception does not.
    """

    def __init__(
        self,
        root: StoragePath | str,
        *,
        rank: int = 0,
        world_size: int = 1,
        codec: str = "auto",
        anchor_every: int = ANCHOR_EVERY,
        anchor_codec: str = "planes",
        keep: int | None = None,
        run: str = "main",
        launch: str = "",
        baseline: Where = "host",
        threads: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        spill: Path | str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Open (rank 0: make or take over) the root.

        Args:
            root: where the versions live; made when absent.
            rank, world_size: this process, and how many write each version together.
            codec: of deltas: "auto", or "auto:max" for fewer bytes and more time, or any codec's spec.
            anchor_every: versions from one anchor to the next.
            anchor_codec: of whole weights: "planes", "zstd", "raw".
            keep: newest versions to keep; older ones that no reader leases are deleted after each
                commit, in the background. None keeps all.
            run: a name for what is being trained; part of the objects' names.
            launch: what all ranks of this start of the job share and no earlier start had (a job id
                with its restart count). Needed when `world_size` > 1.
            baseline: where the copy of the tensors lies: "host", or "device", beside the tensors.
            threads: blocks that are encoded at once; the machine's cores when None.
            memory_bytes: of encoded weights that are kept in memory; what is more goes to local disk.
            spill: a directory for that; the system's temporary directory when None.
            timeout_s: how long ranks wait for one another.

        Raises:
            InvalidArgument: values that do not fit together. NewerFormat, IntegrityError, AccessDenied:
                of the root.
        """
        if anchor_every < 1:
            raise InvalidArgument(f"anchor_every={anchor_every}: at least 1")
        if codecs.codec(anchor_codec).needs_base:
            raise InvalidArgument(f"anchor_codec={anchor_codec!r} needs a base: an anchor has none")
        codecs.codec(codec)
        retention = None if keep is None else Retention(keep_last=keep)
        path = root if isinstance(root, StoragePath) else StoragePath(root)
        self.root, self._session = enter(
            path, rank=rank, ranks=world_size, run=run, launch=launch, timeout_s=timeout_s
        )
        self._codec = codec
        self._anchor_every = anchor_every
        self._anchor_codec = anchor_codec
        self._where: Where = baseline
        self._threads = threads or os.cpu_count() or 1
        self._spool = Spool(memory_bytes, spill)
        self._timeout_s = timeout_s
        self._baseline: Baseline | None = None
        self._newest: Version | None = None  # what the baseline holds
        self._newest_attempt: Attempt | None = None
        self._restart = False  # a rank has lost its baseline, so all publish whole weights
        self._since_anchor = 0
        self._anchor_nbytes = 0
        self._flight: Flight | None = None
        self._anchor: AnchorJob | None = None
        self._traffic = Traffic()
        self._janitor = Janitor(self.root, retention) if rank == 0 else None
        self.last: CommitReport | None = None

    # Publishing

    def publish(
        self,
        step: int,
        tensors: Tensors | Iterable[tuple[str, Array | Shard]],
        *,
        full: bool = False,
    ) -> PublishReport:
        """Publish one version; returns when every changed block is encoded.

        From then on the tensors may change; upload and commit go on in the background. The next call waits
        for them, and raises what they raised: that version then does not exist, and this call may be
        repeated. `flush` waits for the commit.

        All ranks call this with the same step. Each passes what it holds: whole arrays, `Shard`s or
        DTensors; together they must cover every tensor exactly. What several ranks hold alike (replicas)
        is compared, and stored once.

        Args:
            step: the trainer's label; may repeat or fall.
            tensors: by name, or pairs of name and value: numpy (with ml_dtypes), torch (any device), any
                strides. All tensors of the version before; unchanged ones cost a comparison.
            full: publish whole weights that need no version before; needed where names, shapes or dtypes
                changed. They are copied first, so this returns before they are encoded.

        Raises:
            InvalidArgument: names, dtypes, shards that cannot be stored, or that are not those of the
                version before; a tensor is missing.
            AttemptAborted, WaitTimeout, ...: the version before was not committed.
            Fenced: another publisher has taken over.
            Whatever the store raises. In each case no version of this call appears.
        """
        pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
        with self.version(step, full=full) as version:
            for name, value in pairs:
                version.add(name, value)
        return version.report

    def version(self, step: int, *, full: bool = False) -> VersionInHand:
        """The same, tensor by tensor: `with publisher.version(step) as version: version.add(name, value)`,
        in any order, as an optimizer produces them. Encoding and upload begin with the first.

        A tensor must not change between its `add` and the end of the `with`. An exception inside aborts
        the version. Arguments and errors as `publish`.
        """
        return VersionInHand(self, step, full=full)

    def resume(self, tensors: Tensors | Iterable[tuple[str, Array | Shard]]) -> bool:
        """Continue the chain of the run before: these are the weights that the trainer starts from.

        Call it before the first `publish`, on all ranks, with the weights as they were restored. When
        their digests are those of the newest version, the next version is a delta to that; else, and
        without this call, it is a full one.

        Returns:
            Whether the chain goes on, as far as this rank can tell.

        Raises:
            InvalidArgument: something was published already; as `publish`. IntegrityError, NewerFormat.
        """
        if self._baseline is not None or self._flight is not None:
            raise InvalidArgument("resume comes before the first version", url=self.root.path.url)
        pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
        collector = Collector()
        for name, value in pairs:
            collector.add(name, value)
        try:
            newest = self.root.latest()
        except NoVersion:
            return False
        self._newest = newest
        inventory = collector.inventory()
        baseline = proven_baseline(
            inventory,
            newest,
            where=self._where,
            threads=self._threads,
            rank=self._session.rank,
            ranks=self._session.ranks,
        )
        if baseline is None:
            _log.warning(
                "%s: the weights are not those of version %d: the next version is a full one",
                self.root.path.url,
                newest.number,
            )
            return False
        self._baseline = baseline
        return True

    def flush(self) -> CommitReport | None:
        """Wait until the version in flight is committed and the baseline has followed.

        Returns:
            What became of the newest version; None before the first.

        Raises:
            What the background raised: then the version does not exist, unless a note says so.
        """
        self._settle()
        return self.last

    def end(self) -> None:
        """Say that no version will follow (rank 0), so that readers who wait get `RunEnded`."""
        self._settle()
        if self._session.rank == 0:
            self._session.end()

    def close(self) -> None:
        """Stop the background work: what is in flight is finished, an anchor under way too, for
        `timeout_s` at most. Idempotent. Raises what the version in flight raised."""
        try:
            self._settle()
            if self._anchor is not None:
                self._anchor.join(self._timeout_s)
        finally:
            if self._anchor is not None:
                self._anchor.cancel()
            if self._janitor is not None:
                self._janitor.close()
            self._session.close()
            self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            try:
                self.close()
            except WStoreError as failure:
                if error is None:
                    raise
                error.add_note(f"and the version in flight failed: {failure}")

    # One version

    def _open(self, step: int, *, full: bool) -> Attempt:
        """The next attempt; the anchor that rank 0 asks for with it is begun."""
        newest, ready = self._newest, self._baseline is not None and not self._restart
        if self._session.rank == 0:
            delta = newest is not None and ready and not full
            base = newest.number if newest is not None and delta else 0
            attempt = self._session.open_attempt(
                step,
                kind="delta" if delta else "full",
                base=base,
                anchor=base if delta and self._anchor_due() else 0,
                timeout=self._timeout_s,
            )
        else:
            attempt = self._session.open_attempt(step, kind=None, timeout=self._timeout_s)
        if attempt.opened.kind == "delta":
            self._check_follows(attempt, newest, ready=ready, full=full)
        if attempt.opened.anchor:
            self._begin_anchor()
        return attempt

    def _check_follows(
        self, attempt: Attempt, newest: Version | None, *, ready: bool, full: bool
    ) -> None:
        """Whether this rank can make the delta that rank 0 has opened; else the attempt is given up."""
        error: WStoreError | None = None
        if full:
            error = InvalidArgument("rank 0 publishes a delta, and this rank full=True")
        elif newest is None or not ready or attempt.opened.base != newest.number:
            error = AttemptAborted(
                f"{LOST}: the next version is a full one", url=self.root.path.url
            )
        if error is not None:
            give_up(attempt, error)
            raise error

    def _pending(self, attempt: Attempt, sink: PartSink) -> Pending:
        if attempt.opened.kind == "delta" and self._baseline is not None:
            return PendingDelta(
                self._baseline,
                sink,
                codec=self._codec,
                threads=self._threads,
                before_change=self._before_change,
            )
        return PendingFull(
            sink,
            codec=self._anchor_codec,
            threads=self._threads,
            where=self._where,
            cuts={},
            may_be_empty=self._session.ranks > 1,
        )

    def _sink(self, attempt: Attempt) -> PartSink:
        to = Destination(attempt.path, attempt.object_name, f"r{attempt.rank:05d}.p")
        whole = attempt.opened.kind == "full"
        return PartSink(to, self._spool, most_queued=2 * UPLOADS if whole else None)

    def _launch(self, attempt: Attempt, sink: PartSink, prepared: Prepared) -> None:
        def land(version: Version) -> None:
            self._landed(version, attempt, prepared)

        self._flight = Flight(
            attempt,
            sink,
            prepared.contents,
            aliases=dict(prepared.baseline.aliases),
            metadata=METADATA,
            produce=prepared.produce,
            land=land,
            finished=self._traffic.end,
            timeout_s=self._timeout_s,
        )
        self._flight.start()

    def _landed(self, version: Version, attempt: Attempt, prepared: Prepared) -> None:
        if self._janitor is not None:
            self._janitor.wake()
        self._newest, self._newest_attempt = version, attempt
        self._baseline = None  # of no use should this fail
        prepared.land()
        if version.kind == "full" and self._session.ranks > 1:
            manifest, rank = version.manifest(), self._session.rank
            prepared.baseline.give_up(stored_elsewhere(prepared.baseline, manifest, rank))
        self._baseline = prepared.baseline
        self._restart = False
        if version.kind == "full":
            self._since_anchor, self._anchor_nbytes = 0, version.record.nbytes
        else:
            self._since_anchor += 1

    def _settle(self) -> None:
        """Wait for the version in flight, and learn from the log what became of it."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.join()
        try:
            if flight.version is None:
                self._decide(flight)
            if flight.version is not None:
                self.last = flight.report()
        finally:
            flight.sink.close()
        if flight.error is not None:
            if flight.version is not None:
                number = flight.version.number
                flight.error.add_note(f"version {number} is committed all the same")
            raise flight.error

    def _decide(self, flight: Flight) -> None:
        """What the log says of a version whose flight failed."""
        settled = self._session.settle(timeout=self._timeout_s)
        if settled is None or settled[0] is not flight.attempt:
            return
        attempt, outcome = settled
        if isinstance(outcome, Weights) and attempt.committed is not None:
            flight.land(attempt.committed)
            flight.error = None
            return
        if isinstance(outcome, Abort) and LOST in outcome.reason:
            self._restart = True

    # Anchors

    def _anchor_due(self) -> bool:
        if self._anchor is not None and self._anchor.running:
            return False
        if self._anchor is not None and self._anchor.committed is not None:
            self._anchor_nbytes = self._anchor.committed.nbytes
        newest = self._newest
        if newest is None or newest.kind == "full" or newest.record.epoch != self._session.epoch:
            return False
        large = 0 < self._anchor_nbytes <= newest.record.nbytes
        return large or self._since_anchor >= self._anchor_every

    def _begin_anchor(self) -> None:
        """Write the whole weights of the version that the baseline holds."""
        if self._anchor is not None:
            self._anchor.cancel()
        baseline, version, attempt = self._baseline, self._newest, self._newest_attempt
        if baseline is None or version is None or attempt is None:
            raise AssertionError("an anchor without a baseline")
        self._since_anchor = 0
        self._anchor = AnchorJob(
            Anchoring(attempt, version),
            baseline,
            Snapshot(baseline, codec=self._anchor_codec, spool=self._spool, threads=self._threads),
            self._spool,
            rank=self._session.rank,
            metadata=METADATA,
            traffic=self._traffic,
            timeout_s=self._timeout_s,
        )

    def _before_change(self, units: list[int]) -> None:
        if self._anchor is not None:
            self._anchor.before_change(units)


class VersionInHand:
    """One version that is being handed in; made by `Publisher.version`. A context manager."""

    def __init__(self, publisher: Publisher, step: int, *, full: bool) -> None:
        self._publisher = publisher
        self._step = step
        self._full = full
        self._report: PublishReport | None = None
        self._seconds: dict[str, float] = {}

    @property
    def report(self) -> PublishReport:
        """What was done; once the `with` was left."""
        if self._report is None:
            raise InvalidArgument("the report of a version is there once its `with` was left")
        return self._report

    def add(self, name: str, value: Array | Shard) -> None:
        """Hand a tensor in. Raises InvalidArgument, and what an upload that has failed raised."""
        self._pending.add(name, value)

    def __enter__(self) -> Self:
        publisher = self._publisher
        started = time.monotonic()
        publisher._settle()
        settled = time.monotonic()
        publisher._traffic.begin()
        try:
            self._attempt = publisher._open(self._step, full=self._full)
        except BaseException:
            publisher._traffic.end()
            raise
        self._sink = publisher._sink(self._attempt)
        self._pending = publisher._pending(self._attempt, self._sink)
        self._began = time.monotonic()
        self._seconds = {"wait": settled - started, "open": self._began - settled}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._finish()
            except BaseException as failure:
                self._give_up(failure)
                raise
        else:
            self._give_up(error)

    def _finish(self) -> None:
        prepared = self._pending.finish()
        self._pending.close()
        self._seconds["encode"] = time.monotonic() - self._began
        pieces = prepared.baseline.pieces.values()
        self._report = PublishReport(
            step=self._step,
            kind=self._attempt.opened.kind,
            base=self._attempt.opened.base,
            tensors=len(pieces),
            elements=sum(piece.box.size for piece in pieces),
            changed=prepared.changed,
            raw_nbytes=prepared.baseline.nbytes,
            nbytes=self._sink.nbytes,
            spilled_nbytes=self._publisher._spool.spilled_nbytes,
            baseline_nbytes=prepared.baseline.nbytes,
            queue_depth=self._sink.queued,
            seconds=self._seconds,
        )
        self._publisher._launch(self._attempt, self._sink, prepared)

    def _give_up(self, error: BaseException) -> None:
        self._pending.close()
        self._sink.close()
        self._publisher._traffic.end()
        give_up(self._attempt, error)
