"""One chain of versions as one rank writes it: its session, its baseline, what is in flight."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, WStoreError
from wstore_transports.delta.anchor_schedule import Anchors
from wstore_transports.delta.flight import Flight, give_up
from wstore_transports.delta.parts import UPLOADS, Destination, PartSink
from wstore_transports.delta.pending import PendingDelta, PendingFull
from wstore_transports.delta.replicas import stored_elsewhere
from wstore_transports.delta.reports import PublishReport
from wstore_transports.delta.resuming import proven_baseline
from wstore_transports.delta.spool import Spool
from wstore_transports.errors import AttemptAborted, NoVersion
from wstore_transports.versions.documents import Abort, Weights
from wstore_transports.versions.janitor import Janitor
from wstore_transports.versions.merge import UNSTORED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore_transports.checkpoint.pieces import Inventory
    from wstore_transports.delta.baseline import Baseline, Where
    from wstore_transports.delta.pending import Pending, Prepared
    from wstore_transports.delta.reports import CommitReport
    from wstore_transports.versions import Attempt, PublishSession, Retention, Root, Version

_log = logging.getLogger("wstore.delta")

LOST = "the baseline of this rank is lost"
"""Begins the reason of an abort after which all ranks publish whole weights."""

METADATA = {"format": "pt"}
"""Of every manifest, as the Hugging Face libraries want it of files."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a chain is written; the arguments of `Publisher`.

    Attributes:
        codec: of deltas.
        anchor_codec: of whole weights.
        anchor_every: versions from one anchor to the next.
        where: where the baseline lies.
        threads: blocks that are encoded at once.
        memory_bytes: of encoded weights that are kept in memory.
        spill: where the rest goes; the system's temporary directory when None.
        timeout_s: how long ranks wait for one another.
    """

    codec: str
    anchor_codec: str
    anchor_every: int
    where: Where
    threads: int
    memory_bytes: int
    spill: Path | str | None
    timeout_s: float


@dataclass(slots=True, eq=False)
class Work:
    """A version of one chain that is being handed in.

    Attributes:
        attempt: open.
        sink: where its frames go.
        pending: takes its tensors.
        seconds: by stage.
        began: when the tensors began to come, by the monotonic clock.
        prepared: what to launch, once all of them have.
    """

    attempt: Attempt
    sink: PartSink
    pending: Pending
    seconds: dict[str, float]
    began: float = field(default_factory=time.monotonic)
    prepared: Prepared | None = None


class Chain:
    """Used by one thread at a time.

    Args:
        committed: called with each version once the log shows it; on a background thread.
    """

    def __init__(
        self,
        root: Root,
        session: PublishSession,
        settings: Settings,
        retention: Retention | None,
        *,
        committed: Callable[[Version], None] = lambda version: None,
    ) -> None:
        self.root = root
        self.session = session
        self.last: CommitReport | None = None
        self._settings = settings
        self._committed = committed
        self._spool = Spool(settings.memory_bytes, settings.spill)
        self._baseline: Baseline | None = None
        self._newest: Version | None = None  # what the baseline holds
        self._restart = False  # a rank has lost its baseline, so all publish whole weights
        self._flight: Flight | None = None
        self._ended = False
        self._closed = False
        self._anchors = Anchors(root, session, settings, self._spool)
        self._janitor = Janitor(root, retention) if session.rank == 0 else None

    @property
    def begun(self) -> bool:
        """Whether anything was published or resumed."""
        return self._baseline is not None or self._flight is not None

    def resume(self, inventory: Inventory) -> bool:
        """Take these weights for what was published last, when they are. Whether they are.

        Raises:
            IntegrityError, NewerFormat, VersionGone: of the newest version.
        """
        try:
            newest = self.root.latest()
        except NoVersion:
            return False
        self._newest = newest
        self._baseline = proven_baseline(
            inventory,
            newest,
            where=self._settings.where,
            threads=self._settings.threads,
            rank=self.session.rank,
            ranks=self.session.ranks,
        )
        if self._baseline is None:
            _log.warning(
                "%s: the weights are not those of version %d: the next version is a full one",
                self.root.path.url,
                newest.number,
            )
        return self._baseline is not None

    def forget(self) -> None:
        """Publish whole weights next."""
        self._baseline = None

    # One version

    def begin(self, step: int, *, full: bool) -> Work:
        """Settle the version before, and open the next. Raises as `Publisher.publish`."""
        if self._closed:
            raise InvalidArgument("this publisher is closed", url=self.root.path.url)
        started = time.monotonic()
        self.settle()
        settled = time.monotonic()
        self._anchors.traffic.begin()
        try:
            attempt = self._open(step, full=full)
        except BaseException:
            self._anchors.traffic.end()
            raise
        sink = self._sink(attempt)
        pending = self._pending(attempt, sink)
        seconds = {"wait": settled - started, "open": time.monotonic() - settled}
        return Work(attempt, sink, pending, seconds)

    def finish(self, work: Work) -> PublishReport:
        """All tensors were handed in, and may change once this returns."""
        prepared = work.pending.finish()
        work.pending.close()
        work.seconds["encode"] = time.monotonic() - work.began
        work.prepared = prepared
        return self._report(work, prepared)

    def launch(self, work: Work) -> None:
        """What is left goes on in the background."""
        prepared = work.prepared
        if prepared is None:
            raise AssertionError("launched before it was finished")
        self._flight = Flight(
            work.attempt,
            work.sink,
            prepared.contents,
            aliases=dict(prepared.baseline.aliases),
            metadata=METADATA,
            produce=prepared.produce,
            land=lambda version: self._land(version, work.attempt, prepared),
            finished=self._anchors.traffic.end,
            timeout_s=self._settings.timeout_s,
        )
        self._flight.start()

    def give_up(self, work: Work, error: BaseException) -> None:
        """The version will not come, unless it has taken off: then `settle` tells what became of it."""
        flight = self._flight
        if flight is not None and flight.attempt is work.attempt:
            if not flight.drop():
                return
            self._flight = None
        work.pending.close()
        work.sink.close()
        self._anchors.traffic.end()
        give_up(work.attempt, error)

    def settle(self) -> None:
        """Wait for the version in flight, and learn from the log what became of it.

        Raises:
            What its flight raised, once.
        """
        flight = self._flight
        if flight is None:
            return
        # Until its end is known it stays in flight, whatever interrupts this or keeps the log from being read.
        flight.join()
        if flight.version is None:
            self._decide(flight)
        if flight.version is not None:
            self.last = flight.report()
        self._flight = None
        flight.sink.close()
        if flight.error is not None:
            if flight.version is not None:
                number = flight.version.number
                flight.error.add_note(f"version {number} is committed all the same")
            raise flight.error

    def end(self) -> None:
        """Say that no version will follow; after the anchor under way, which could not be committed then. Idempotent."""
        if self._ended:
            return
        self.settle()
        self._anchors.finish()
        self.session.end()
        self._ended = True

    def close(self) -> None:
        """Finish what is in flight, and an anchor under way; stop the rest. Idempotent."""
        self._closed = True
        try:
            self.settle()
            self._anchors.finish()
        finally:
            if self._flight is not None:
                self._flight.sink.close()
            self._anchors.close()
            if self._janitor is not None:
                self._janitor.close()
            self.session.close()
            self._spool.close()

    def _open(self, step: int, *, full: bool) -> Attempt:
        """The next attempt; the anchor that rank 0 asks for with it is begun."""
        newest, ready = self._newest, self._baseline is not None and not self._restart
        timeout_s = self._settings.timeout_s
        if self.session.rank == 0:
            delta = newest is not None and ready and not full
            base = newest.number if newest is not None and delta else 0
            cuts = self._anchors.due(newest) if newest is not None and delta else None
            attempt = self.session.open_attempt(
                step,
                kind="delta" if delta else "full",
                base=base,
                anchor=0 if cuts is None else base,
                cuts=cuts,
                timeout=timeout_s,
            )
        else:
            attempt = self.session.open_attempt(step, kind=None, timeout=timeout_s)
        if attempt.opened.kind == "delta":
            self._check_follows(attempt, newest, ready=ready, full=full)
        if attempt.opened.anchor and self._baseline is not None:
            self._anchors.begin(self._baseline, attempt.opened.cuts)
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

    def _sink(self, attempt: Attempt) -> PartSink:
        to = Destination(attempt.path, attempt.object_name, f"r{attempt.rank:05d}.p")
        whole = attempt.opened.kind == "full"
        return PartSink(to, self._spool, most_queued=2 * UPLOADS if whole else None)

    def _pending(self, attempt: Attempt, sink: PartSink) -> Pending:
        settings = self._settings
        if attempt.opened.kind == "delta" and self._baseline is not None:
            return PendingDelta(
                self._baseline,
                sink,
                codec=settings.codec,
                threads=settings.threads,
                before_change=self._anchors.before_change,
            )
        return PendingFull(
            sink,
            codec=settings.anchor_codec,
            threads=settings.threads,
            where=settings.where,
            may_be_empty=self.session.ranks > 1,
            make_room=self._make_room,
        )

    def _make_room(self) -> None:
        """Two baselines at a time would take the memory of two models."""
        self._anchors.close()
        self._baseline = None

    def _report(self, work: Work, prepared: Prepared) -> PublishReport:
        baseline, opened = prepared.baseline, work.attempt.opened
        pieces = baseline.pieces.values()
        return PublishReport(
            step=opened.step,
            kind=opened.kind,
            base=opened.base,
            tensors=len(pieces),
            elements=sum(piece.box.size for piece in pieces),
            changed=prepared.changed,
            raw_nbytes=sum(piece.nbytes for piece in pieces),
            nbytes=work.sink.nbytes,
            spilled_nbytes=self._spool.spilled_nbytes,
            baseline_nbytes=baseline.nbytes,
            queue_depth=work.sink.queued,
            seconds=work.seconds,
        )

    def _land(self, version: Version, attempt: Attempt, prepared: Prepared) -> None:
        if self._janitor is not None:
            self._janitor.wake()
        self._baseline = None  # of no use should anything from here on fail
        self._newest = version
        self._committed(version)
        prepared.land()
        if version.kind == "full" and self.session.ranks > 1:
            names = stored_elsewhere(prepared.baseline, version.manifest(), self.session.rank)
            prepared.baseline.give_up(names)
        self._baseline = prepared.baseline
        self._restart = False
        self._anchors.landed(version, attempt)

    def _decide(self, flight: Flight) -> None:
        """What the log says of a version whose flight failed."""
        settled = self.session.settle(timeout=self._settings.timeout_s)
        if settled is None or settled[0] is not flight.attempt:
            return
        attempt, outcome = settled
        if isinstance(outcome, Weights) and attempt.committed is not None:
            flight.land(attempt.committed)
            flight.error = None
            return
        # Who stores a replica may have changed with the ranks, in a run that was resumed.
        if isinstance(outcome, Abort) and (LOST in outcome.reason or UNSTORED in outcome.reason):
            self._restart = True
