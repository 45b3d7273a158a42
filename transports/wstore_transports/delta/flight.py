"""A version in flight: what happens between the end of `publish` and the commit, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from wstore import telemetry
from wstore.errors import WStoreError
from wstore_transports.delta.observing import tell_commit
from wstore_transports.delta.reports import CommitReport
from wstore_transports.errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_transports.delta.parts import Contents, PartSink
    from wstore_transports.versions import Attempt, Version

_log = logging.getLogger("wstore.delta")


class Flight:
    """Uploads what is left of a version, commits it, and lands it.

    Args:
        attempt: open; nobody else uses it any more.
        produce: makes what is not in the sink yet.
        land: called with the version once the log shows it, before anything else is published.
        finished: called once nothing more goes to the store for it.
        timeout_s: how long ranks wait for one another.
    """

    def __init__(
        self,
        attempt: Attempt,
        sink: PartSink,
        contents: Contents,
        *,
        aliases: dict[str, str],
        metadata: dict[str, str],
        produce: Callable[[], None],
        land: Callable[[Version], None],
        finished: Callable[[], None],
        timeout_s: float,
    ) -> None:
        self.attempt = attempt
        self.sink = sink
        self._contents = contents
        self._aliases = aliases
        self._metadata = metadata
        self._produce = produce
        self._land = land
        self._finished = finished
        self._timeout_s = timeout_s
        self._seconds: dict[str, float] = {}
        self._ended = threading.Event()
        self._taken = threading.Lock()  # by what comes first: the take-off, or `drop`
        self._thread = threading.Thread(target=self._run, name="wstore-publish", daemon=True)
        self.version: Version | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def drop(self) -> bool:
        """For when `start` was interrupted. Whether it has not taken off, and now never will."""
        return self._taken.acquire(blocking=False)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end. Whether it has come.

        (A thread whose `join` is interrupted counts as ended in Python before 3.13, and goes on.)
        """
        return self._ended.wait(timeout)

    def land(self, version: Version) -> None:
        """Take a version as committed: the log shows it, whatever this flight's thread saw."""
        started = time.monotonic()
        self.version = version
        self._land(version)
        self._seconds["advance"] = time.monotonic() - started

    def report(self) -> CommitReport:
        """What became of it, once it has landed."""
        if self.version is None:
            raise AssertionError("a report of a version that has not landed")
        version = self.version
        return CommitReport(
            version=version.number,
            url=f"{version.place.path.url}@{version.number}",
            step=version.step,
            kind=version.kind,
            digest=version.digest,
            nbytes=version.record.nbytes,
            seconds=dict(self._seconds),
        )

    def _run(self) -> None:
        if not self._taken.acquire(blocking=False):
            return
        url = self.attempt.directory.url
        try:
            with telemetry.span("commit", url, level=logging.INFO) as operation:
                self._write()
                started = time.monotonic()
                version = self.attempt.commit(timeout=self._timeout_s)
                self._seconds["commit"] = time.monotonic() - started
                self._finished()
                self.land(version)
                tell_commit(operation, self.report())
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            self._finished()
            self._ended.set()

    def _write(self) -> None:
        started = time.monotonic()
        try:
            self._produce()
            self.sink.finish()
            self.sink.wait()
            self.attempt.done(
                self.sink.objects,
                self._contents.tensors,
                aliases=self._aliases,
                metadata=self._metadata,
            )
        except BaseException as error:
            give_up(self.attempt, error)
            raise
        self._seconds["upload"] = time.monotonic() - started


def give_up(attempt: Attempt, error: BaseException) -> None:
    """Say in the store that an attempt failed. A store that is away is not asked twice: the next attempt
    settles it."""
    if isinstance(error, Fenced):
        return
    try:
        attempt.abort(f"{type(error).__name__}: {error}")
    except WStoreError as failure:
        _log.warning("%s: the abort was not written: %s", attempt.directory.url, failure)
