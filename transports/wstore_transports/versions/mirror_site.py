"""One mirror of a root: where it is, and what failed there lately."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound, WStoreError
from wstore.path import StoragePath
from wstore.stores import registry
from wstore.stores.forking import renew_after_fork
from wstore.stores.wrap.retry import Retry, RetryPolicy
from wstore_transports.errors import NoVersion, VersionGone
from wstore_transports.versions.root import Root

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

FIRST_REST_S = 1.0
"""How long a mirror, or one object of it, is passed over after its first failure; doubles each time."""

LONGEST_REST_S = 60.0

IMPATIENCE = RetryPolicy(deadline_s=3.0, first_pause_s=0.1, longest_pause_s=1.0)
"""How long one request to one mirror is repeated. Short, for another mirror may answer at once."""


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float
    length_s: float


class Site:
    """A mirror. Thread-safe.

    Attributes:
        path: of the root there, with little patience for a remote store.
    """

    def __init__(self, path: StoragePath) -> None:
        self.path = _impatient(path)
        self._root: Root | None = None
        self._rests: dict[str, _Rest] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A fresh lock: the child has not the thread that may have held this one."""
        self._lock = threading.Lock()

    def root(self) -> Root:
        """The root there, opened once. Raises NotARoot while there is none, and the store's errors."""
        found = self._root
        if found is None:
            # Without the lock: two threads may open it twice, but a dead server blocks nobody else.
            found = Root.open(self.path)
            with self._lock:
                found = self._root = self._root or found
        return found

    def rests(self, name: str) -> bool:
        """Whether the mirror, or this object of it, failed a moment ago: others come first."""
        now = time.monotonic()
        with self._lock:
            rests = (self._rests.get(""), self._rests.get(name))
        return any(rest is not None and now < rest.until for rest in rests)

    def worked(self, name: str) -> None:
        """The mirror served this object."""
        if self._rests:
            with self._lock:
                self._rests.pop("", None)
                self._rests.pop(name, None)

    def failed(self, name: str, error: WStoreError) -> None:
        """Pass over what the error is about for a while: one object of the mirror, or all of it."""
        if isinstance(error, (NoVersion, VersionGone)):
            return  # the mirror is well, it just holds less
        key = name if isinstance(error, (NotFound, IntegrityError)) else ""
        now = time.monotonic()
        with self._lock:
            before = self._rests.get(key)
            if before is not None and now < before.until:
                return
            last_s = 0.0 if before is None else before.length_s
            length_s = min(LONGEST_REST_S, max(FIRST_REST_S, 2 * last_s))
            self._rests[key] = _Rest(now + length_s, length_s)
        what = "is damaged on this mirror" if isinstance(error, IntegrityError) else "fails here"
        _log.warning(
            "%s: %s %s, other mirrors come first for %.0f s: %s",
            self.path.url,
            key or "the mirror",
            what,
            length_s,
            error,
        )


def in_order(sites: Iterable[Site], name: str) -> list[Site]:
    """The sites to ask for an object, one after the other: those that failed lately come last."""
    return sorted(sites, key=lambda site: site.rests(name))


def _impatient(path: StoragePath) -> StoragePath:
    if path.is_local or path.injected_store is not None:
        return path
    return StoragePath(path, store=Retry(registry.bare_store(path.location), IMPATIENCE))
