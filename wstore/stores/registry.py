"""From URLs to stores: which schemes there are, and one shared store a bucket and configuration.

Built in: file, memory, s3, gs, az (abfs, abfss), http and https. A package adds one by an entry point of
the group `wstore.stores`, named as the scheme, that loads a `Scheme`; these are looked up on the first URL
with a scheme that is not built in, and after them what fsspec knows. A path's `client` ("fsspec",
"obstore") overrides the choice.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from wstore.errors import InvalidPath

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from wstore.stores.base import Store
    from wstore.urls import Location

GROUP = "wstore.stores"
MAX_REQUESTS = 64  # at once to one remote store, over all transfers of the process


def _no_configuration() -> Hashable:
    return None


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the stores of one URL scheme are opened.

    Attributes:
        open: makes the bare store of a root (a bucket's name; "" for local files). Sends no request.
        configuration: what else decides which store that is, such as the environment's credentials;
            asked at each use, so that a changed environment opens another store.
        remote: requests may fail for a while: wrap the store so that they are repeated and bounded.
    """

    open: Callable[[str], Store]
    configuration: Callable[[], Hashable] = _no_configuration
    remote: bool = True


class Remembered:
    """What `read` makes of the environment; called again only when a variable that it had looked at has
    another value. Reading a whole configuration costs more than a small local request."""

    def __init__(self, read: Callable[[Mapping[str, str]], Hashable]) -> None:
        self._read = read
        self._last: tuple[dict[str, str | None], Hashable] | None = None

    def __call__(self) -> Hashable:
        last = self._last
        if last is not None and all(os.environ.get(name) == was for name, was in last[0].items()):
            return last[1]
        seen = _Seen()
        value = self._read(seen)
        self._last = (seen.values_seen, value)
        return value


class _Seen(Mapping[str, str]):
    """The environment, noting which variables are asked for."""

    def __init__(self) -> None:
        self.values_seen: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.values_seen[name] = os.environ.get(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def _posix() -> Scheme:
    posix = import_module("wstore.stores.posix_store")
    return Scheme(lambda root: posix.PosixStore(), remote=False)


def _memory() -> Scheme:
    memory = import_module("wstore.stores.memory")
    return Scheme(memory.memory_store, remote=False)


def _s3() -> Scheme:
    s3 = import_module("wstore.stores.s3")
    return Scheme(s3.open_s3, Remembered(s3.S3Config.from_environment))


def _of(module: str, scheme: str) -> Scheme:
    """What the module `wstore.stores.<module>` has for a scheme: its function `scheme_of(scheme)`."""
    found: Scheme = import_module(f"wstore.stores.{module}").scheme_of(scheme)
    return found


_BUILT_IN: dict[str, Callable[[], Scheme]] = {
    "file": _posix,
    "memory": _memory,
    "s3": _s3,
    "gs": partial(_of, "gcs", "gs"),
    "az": partial(_of, "objects", "az"),
    "abfs": partial(_of, "objects", "abfs"),
    "abfss": partial(_of, "objects", "abfss"),
    "http": partial(_of, "objects", "http"),
    "https": partial(_of, "objects", "https"),
}

# A path's `client`: the module that serves any scheme through that library, and raises InvalidPath for
# one that the library does not know.
_CLIENTS = {"fsspec": "fsspec", "obstore": "objects"}


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    bare: Store


class _Registry:
    """What this process has looked up and opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemes: dict[tuple[str, str], Scheme] = {}
        self._added: dict[str, Callable[[], Scheme]] | None = None
        self._stores: dict[tuple[str, str, str, Hashable], _Opened] = {}

    def check(self, scheme: str, client: str) -> None:
        if client or (scheme not in _BUILT_IN and scheme not in self._entry_points()):
            self._scheme(scheme, client)

    def open(self, location: Location) -> _Opened:
        scheme, root, client = location.scheme, location.root, location.client
        kind = self._schemes.get((scheme, client)) or self._scheme(scheme, client)
        name = (scheme, root, client, kind.configuration())
        found = self._stores.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._stores:
                bare = kind.open(root)
                self._stores[name] = _Opened(_wrapped(bare) if kind.remote else bare, bare)
            return self._stores[name]

    def close(self) -> None:
        """Close the connections of every store; the next use of one opens new ones."""
        for opened in list(self._stores.values()):
            opened.store.close()

    def _scheme(self, scheme: str, client: str) -> Scheme:
        found = self._of_client(scheme, client) if client else self._of_scheme(scheme)
        return self._schemes.setdefault((scheme, client), found)

    def _of_client(self, scheme: str, client: str) -> Scheme:
        if client not in _CLIENTS:
            known = ", ".join(sorted(_CLIENTS))
            raise InvalidPath(f"unknown client {client!r} (known: {known})", url=f"{scheme}://")
        return _of(_CLIENTS[client], scheme)

    def _of_scheme(self, scheme: str) -> Scheme:
        load = _BUILT_IN.get(scheme) or self._entry_points().get(scheme)
        if load is None:
            try:
                return _of("fsspec", scheme)
            except InvalidPath as error:
                raise InvalidPath(self._unknown(scheme)) from error
        found = load()
        if not isinstance(found, Scheme):
            raise InvalidPath(
                f"the entry point {scheme!r} of group {GROUP!r} is a {type(found).__name__}, "
                "not a wstore.stores.registry.Scheme"
            )
        return found

    def _entry_points(self) -> dict[str, Callable[[], Scheme]]:
        if self._added is None:
            from importlib.metadata import entry_points

            added: dict[str, Callable[[], Scheme]] = {}
            for point in entry_points(group=GROUP):
                if point.name in _BUILT_IN or point.name in added:
                    raise InvalidPath(
                        f"two packages provide the scheme {point.name!r} (group {GROUP!r}); "
                        f"uninstall one: {point.value} is the second"
                    )
                added[point.name] = point.load
            self._added = added
        return self._added

    def _unknown(self, scheme: str) -> str:
        known = ", ".join(sorted({*_BUILT_IN, *self._entry_points()}))
        return (
            f"unknown scheme {scheme!r} (known: {known}, and those of fsspec): "
            f"packages add schemes by entry points of group {GROUP!r}"
        )


def _wrapped(bare: Store) -> Store:
    wrap = import_module("wstore.stores.wrap")
    wrapped: Store = wrap.Limit(wrap.Retry(bare), MAX_REQUESTS)
    return wrapped


_registry = _Registry()
_inherited: list[_Registry] = []


def _close_all() -> None:
    """At exit: connections are closed in order, so that the interpreter has nothing to warn of."""
    _registry.close()


def _renew_after_fork() -> None:
    """A child opens stores of its own. The parent's are kept, so that none is closed here."""
    global _registry
    _inherited.append(_registry)
    _registry = _Registry()


os.register_at_fork(after_in_child=_renew_after_fork)
atexit.register(_close_all)


def check_location(location: Location) -> None:
    """Raises InvalidPath, listing the known ones, where no store serves the scheme or the client."""
    if location.client or location.scheme not in _BUILT_IN:
        _registry.check(location.scheme, location.client)


def open_store(location: Location) -> Store:
    """The process's store for that root in the present environment; the same object each time.

    Remote ones retry and are limited to `MAX_REQUESTS` requests at once.
    """
    return _registry.open(location).store


def bare_store(location: Location) -> Store:
    """The same store without retries, for callers that wait and probe by themselves."""
    return _registry.open(location).bare
