"""Objects in this process's memory: an object store with every feature, for tests and for staging.

It behaves as S3 does (prefixes are no directories, any key but "" is allowed), never fails, and gives
nothing to other processes; a forked child keeps a private copy. Contents are immutable `bytes`: a write
copies what it is given, a read without a buffer is a read-only view, so nobody's memory is aliased.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from wstore import errors
from wstore.stores.base import Capabilities, Entry, Expect, ObjectInfo, Read
from wstore.stores.forking import renew_after_fork
from wstore.stores.joining import joined_size

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

F = TypeVar("F")

_CAPABILITIES = Capabilities(create_if_absent=True, if_match=True, durable=False)


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: ObjectInfo
    write_id: str | None


@dataclass(slots=True)
class _Session:
    """An unfinished upload; `pieces` maps the number to (offset, content)."""

    key: str
    begun: float = field(default_factory=time.monotonic)
    pieces: dict[int, tuple[int, bytes]] = field(default_factory=dict)


class MemoryStore:
    """A `Store` with Multipart, Copy, Sweep and Settle. Two stores of one name share nothing: use
    `memory_store(name)` for the one that a `memory://name/` URL means."""

    def __init__(self, name: str = "") -> None:
        self._url = f"memory://{name}"
        self._objects: dict[str, _Object] = {}
        self._sessions: dict[str, _Session] = {}
        self._contents = itertools.count(1)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def stat(self, key: str) -> ObjectInfo:
        return self._get(key).info

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        found = self._get(key)
        if tag is not None and tag != found.info.tag:
            raise errors.ObjectChanged("the object was replaced", url=self._url_of(key))
        data = memoryview(found.data)[offset : offset + length]
        if buffer is None:
            return Read(data, found.info)
        filled = buffer[: len(data)]
        filled[:] = data
        return Read(filled, found.info)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        return self._publish(key, bytes(data), expect, write_id)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """See `Store.list`. The listing shows the store as it was when the first entry was taken."""
        with self._lock:
            present = [(key, found.info) for key, found in self._objects.items()]
        entries: dict[str, ObjectInfo | None] = {}
        for key, info in present:
            if key.startswith(prefix):
                name, slash, _ = key[len(prefix) :].partition("/")
                folded = slash and not recursive
                entries[prefix + name + slash if folded else key] = None if folded else info
        after = _order(start_after)
        for key in sorted(entries, key=_order):
            if _order(key) > after:
                yield Entry(key, entries[key])

    def delete(self, key: str) -> None:
        with self._lock:
            if self._objects.pop(key, None) is None:
                raise self._missing(key)

    def close(self) -> None:
        """Nothing to release; the objects stay."""

    def feature(self, kind: type[F]) -> F | None:
        return self if isinstance(self, kind) else None

    # Multipart

    def upload(self, key: str, *, size: int | None = None) -> MemoryUpload:
        self._check_key(key)
        with self._lock:
            upload_id = f"u{next(self._contents)}"
            self._sessions[upload_id] = _Session(key)
        return MemoryUpload(self, key, upload_id)

    # Copy

    def copy(self, source: str, target: str) -> ObjectInfo:
        found = self._get(source)
        return self._publish(target, found.data, Expect.ANY, None)

    # Settle

    def wrote(self, key: str, write_id: str) -> bool:
        with self._lock:
            found = self._objects.get(key)
        return found is not None and found.write_id == write_id

    # Sweep

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        """Abort the uploads under `prefix` that began that long ago."""
        now = time.monotonic()
        with self._lock:
            old = {
                upload_id: session
                for upload_id, session in self._sessions.items()
                if session.key.startswith(prefix) and now - session.begun >= older_than_s
            }
            for upload_id in old:
                del self._sessions[upload_id]
        return sorted(f"{session.key} ({upload_id})" for upload_id, session in old.items())

    # What MemoryUpload needs

    def put_piece(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> None:
        """Keep one piece of an upload. Raises NotFound when the upload ended."""
        with self._lock:
            self._session(key, upload_id).pieces[number] = (offset, data)

    def complete_upload(self, key: str, upload_id: str) -> ObjectInfo:
        """Publish an upload's pieces. Raises NotFound when the upload ended."""
        with self._lock:
            pieces = dict(self._session(key, upload_id).pieces)
        joined_size(
            {number: (offset, len(data)) for number, (offset, data) in pieces.items()},
            self._url_of(key),
        )
        info = self._publish(
            key, b"".join(pieces[number][1] for number in sorted(pieces)), Expect.ANY, None
        )
        self.end_upload(upload_id)
        return info

    def end_upload(self, upload_id: str) -> None:
        """Forget an upload; nothing happens when it ended."""
        with self._lock:
            self._sessions.pop(upload_id, None)

    def _session(self, key: str, upload_id: str) -> _Session:
        if upload_id not in self._sessions:
            raise errors.NotFound(
                "the upload was completed, aborted or swept", url=self._url_of(key)
            )
        return self._sessions[upload_id]

    def _publish(
        self, key: str, data: bytes, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        self._check_key(key)
        with self._lock:
            old = self._objects.get(key)
            if expect is Expect.ABSENT and old is not None:
                raise errors.AlreadyExists("there is an object", url=self._url_of(key))
            if isinstance(expect, str) and (old is None or old.info.tag != expect):
                present = "no object" if old is None else "another content"
                raise errors.PreconditionFailed(f"met {present}", url=self._url_of(key))
            info = ObjectInfo(len(data), datetime.now(UTC), f"m{next(self._contents)}")
            self._objects[key] = _Object(data, info, write_id)
        return info

    def _get(self, key: str) -> _Object:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise self._missing(key)
        return found

    def _check_key(self, key: str) -> None:
        if not key:
            raise errors.InvalidPath("the root is not an object", url=self._url)
        try:
            key.encode()
        except UnicodeEncodeError as error:
            shown = self._url_of(key).encode("utf-8", "backslashreplace").decode()
            raise errors.InvalidPath("a key must be valid unicode", url=shown) from error

    def _missing(self, key: str) -> errors.NotFound:
        return errors.NotFound("there is no such object", url=self._url_of(key))

    def _url_of(self, key: str) -> str:
        return f"{self._url}/{key}"


class MemoryUpload:
    """An `Upload` of a `MemoryStore`. Calls after `complete` or `abort` raise NotFound."""

    def __init__(self, store: MemoryStore, key: str, upload_id: str) -> None:
        self._store = store
        self._key = key
        self._id = upload_id

    def put(self, number: int, offset: int, data: memoryview) -> None:
        self._store.put_piece(self._key, self._id, number, offset, bytes(data))

    def complete(self) -> ObjectInfo:
        return self._store.complete_upload(self._key, self._id)

    def abort(self) -> None:
        self._store.end_upload(self._id)


_stores: dict[str, MemoryStore] = {}


def memory_store(name: str) -> MemoryStore:
    """The one store of this process with that name; made, empty, on first use."""
    return _stores.get(name) or _stores.setdefault(name, MemoryStore(name))


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
