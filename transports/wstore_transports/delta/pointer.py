"""The handshake place: where a root is that lies somewhere else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, WStoreError
from wstore.path import StoragePath
from wstore_transports.versions import Root, layout
from wstore_transports.versions.documents import Pointer
from wstore_transports.versions.heartbeat import OverwritePace
from wstore_transports.versions.sealing import read_document, seal

if TYPE_CHECKING:
    from wstore_transports.versions import Version

_log = logging.getLogger("wstore.delta")


class Handshake:
    """Keeps a pointer to a root at another place. Used by one thread at a time.

    Args:
        place: the handshake place.
        data_url: where the root is, as readers shall reach it.
    """

    def __init__(self, place: StoragePath, data_url: str, root: Root, run: str) -> None:
        self._path = place / layout.POINTER
        self._data_url = data_url
        self._root = root
        self._run = run
        self._pace = OverwritePace(self._path)
        self._write(0)

    def committed(self, version: Version) -> None:
        """A version was committed. A failure is logged: the pointer's version is a hint."""
        try:
            self._write(version.number)
        except WStoreError as error:
            _log.warning(
                "the handshake place was not told of version %d: %s", version.number, error
            )

    def _write(self, version: int) -> None:
        document = Pointer(
            root=self._root.root_id, data_url=self._data_url, run=self._run, version=version
        )
        with self._pace:
            self._path.write_file(seal(document))


def follow_pointer(place: StoragePath) -> Root:
    """The root that a handshake place points to.

    Raises:
        NotFound: there is no pointer. IntegrityError: it is damaged, or another root is there.
        NoRoot, NotARoot: where it points to.
    """
    path = place / layout.POINTER
    pointer = read_document(Pointer, path)
    root = Root.open(StoragePath(pointer.data_url))
    if root.root_id != pointer.root:
        raise IntegrityError(
            f"points to root {pointer.root}, and at {root.path.url} is root {root.root_id}",
            url=path.url,
        )
    return root
