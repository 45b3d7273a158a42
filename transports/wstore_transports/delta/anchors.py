"""Anchors in the background: the whole weights of the version before, beside the deltas that follow it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, WStoreError
from wstore_transports.delta.flat import PieceSnapshot, write_flat
from wstore_transports.delta.parts import Contents, Destination, PartSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.delta.spool import Spool
    from wstore_transports.delta.whole import Snapshot
    from wstore_transports.versions.anchoring import Anchoring
    from wstore_transports.versions.documents import Anchor

_log = logging.getLogger("wstore.delta")

PATIENCE_S = 2.0
"""How long an anchor rests, and then waits for a delta in flight, before it sends one more part: so it comes
to an end however closely versions follow each other."""

_LOOK_S = 0.01


class Traffic:
    """Tells whether a delta is under way: then everything else waits. Thread-safe, and without a lock: an
    interrupt in an event's method could leave the event's lock taken for good."""

    def __init__(self) -> None:
        self._busy = False

    def begin(self) -> None:
        """A delta is under way."""
        self._busy = True

    def end(self) -> None:
        """None is."""
        self._busy = False

    def give_way(self, cancel: threading.Event) -> None:
        """Wait until no delta is under way, for `PATIENCE_S` seconds at most, or until `cancel` is set."""
        until = time.monotonic() + PATIENCE_S
        while self._busy and time.monotonic() < until and not cancel.wait(_LOOK_S):
            pass


class AnchorJob:
    """Writes the anchor of one version on a thread of its own. Failures are logged: the deltas go on, and
    the next anchor comes in its turn.

    Args:
        rank: rank 0 also commits it, once all ranks have written their part.
    """

    def __init__(
        self,
        anchoring: Anchoring,
        baseline: Baseline,
        snapshot: Snapshot | PieceSnapshot,
        spool: Spool,
        *,
        rank: int,
        traffic: Traffic,
        timeout_s: float,
    ) -> None:
        self._anchoring = anchoring
        self._baseline = baseline
        self._snapshot = snapshot
        self._spool = spool
        self._rank = rank
        self._traffic = traffic
        self._timeout_s = timeout_s
        self._cancel = threading.Event()
        self._ended = threading.Event()
        self._contents = Contents(baseline)
        self.committed: Anchor | None = None
        self._rested = time.monotonic()
        threading.Thread(target=self._run, name="wstore-anchor", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    def before_change(self, indices: Iterable[int]) -> None:
        """These units of the baseline are about to change. A failure gives the anchor up, not the delta."""
        if not self.running:
            return
        try:
            self._snapshot.before_change(indices)
        except WStoreError as error:
            _log.warning("the anchor of version %d is given up: %s", self._number, error)
            self.cancel()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end. (By an event: `Flight.join` says why.)"""
        self._ended.wait(timeout)

    def cancel(self) -> None:
        """Give it up. Returns once nothing reads the baseline any more."""
        self._cancel.set()
        self._ended.wait()

    def _rest(self) -> None:
        """Before each upload (of a plain file: each tensor): as long as the work since the last time took, but
        `PATIENCE_S` at most, so that engines and the trainer have half of the link and the processors; then
        until no delta is under way."""
        worked = time.monotonic() - self._rested
        self._cancel.wait(min(worked, PATIENCE_S))
        self._traffic.give_way(self._cancel)
        self._rested = time.monotonic()

    def _write(self, sink: PartSink) -> None:
        if isinstance(self._snapshot, PieceSnapshot):
            files = write_flat(
                self._baseline,
                self._snapshot.take,
                sink.to,
                self._contents,
                before_upload=self._rest,
                cancel=self._cancel,
            )
            sink.place(files)
            return
        for index in range(self._snapshot.units):
            if self._cancel.is_set():
                raise Cancelled("the anchor was given up")
            made = self._snapshot.take(index)
            self._contents.stored(made, sink.add(made.frame))

    @property
    def _number(self) -> int:
        return self._anchoring.version.number

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()

    def _work(self) -> None:
        started = time.monotonic()
        sink = PartSink(
            Destination(self._anchoring.path, self._anchoring.object_name, f"r{self._rank:05d}.a"),
            self._spool,
            most_queued=2,
            before_upload=self._rest,
            uploads=1,
            cancel=self._cancel,
        )
        try:
            self._write(sink)
            sink.finish()
            sink.wait()
            self._anchoring.done(
                sink.objects,
                self._contents.tensors,
                aliases=dict(self._baseline.aliases),
            )
            if self._rank == 0:
                self.committed = self._anchoring.commit(
                    timeout=self._timeout_s, cancel=self._cancel
                )
        except Cancelled:
            _log.info("the anchor of version %d was given up", self._number)
        except WStoreError as error:
            _log.warning("the anchor of version %d was not written: %s", self._number, error)
        else:
            seconds = time.monotonic() - started
            _log.info(
                "anchor of version %d: %d bytes in %.1f s", self._number, sink.nbytes, seconds
            )
        finally:
            sink.close()
            self._snapshot.drop()
