"""Objects through the cache that the engines of a host share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import xxhash

from wstore.errors import IntegrityError
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
        if self.ref.size > self.cache.max_bytes:
            return self.copies.read(use, cancel)  # a part at a time, not whole for each part

        def fetch(memory: memoryview) -> int:
            return self.copies.read(lambda path: self._whole(path, memory, cancel), cancel)

        with self.cache.open(self.root_id, self.ref, fetch, cancel=cancel) as cached:
            try:
                return use(StoragePath(f"/proc/self/fd/{cached.fileno()}"))
            except IntegrityError as error:
                cached.discard()
                error.url = f"{self.cache.directory}: {self.ref.name}"
                raise

    def _whole(self, path: StoragePath, memory: memoryview, cancel: threading.Event | None) -> int:
        """The object of one copy, proven here, so that another one is tried when it is damaged."""
        count = path.read_into(memory, cancel=cancel)
        if count != self.ref.size or xxhash.xxh3_128_hexdigest(memory) != self.ref.hash:
            raise IntegrityError("does not have the size and hash of the manifest", url=path.url)
        return count
