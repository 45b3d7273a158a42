"""When anchors are written, and the one under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore_transports.delta.anchors import AnchorJob, Traffic
from wstore_transports.delta.flat import SAFETENSORS, PieceSnapshot
from wstore_transports.delta.layouts import asked_cuts
from wstore_transports.delta.whole import Snapshot
from wstore_transports.versions.anchoring import Anchoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.delta.chain import Settings
    from wstore_transports.delta.spool import Spool
    from wstore_transports.versions import Attempt, PublishSession, Root, Version


class Anchors:
    """The anchors of one chain. Used by the publishing thread, but for `before_change`.

    Attributes:
        traffic: the deltas that anchors give way to.
    """

    def __init__(
        self, root: Root, session: PublishSession, settings: Settings, spool: Spool
    ) -> None:
        self._root = root
        self._session = session
        self._settings = settings
        self._spool = spool
        self._job: AnchorJob | None = None
        self._newest: tuple[Version, Attempt] | None = None
        self._since = 0
        self._nbytes = 0  # of the newest whole weights
        self.traffic = Traffic()

    def landed(self, version: Version, attempt: Attempt) -> None:
        """A version was committed, and the baseline holds it."""
        self._newest = version, attempt
        if version.kind == "full":
            self._since, self._nbytes = 0, version.record.nbytes
        else:
            self._since += 1

    def due(self, newest: Version) -> dict[str, list[list[int]]] | None:
        """Rank 0, before it opens the next attempt: the cuts of the anchor to write of the newest version;
        None when it is not time for one.

        It is time after `anchor_every` versions, and when a delta was as large as whole weights; not before
        the last one has ended.
        """
        if self._newest is None or self._newest[0] != newest or newest.kind == "full":
            return None
        if self._job is not None:
            if self._job.running:
                return None
            if self._job.committed is not None:
                self._nbytes = self._job.committed.nbytes
        large = 0 < self._nbytes <= newest.record.nbytes
        if not large and self._since < self._settings.anchor_every:
            return None
        return asked_cuts(self._root, self._session)

    def begin(self, baseline: Baseline, cuts: Mapping[str, list[list[int]]]) -> None:
        """Write the whole weights of the newest version, which the baseline holds."""
        if self._job is not None:
            self._job.cancel()
        if self._newest is None:
            raise AssertionError("an anchor before the first version")
        version, attempt = self._newest
        self._since = 0
        if dict(cuts) != baseline.asked:
            baseline.cut(cuts)
        settings = self._settings
        self._job = AnchorJob(
            Anchoring(attempt, version),
            baseline,
            self._snapshot(baseline),
            self._spool,
            rank=self._session.rank,
            traffic=self.traffic,
            timeout_s=settings.timeout_s,
        )

    def _snapshot(self, baseline: Baseline) -> Snapshot | PieceSnapshot:
        codec, threads = self._settings.anchor_codec, self._settings.threads
        if codec == SAFETENSORS:
            return PieceSnapshot(baseline)
        return Snapshot(baseline, codec=codec, spool=self._spool, threads=threads)

    def before_change(self, units: list[int]) -> None:
        """These units of the baseline are about to change."""
        if self._job is not None:
            self._job.before_change(units)

    def finish(self) -> None:
        """Wait for the anchor under way, if any, for as long as ranks wait for one another."""
        if self._job is not None:
            self._job.join(self._settings.timeout_s)

    def close(self) -> None:
        """Give up the anchor under way, and the baseline that it reads. Idempotent."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
            if job.committed is not None:
                self._nbytes = job.committed.nbytes
