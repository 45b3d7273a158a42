"""Waiting for the next version, and reading it ahead while it is written."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, WaitTimeout, WStoreError
from wstore_transports.delta.ahead import Ahead, read_open
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.version import Version
from wstore_transports.versions.watching import Watcher

if TYPE_CHECKING:
    from wstore_transports.delta.ahead import Prepare
    from wstore_transports.delta.prober import Prober
    from wstore_transports.delta.shared_cache import SharedCache
    from wstore_transports.delta.spool import Spool
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions import Root
    from wstore_transports.versions.pace import Pace

IDLE_S = 0.25
"""The longest pause between two looks while nothing is written."""

BUSY_S = 0.05
"""The same while parts appear."""

SESSION_S = 0.25
"""How often the publisher's document is read, which says what is being written."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How a reader waits.

    Attributes:
        timeout: seconds for a newer version to come.
        cancel: ends the wait when set.
        dead_after_s: how long a publisher may give no sign of life.
        pace: limits the looks of this reader.
    """

    timeout: float
    cancel: threading.Event | None
    dead_after_s: float
    pace: Pace

    def look(self) -> None:
        """Before each request."""
        self.pace.wait(self.cancel)


class Follower:
    """Waits for one version, and reads its parts ahead when what is held leads to it."""

    def __init__(
        self,
        root: Root,
        held: int,
        holding: Holding,
        spool: Spool,
        *,
        cache: SharedCache | None,
        prepare: Prepare,
        patience: Patience,
    ) -> None:
        self._root = root
        self._held = held
        self._holding = holding
        self._spool = spool
        self._cache = cache
        self._prepare = prepare
        self._prober: Prober | None = None
        self._patience = patience
        self._looked = float("-inf")
        self._over = False
        self._lock = threading.Lock()  # a look that was given up may end after the wait
        self._ahead: Ahead | None = None
        self._judged = ""  # the attempt that was looked at last
        self._watcher = Watcher(
            root.place,
            held,
            dead_after_s=patience.dead_after_s,
            session_every_s=min(SESSION_S, patience.dead_after_s / 4),
            before_look=patience.look,
        )

    def wait(self) -> tuple[Version, Ahead | None]:
        """The newest version once it is newer than the held one, and what was read of it ahead.

        Raises:
            As `Root.wait`.
        """
        url, cancel = self._root.path.url, self._patience.cancel
        idle = Poll(self._patience.timeout, cancel, url=url, most_s=IDLE_S)
        busy: Poll | None = None
        with ExitStack() as stack:
            stack.callback(self._end)
            if self._cache is not None:
                self._prober = stack.enter_context(self._cache.prober(self._root.root_id))
            while True:
                try:
                    version = idle.look(self._look)
                    if version is not None:
                        found, self._ahead = self._ahead, None
                        return version, found
                except (WaitTimeout, Cancelled):
                    raise
                except WStoreError as error:
                    if not error.retryable:
                        raise
                    idle.pause(f"the root could not be read: {error}")
                    continue
                if self._ahead is None:
                    busy = None
                elif busy is None:
                    busy = Poll(idle.remaining_s, cancel, url=url, most_s=BUSY_S)
                (busy or idle).pause(f"no version after {self._held}")

    def _look(self) -> Version | None:
        known = self._root.log.known.number
        prober = self._prober
        now = time.monotonic()
        if (
            prober is not None
            and not prober.is_leader()
            and prober.seen() <= known
            and now < self._looked + self._patience.dead_after_s / 4
        ):
            return None  # another process of this host looks; what it reads ahead is in the cache
        self._looked = now
        standing = self._watcher.look()
        if prober is not None and prober.is_leader():
            prober.announce(self._root.log.known.number)
        if standing.latest > self._held:
            return Version(self._root.place, self._root.log.weights(standing.latest))
        session = self._watcher.session
        if session is not None and session.attempt and session.attempt != self._judged:
            self._judge(session.attempt)
        if self._ahead is not None and not self._ahead.complete:
            self._patience.look()
            self._ahead.look()
        return None

    def _judge(self, directory: str) -> None:
        """Read this attempt ahead, if it is under way and applies to what is held."""
        self._patience.look()
        opened = read_open(self._root.place, directory)
        if opened is None:
            return
        self._judged = directory
        self._drop()
        under_way = opened.wanted > self._root.log.known.standing.finished
        if under_way and opened.kind == "delta" and opened.base == self._held:
            with self._lock:
                if not self._over:
                    self._ahead = Ahead(
                        self._root.place,
                        directory,
                        self._holding,
                        self._spool,
                        cache=self._cache,
                        prepare=self._prepare,
                    )

    def _end(self) -> None:
        with self._lock:
            self._over = True
        self._drop()

    def _drop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
