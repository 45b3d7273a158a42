"""Tidying beside the training loop, on a thread of its own: abandoned writes, and what `keep=` lets go."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, WStoreError
from wstore_transports.versions.collection import collect

if TYPE_CHECKING:
    from wstore_transports.versions.collection import GcReport
    from wstore_transports.versions.retention import Retention
    from wstore_transports.versions.root import Root

_log = logging.getLogger("wstore.versions")


class Janitor:
    """Sweeps what killed writers left, once; then collects garbage after each `wake`, a pass at a time.

    Without a retention nothing is collected. A pass waits a lease period before it deletes, so it must not
    hold up the writer. A failed pass is logged and tried again after the next version: it can only leave
    too much, never take too much.
    """

    def __init__(self, root: Root, retention: Retention | None) -> None:
        self._root = root
        self._retention = retention
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wstore-janitor", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A version was committed: see what may go."""
        self._wanted.set()

    def close(self) -> None:
        """Stop, without the pass that was wanted or waits; the next writer's janitor makes up for it."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _work(self) -> None:
        self._sweep()
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closed.is_set():
                return
            try:
                self._pass()
            except Cancelled:
                return
            except WStoreError as error:
                _log.warning("retention failed, will try again after the next version: %s", error)

    def _sweep(self) -> None:
        try:
            removed = self._root.path.sweep()
        except WStoreError as error:
            _log.warning("abandoned writes were not swept, the next writer tries again: %s", error)
            return
        for name in removed:
            _log.info("%s: swept the abandoned write %s", self._root.path.url, name)

    def _pass(self) -> GcReport | None:
        if self._retention is None:
            return None
        return collect(self._root, self._retention, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Cancelled("the writer was closed", url=self._root.path.url)
