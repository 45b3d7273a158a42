"""Objects through the cache that the engines of a host share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wstore.path import StoragePath

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from wstore_transports.delta.shared_cache import SharedCache
    from wstore_transports.versions.copies import Copies
    from wstore_transports.versions.documents import ObjectRef

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedCopies:
    """One object of a version, read whole once by all processes of this host; a `Copies`.

    Attributes:
        cache: where it is kept.
        root_id: of the root.
        ref: the object, with size and hash.
        copies: where it comes from.
    """

    cache: SharedCache
    root_id: str
    ref: ObjectRef
    copies: Copies

    @property
    def concurrency(self) -> int:
        return self.copies.concurrency

    def read(self, use: Callable[[StoragePath], T], cancel: threading.Event | None = None) -> T:
        def fetch(memory: memoryview) -> int:
            return self.copies.read(lambda path: path.read_into(memory, cancel=cancel), cancel)

        with self.cache.open(self.root_id, self.ref, fetch, cancel=cancel) as cached:
            return use(StoragePath(f"/proc/self/fd/{cached.fileno()}"))
