"""Large objects: pieces as hidden objects beside the target, composed by the service in the end.

A resumable session takes bytes in one order only and cannot take one back. Pieces that are objects are
sent in any order and at once, and repeated at will; what they were composed to is published in one step,
by a rewrite that moves no bytes. Source: "Composite objects", Cloud Storage documentation.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from wstore.errors import (
    IntegrityError,
    InvalidArgument,
    StoreError,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.fsspec.gcs_calls import compose, delete_all, rewrite
from wstore.stores.fsspec.gcs_listing import entries
from wstore.stores.fsspec.gcs_session import Request
from wstore.stores.fsspec.gcs_writing import LIMITS, put_object
from wstore.stores.joining import joined_size
from wstore.stores.posix_temp import is_temp_name, new_temp_name
from wstore.stores.s3.replies import server_time

if TYPE_CHECKING:
    from datetime import datetime

    from wstore.stores.base import ObjectInfo
    from wstore.stores.fsspec.gcs_session import Session

_log = logging.getLogger(__name__)

_MAX_SOURCES = 32  # of one compose request
_MAX_KEY_BYTES = 1024
_ROOM_FOR_A_PIECE = 64  # the hidden prefix and the number below it


def is_hidden(key: str) -> bool:
    """Whether this is a piece of an unfinished upload (or the prefix of such)."""
    return ".wstore-" in key and any(is_temp_name(s.encode()) for s in key.split("/")[:-1])


class GcsUpload:
    """An `Upload` (`stores.base`). No request is sent before the first piece."""

    def __init__(self, session: Session, key: str) -> None:
        session.check_key(key)
        self._session = session
        self._key = key
        self._url = session.url(key)
        self._prefix = f"{_hidden_prefix(key)}{new_temp_name().decode()}/"
        self._lock = threading.Lock()
        self._pieces: dict[int, tuple[int, int]] = {}
        self._failed: set[int] = set()
        self._made: set[str] = set()
        self._ended = False

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Send a piece, as an object of its own; its CRC-32C is checked."""
        if not 0 <= number < LIMITS.max_pieces:
            text = f"piece {number + 1} of an upload: at most {LIMITS.max_pieces} are composed"
            raise InvalidArgument(text, url=self._url)
        self._require_open()
        name = f"{self._prefix}{number:05d}"
        with self._lock:
            self._made.add(name)
            self._failed.add(number)
        put_object(self._session, name, data)
        with self._lock:
            self._pieces[number] = (offset, data.nbytes)
            self._failed.discard(number)

    def complete(self) -> ObjectInfo:
        """Publish. May be repeated after a failure that is worth repeating.

        Raises:
            StoreError: a piece failed and was not repeated; nothing was published.
            InvalidArgument: the pieces leave a hole.
        """
        self._require_open()
        with self._lock:
            pieces, failed = dict(self._pieces), sorted(self._failed)
        if failed:
            text = f"piece {failed[0] + 1} failed: nothing was published"
            raise StoreError(text, url=self._url)
        size = joined_size(pieces, self._url)
        if not pieces:
            info = put_object(self._session, self._key, memoryview(b""))
        else:
            names = [f"{self._prefix}{number:05d}" for number in sorted(pieces)]
            info = self._publish(names, size)
        self._ended = True
        try:
            self._remove_pieces()
        except WStoreError as error:  # the object is there; `sweep` removes what was not needed
            _log.warning("the pieces of %s could not be removed: %s", self._url, error)
        return info

    def abort(self) -> None:
        """Remove the pieces. May be repeated after a failure."""
        self._ended = True
        self._remove_pieces()

    def _remove_pieces(self) -> None:
        with self._lock:
            made = set(self._made)
        delete_all(self._session, made)
        with self._lock:
            self._made -= made

    def _publish(self, names: list[str], size: int) -> ObjectInfo:
        """Compose, level by level, until one object is left; then rewrite that to the target."""
        level = composed = 0
        while len(names) > 1 or level == 0:
            level += 1
            groups = [names[i : i + _MAX_SOURCES] for i in range(0, len(names), _MAX_SOURCES)]
            names = [f"{self._prefix}level-{level}-{number:05d}" for number in range(len(groups))]
            self._made.update(names)
            for name, group in zip(names, groups, strict=True):
                composed = compose(self._session, name, group, self._url).size
        if composed != size:
            text = f"{size} bytes were sent, {composed} were composed: nothing was published"
            raise IntegrityError(text, url=self._url)
        # Not composed in place: emulators then keep the generation of what is replaced.
        return rewrite(self._session, names[0], self._key)

    def _require_open(self) -> None:
        if self._ended:
            text = "the upload was already completed or aborted"
            raise UnsupportedOperation(text, url=self._url)


def sweep(session: Session, prefix: str, *, older_than_s: float) -> list[str]:
    """`Sweep.sweep`: remove the pieces of uploads whose youngest piece is that old."""
    youngest: dict[str, datetime] = {}
    pieces: dict[str, list[str]] = {}
    for entry in entries(session, prefix, recursive=True):
        if entry.info is not None and is_hidden(entry.key):
            upload = entry.key.rpartition("/")[0]
            pieces.setdefault(upload, []).append(entry.key)
            youngest[upload] = max(entry.info.modified, youngest.get(upload, entry.info.modified))
    if not pieces:
        return []
    now = _service_time(session)
    old = [name for name, then in youngest.items() if (now - then).total_seconds() >= older_than_s]
    delete_all(session, [key for name in old for key in pieces[name]])
    return sorted(old)


def _service_time(session: Session) -> datetime:
    request = Request("GET", session.objects_path(), (("maxResults", "1"), ("fields", "kind")))
    return server_time(session.call(request, session.url()).headers)


def _hidden_prefix(key: str) -> str:
    """The directory of `key`, or the nearest above it that leaves room for the names of pieces."""
    parent = key.rpartition("/")[0]
    while len(parent.encode()) > _MAX_KEY_BYTES - _ROOM_FOR_A_PIECE:
        parent = parent.rpartition("/")[0]
    return f"{parent}/" if parent or key.startswith("/") else ""
