"""`head.json`: the hint that saves readers the search for the newest record."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from wstore.errors import NotFound, WStoreError
from wstore.stores.forking import renew_after_fork
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Head
from wstore_transports.versions.heartbeat import OverwritePace
from wstore_transports.versions.sealing import read_document, seal

if TYPE_CHECKING:
    from wstore.path import StoragePath

_log = logging.getLogger(__name__)

MIN_INTERVAL_S = 1.0
"""The hint need not be newer than this; a store may ask for more (`Capabilities.overwrite_interval_s`)."""


class HeadHint:
    """Reads the hint, and keeps it near the truth. Failures are logged, never raised. Thread-safe."""

    def __init__(self, root: StoragePath, root_id: str) -> None:
        self._path = root / layout.HEAD
        self._root_id = root_id
        self._pace = OverwritePace(self._path)
        self.after_fork()
        renew_after_fork(self)
        self._pending: Head | None = None
        self._written_at = float("-inf")

    def after_fork(self) -> None:
        """A fresh lock: the child has not the thread that may have held this one."""
        self._lock = threading.Lock()

    def read(self) -> Head | None:
        """What the hint says; None when it is missing or worthless."""
        try:
            return read_document(Head, self._path, root=self._root_id)
        except NotFound:
            return None
        except WStoreError as error:
            _log.warning("the head is of no use, the log will be searched: %s", error)
            return None

    def announce(self, number: int, digest: str) -> None:
        """Record `number` is the newest: write that now, or with a later call when one was just made."""
        with self._lock:
            self._pending = Head(root=self._root_id, number=number, hash=digest)
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        """Write what is pending; unless `at_once`, not within a second of the last write. `at_once` waits
        where the store would refuse to overwrite so soon."""
        with self._lock:
            now = time.monotonic()
            early = now - self._written_at < max(MIN_INTERVAL_S, self._pace.interval_s)
            if self._pending is None or (early and not at_once):
                return
            self._written_at = now
            try:
                with self._pace:
                    self._path.write_file(seal(self._pending))
            except WStoreError as error:
                _log.warning("the head was not written, readers will search further: %s", error)
            else:
                self._pending = None
