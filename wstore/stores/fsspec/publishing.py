"""Making an object appear in one step over fsspec, from memory or from a local file."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound, StoreError, UnsupportedOperation, WStoreError
from wstore.stores.fsspec.descriptions import described
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
        return _put(store, key, lambda files, path: files.pipe_file(path, content))
    temp = _beside(key)
    try:
        _make(store, temp, content)
        return _rename(store, temp, key, len(content))
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


def _make(store: FsspecStore, temp: str, content: bytes) -> None:
    """A new file, with the directories above it."""
    with store.client(temp) as (files, path):
        parent = path.rpartition("/")[0]
        send = store.protocol.send
        try:
            send(files, path, content)
        except OSError:
            if not parent or files.isdir(parent):
                raise
            for _ in range(_ATTEMPTS):  # others may make the same directories at this moment
                with contextlib.suppress(OSError):
                    files.makedirs(parent, exist_ok=True)
                    break
            send(files, path, content)


def _rename(store: FsspecStore, temp: str, key: str, size: int) -> ObjectInfo:
    """Check a finished temporary file, and put it in the target's place."""
    url = store.url_of(key)
    with store.client(temp) as (files, path):
        made = described(files.info(path), url)
        if made.size != size:
            damaged = IntegrityError(f"{size} bytes were sent, {made.size} are there", url=url)
            damaged.retryable = True
            raise damaged
        target = path.removesuffix(temp) + key
        made = _told_apart(store, files, path, target, made, url)
        files.mv(path, target)
    return made


def _told_apart(
    store: FsspecStore,
    files: AbstractFileSystem,
    path: str,
    target: str,
    made: ObjectInfo,
    url: str,
) -> ObjectInfo:
    """Give the new file a later time than the old one has: the tag is made of it, and the protocol may
    tell whole seconds only."""
    set_time = store.protocol.set_time
    if set_time is None:
        return made
    try:
        old = described(files.info(target), url)
    except FileNotFoundError:
        return made
    if made.modified > old.modified:
        return made
    set_time(files, path, int(old.modified.timestamp()) + 1)
    return described(files.info(path), url)


def _discard(store: FsspecStore, temp: str) -> None:
    """What cannot be removed now is swept later."""
    with contextlib.suppress(WStoreError), store.client(temp) as (files, path):
        files.rm_file(path)


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
        self._spool = -1
        self._temp = _beside(key) if store.protocol.publish is Publish.RENAME else ""
        if self._temp:
            _make(store, self._temp, b"")
        try:
            self._spool, self._spool_path = tempfile.mkstemp(prefix="wstore-spool-")
        except OSError as error:
            raise StoreError(f"no local file for the pieces: {error}", url=self._url) from error

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
        local = self._spool_path
        if not self._temp:
            info = _put(self._store, self._key, lambda files, to: files.put_file(local, to))
        else:
            with self._store.client(self._temp) as (files, path):
                if not files.exists(path):
                    raise NotFound("the upload was swept", url=self._url)
                files.put_file(local, path)
            info = _rename(self._store, self._temp, self._key, size)
        self._temp = ""
        self._end()
        return info

    def abort(self) -> None:
        temp, self._temp = self._temp, ""
        self._end()
        if temp:
            _discard(self._store, temp)

    def _end(self) -> None:
        spool, self._spool = self._spool, -1
        if spool >= 0:
            os.close(spool)
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
        if entry.info is not None and now - entry.info.modified.timestamp() >= older_than_s:
            _discard(store, entry.key)
            removed.append(entry.key)
    return removed


def _server_time(store: FsspecStore, key: str) -> float:
    probe = _beside(key)
    try:
        _make(store, probe, b"")
        with store.client(probe) as (files, path):
            return described(files.info(path), store.url_of(key)).modified.timestamp()
    except WStoreError:
        return time.time()
    finally:
        _discard(store, probe)
