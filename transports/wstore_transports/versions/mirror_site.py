"""One mirror of a root: where it is, and what failed there lately."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import IntegrityError, NotFound, WStoreError
from wstore.path import StoragePath
from wstore.stores import registry
from wstore.stores.forking import renew_after_fork
from wstore.stores.wrap.base import Wrapper
from wstore.stores.wrap.limit import Limit
from wstore.stores.wrap.retry import Retry, RetryPolicy
from wstore_transports.errors import NoVersion, VersionGone
from wstore_transports.versions.root import Root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wstore.stores.base import Store
    from wstore.urls import Location

T = TypeVar("T")

_log = logging.getLogger(__name__)

FIRST_REST_S = 1.0
"""How long a mirror, or one object of it, is passed over after its first failure; doubles each time."""

LONGEST_REST_S = 60.0

_FORGET_S = 600.0  # after the end of a rest: the next failure counts as the first again

IMPATIENCE = RetryPolicy(deadline_s=3.0, first_pause_s=0.1, longest_pause_s=1.0)
"""How long one request to one mirror is repeated. Short, for another mirror may answer at once."""


class NotYet(NotFound):
    """An object of a version that the log of this mirror does not reach yet."""


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float
    length_s: float
    probed: bool = (
        False  # the rest is over; one request tries, and until it is answered the others wait
    )


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

    def admits(self, name: str) -> bool:
        """Whether to ask for this object now. After a rest one caller is let through to try; until its
        request has worked or failed, all others are kept off."""
        now = time.monotonic()
        with self._lock:
            rests = {key: rest for key in _keys(name) if (rest := self._rests.get(key)) is not None}
            if any(now < rest.until for rest in rests.values()):
                return False
            for key, rest in rests.items():
                self._rests[key] = _Rest(now + LONGEST_REST_S, rest.length_s, probed=True)
        return True

    def worked(self, name: str) -> None:
        """The mirror served this object."""
        if self._rests:
            with self._lock:
                for key in _keys(name):
                    self._rests.pop(key, None)

    def failed(self, name: str, error: WStoreError) -> None:
        """Pass over what the error is about for a while: an object, a version, or the whole mirror."""
        if isinstance(error, (NoVersion, VersionGone)):
            self.worked(name)  # the mirror is well, it just holds less
            return
        behind = isinstance(error, NotYet)
        own = _version_of(name) if behind else name
        key = own if isinstance(error, (NotFound, IntegrityError)) else ""
        now = time.monotonic()
        with self._lock:
            if key:
                self._rests.pop("", None)  # the mirror has answered
            before = self._rests.get(key)
            if before is not None and now < before.until and not before.probed:
                return
            last_s = 0.0 if before is None else before.length_s
            length_s = min(LONGEST_REST_S, max(FIRST_REST_S, 2 * last_s))
            self._forget(now)
            self._rests[key] = _Rest(now + length_s, length_s)
        if behind:
            if before is None:
                _log.info("%s: other mirrors come first for %s: %s", self.path.url, key, error)
            return
        what = "is damaged on this mirror" if isinstance(error, IntegrityError) else "fails here"
        _log.warning(
            "%s: %s %s, other mirrors come first for %.0f s: %s",
            self.path.url,
            key or "the mirror",
            what,
            length_s,
            error,
        )

    def _forget(self, now: float) -> None:
        """Drop what ended long ago, so that a reader of many versions does not keep it all."""
        for key in [k for k, rest in self._rests.items() if now >= rest.until + _FORGET_S]:
            del self._rests[key]


def _version_of(name: str) -> str:
    """What stands for all objects of one version: their directory."""
    return name.rpartition("/")[0] + "/"


def _keys(name: str) -> tuple[str, ...]:
    """Under which a failure may be noted that concerns this object; "" is the whole mirror."""
    return ("", name, _version_of(name)) if name else ("",)


def in_order(sites: Iterable[Site], name: str) -> Iterator[Site]:
    """The sites to ask for an object, one after the other: those that failed lately come last."""
    later = []
    for site in sites:
        if site.admits(name):
            yield site
        else:
            later.append(site)
    yield from later


class _Present(Wrapper):
    """The store of a location as it is now: credentials may change, and a forked child has its own."""

    def __init__(self, location: Location) -> None:
        self._location = location

    @property
    def _inner(self) -> Store:  # type: ignore[override]
        return registry.bare_store(self._location)


def _impatient(path: StoragePath) -> StoragePath:
    if path.is_local or path.injected_store is not None:
        return path
    store = Limit(Retry(_Present(path.location), IMPATIENCE), registry.MAX_REQUESTS)
    return StoragePath(path, store=store)
