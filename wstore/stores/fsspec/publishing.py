"""Making an object appear in one step over fsspec, from memory or from a local file."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from wstore.errors import (
    IntegrityError,
    IsADirectory,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.fsspec.descriptions import described, is_directory
from wstore.stores.fsspec.fsspec_listing import is_hidden
from wstore.stores.fsspec.protocols import Publish
from wstore.stores.joining import joined_size
from wstore.stores.posix_temp import new_temp_name, write_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec import AbstractFileSystem

    from wstore.stores.base import ObjectInfo
    from wstore.stores.fsspec.fsspec_store import FsspecStore

    Send = Callable[[AbstractFileSystem, str], object]


_ATTEMPTS = 10


def publish(store: FsspecStore, key: str, data: memoryview) -> ObjectInfo:
    """`Store.write`."""
    content = bytes(data)  # fsspec's clients take nothing else, and some keep it
    if store.protocol.publish is Publish.PUT:
        send = store.protocol.send
        return _put(store, key, lambda files, path: send(files, path, content))
    temp = _beside(key)
    try:
        _make(store, temp, key, content)
        made = _ready(store, temp, key, len(content))
        _move(store, temp, key)
        return made
    except BaseException:
        _discard(store, temp)
        raise


def _put(store: FsspecStore, key: str, send: Send) -> ObjectInfo:
    with store.client(key) as (files, path):
        send(files, path)
    return store.stat(key)


def _beside(key: str) -> str:
    parent, slash, _ = key.rpartition("/")
    return f"{parent}{slash}{new_temp_name().decode()}"


def _make(store: FsspecStore, temp: str, key: str, content: bytes) -> None:
    """A new file beside the target, with the directories above it."""
    with store.client(temp, named=key) as (files, path):
        parent = path.rpartition("/")[0]
        send = store.protocol.send
        try:
            send(files, path, content)
        except OSError:
            if not parent or files.isdir(parent):
                raise
            _require_no_file(files, parent)
            _make_directories(files, parent)
            send(files, path, content)


def _require_no_file(files: AbstractFileSystem, path: str) -> None:
    """Of this directory and those above it: servers do not say that it is this that is wrong."""
    while path:
        if files.isfile(path):
            raise NotADirectoryError(path)
        path = path.rpartition("/")[0]


def _make_directories(files: AbstractFileSystem, path: str) -> None:
    for left in reversed(range(_ATTEMPTS)):
        try:
            files.makedirs(path, exist_ok=True)
            return
        except PermissionError:
            raise
        except OSError:  # others may make the same directories at this moment
            if not left:
                raise


def _ready(store: FsspecStore, temp: str, key: str, size: int) -> ObjectInfo:
    """Check a finished temporary file, and that it can take the target's place: it describes the object
    as that will be."""
    url = store.url_of(key)
    with store.client(temp, named=key) as (files, path):
        made = described(files.info(path), url)
        if made.size != size:
            damaged = IntegrityError(f"{size} bytes were sent, {made.size} are there", url=url)
            damaged.retryable = True
            raise damaged
        old = _present(files, _target(path, temp, key), url)
        return made if old is None else _told_apart(store, files, path, made, old, url)


def _move(store: FsspecStore, temp: str, key: str) -> None:
    with store.client(temp, named=key) as (files, path):
        store.protocol.move(files, path, _target(path, temp, key))


def _target(path: str, temp: str, key: str) -> str:
    return path.removesuffix(temp) + key


def _present(files: AbstractFileSystem, path: str, url: str) -> ObjectInfo | None:
    """The file that is there now, None where there is none.

    Raises:
        IsADirectory: a directory is there.
    """
    try:
        raw = files.info(path)
    except FileNotFoundError:
        return None
    if is_directory(raw):
        raise IsADirectory("a directory has the name of this object", url=url)
    return described(raw, url)


def _told_apart(
    store: FsspecStore,
    files: AbstractFileSystem,
    path: str,
    made: ObjectInfo,
    old: ObjectInfo,
    url: str,
) -> ObjectInfo:
    """Give the new file a later time than the old one has: the tag is made of it, and the protocol may
    tell whole seconds only.

    Raises:
        Unavailable: no time can be given, and it has the old one's. Sent again later it has another.
    """
    set_time = store.protocol.set_time
    if set_time is not None and made.modified <= old.modified:
        set_time(files, path, int(old.modified.timestamp()) + 1)
        return described(files.info(path), url)
    if made.modified == old.modified:
        text = "the old content was written in the same second, and they could not be told apart"
        raise Unavailable(text, url=url, retry_after_s=1.0)
    return made


def _discard(store: FsspecStore, temp: str) -> bool:
    """Whether it was removed. What cannot be removed now is swept later."""
    try:
        with store.client(temp) as (files, path):
            files.rm_file(path)
    except WStoreError:
        return False
    return True


def _new_spool() -> tuple[int, str, bool]:
    """A local file, open, and the name by which others open it: none of its own where the system can do
    without, so that nothing is left behind when the process is killed. Whether the name must be removed.
    """
    spool, path = tempfile.mkstemp(prefix="wstore-spool-")
    nameless = f"/proc/self/fd/{spool}"
    if not os.path.exists(nameless):
        return spool, path, True
    os.unlink(path)
    return spool, nameless, False


class SpooledUpload:
    """An `Upload` whose pieces wait in a local file (in TMPDIR) until all of them are there: most
    protocols of fsspec take a file from its beginning to its end only.

    Where a hidden file will be renamed, it is made at once, empty: what forbids the write shows early.
    """

    def __init__(self, store: FsspecStore, key: str) -> None:
        self._store = store
        self._key = key
        self._url = store.url_of(key)
        self._lock = threading.Lock()
        self._pieces: dict[int, tuple[int, int]] = {}
        self._process = os.getpid()
        self._made: ObjectInfo | None = None  # what is perhaps published: a rename was tried
        self._temp = ""
        self._spool = -1
        try:
            self._spool, self._spool_path, self._has_name = _new_spool()
        except OSError as error:
            raise StoreError(f"no local file for the pieces: {error}", url=self._url) from error
        if store.protocol.publish is Publish.RENAME:
            self._temp = _beside(key)
            try:
                _make(store, self._temp, key, b"")
            except BaseException:
                self.abort()
                raise

    def __del__(self) -> None:
        self._end()

    def put(self, number: int, offset: int, data: memoryview) -> None:
        self._require_open()
        try:
            write_all(self._spool, offset, data)
        except OSError as error:
            text = f"the pieces do not fit the local {tempfile.gettempdir()}: {error.strerror}"
            raise StoreError(text, url=self._url) from error
        with self._lock:
            self._pieces[number] = (offset, data.nbytes)

    def complete(self) -> ObjectInfo:
        """Send the file and publish it. May be repeated after a failure that is worth repeating."""
        self._require_open()
        with self._lock:
            size = joined_size(self._pieces, self._url)
        os.ftruncate(self._spool, size)
        if self._temp:
            info = self._replace(size)
        else:
            put, local = self._store.protocol.put, self._spool_path
            info = _put(self._store, self._key, lambda files, path: put(files, path, local))
        self._temp = ""
        self._end()
        return info

    def _replace(self, size: int) -> ObjectInfo:
        """Fill the temporary file and rename it, unless an earlier try has renamed it."""
        store, temp, key = self._store, self._temp, self._key
        with store.client(temp, named=key) as (files, path):
            if _present(files, path, self._url) is None:
                if self._made is None:
                    raise NotFound("the upload was swept", url=self._url)
                found = _present(files, _target(path, temp, key), self._url)
                if found == self._made:
                    return self._made
                text = "the answer to the rename was lost, and the object is another's now, or gone"
                raise OutcomeUnknown(text, url=self._url)
            store.protocol.put(files, path, self._spool_path)
        made = _ready(store, temp, key, size)
        self._made = made
        _move(store, temp, key)
        return made

    def abort(self) -> None:
        temp, self._temp = self._temp, ""
        self._end()
        if temp:
            _discard(self._store, temp)

    def _end(self) -> None:
        spool, self._spool = self._spool, -1
        if spool >= 0:
            os.close(spool)
            if self._has_name and os.getpid() == self._process:  # a fork's parent needs it still
                os.unlink(self._spool_path)

    def _require_open(self) -> None:
        if self._spool < 0:
            text = "the upload was already completed or aborted"
            raise UnsupportedOperation(text, url=self._url)


def sweep_temps(store: FsspecStore, prefix: str, *, older_than_s: float) -> list[str]:
    """`Sweep.sweep`. The server's clock is read from a file made now."""
    found = [e for e in store.all_entries(prefix) if e.info is not None and is_hidden(e.key)]
    if not found:
        return []
    now = _server_time(store, found[0].key)
    removed = []
    for entry in found:
        old = entry.info is not None and now - entry.info.modified.timestamp() >= older_than_s
        if old and _discard(store, entry.key):
            removed.append(entry.key)
    return removed


def _server_time(store: FsspecStore, key: str) -> float:
    probe = _beside(key)
    try:
        _make(store, probe, key, b"")
        with store.client(probe) as (files, path):
            return described(files.info(path), store.url_of(key)).modified.timestamp()
    except WStoreError:
        return time.time()
    finally:
        _discard(store, probe)
