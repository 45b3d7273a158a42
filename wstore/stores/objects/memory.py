"""obstore's memory store: `StoragePath("memory://name", client="obstore")`.

It shares nothing with `wstore.stores.memory`, which is the better one for tests of one's own; this is
the plainest service that the code for Azure runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from obstore.store import MemoryStore as Client

from wstore.errors import NotFound
from wstore.stores.base import Capabilities
from wstore.stores.joining import joined_size
from wstore.stores.objects.store import ObstoreStore, Service

if TYPE_CHECKING:
    from wstore.stores.base import ObjectInfo, Store

_CAPABILITIES = Capabilities(create_if_absent=True, if_match=True, durable=False)


class HeldUpload:
    """An upload whose pieces are held until it completes: the store keeps objects in memory anyway."""

    def __init__(self, store: ObstoreStore, key: str) -> None:
        self._store = store
        self._key = key
        self._pieces: dict[int, tuple[int, bytes]] = {}
        self._ended = False

    def put(self, number: int, offset: int, data: memoryview) -> None:
        self._pieces[number] = (offset, bytes(data))

    def complete(self) -> ObjectInfo:
        """One write. Raises NotFound when the upload ended before."""
        url = self._store.url_of(self._key)
        if self._ended:
            raise NotFound("the upload was completed or aborted", url=url)
        pieces = sorted(self._pieces.items())
        joined_size({number: (at, len(data)) for number, (at, data) in pieces}, url)
        info = self._store.write(self._key, memoryview(b"".join(data for _, (_, data) in pieces)))
        self.abort()
        return info

    def abort(self) -> None:
        self._ended = True
        self._pieces.clear()


_clients: dict[str, Client] = {}


def open_memory(name: str) -> Store:
    """The objects of that name in this process; empty on first use."""
    url = f"memory://{name}"
    return ObstoreStore(
        Service(
            url, _CAPABILITIES, lambda: client_of(name), HeldUpload, _nothing, keeps_memory=True
        )
    )


def client_of(name: str) -> Client:
    """obstore's store behind it."""
    return _clients.get(name) or _clients.setdefault(name, Client())


def _nothing() -> None:
    """Nothing is held open."""
