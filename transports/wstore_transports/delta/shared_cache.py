"""A directory of one host where its engines share their downloads: each object is fetched once."""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from wstore.errors import IntegrityError, InvalidArgument, UnsupportedOperation, WStoreError
from wstore_transports.delta.cache_room import PART, make_room, mark_used
from wstore_transports.delta.cached_object import (
    CachedObject,
    allocate,
    fill,
    map_file,
    private_copy,
)
from wstore_transports.delta.host_lock import HostLock
from wstore_transports.delta.prober import STALE_S, Prober, read_tip
from wstore_transports.versions.poll import Poll

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from wstore_transports.delta.cached_object import Fetch
    from wstore_transports.versions.documents import ObjectRef

_log = logging.getLogger(__name__)

MAX_BYTES = 16 << 30
"""What the objects of a cache take, unless told otherwise."""

TIMEOUT_S = 600.0
"""How long a reader waits for another process's download, unless told otherwise."""

_LOOK_S = 0.1  # the longest pause between looks whether the other process is done
_ROOM = "room.lock"
_ROOT = re.compile(r"[0-9a-f]{32}")


class SharedCache:
    """Whole immutable objects of roots, shared by all processes of a host that name the same directory.

    An object that is missing is downloaded by exactly one process, in a file that gets its name when it
    is whole and verified; the others wait. Locks end with their process, so a killed one holds nobody
    up. The least recently used objects go when there is no room. Trouble with the directory (full, not
    writable) costs the sharing, never the read. Thread-safe and fork-safe. The directory must be on a
    local file system and belong to users who trust each other.

    Args:
        directory: made where it is missing.
        max_bytes: what all objects in it, also those that are being downloaded, take together.

    Raises:
        UnsupportedOperation: not on Linux.
    """

    def __init__(self, directory: Path | str, *, max_bytes: int = MAX_BYTES) -> None:
        if sys.platform != "linux":
            raise UnsupportedOperation("a shared cache needs Linux", url=str(directory))
        self.directory = Path(directory).absolute()
        self.max_bytes = max_bytes
        self._verified: set[tuple[int, int, int, str]] = set()

    def open(
        self,
        root_id: str,
        ref: ObjectRef,
        fetch: Fetch,
        *,
        timeout: float = TIMEOUT_S,
        cancel: threading.Event | None = None,
    ) -> CachedObject:
        """The object as a local file. The caller closes it.

        A cached file is verified once in a process before it is trusted, and replaced when it is
        damaged. An object whose hash is not known yet is only known to have its size; its reader
        verifies what it takes from it, and says `discard` when that fails.

        What the directory cannot take (larger than `max_bytes`, no room beside the downloads that are
        under way, a full disk) is fetched for this reader alone: into a file without a name in the same
        directory, else into memory.

        Args:
            root_id: the id in the root's marker.
            ref: the object's name relative to the root, its size, and its hash or "".
            fetch: fills the memory it is given; called at most once, with no lock of this process held
                that another object needs.
            timeout: seconds to wait for the download of another process.

        Raises:
            WaitTimeout, Cancelled: while waiting for another process. IntegrityError: the download has
                another size or hash. InvalidArgument: no root id. What `fetch` raises.
        """
        stem = f"{xxhash.xxh3_128_hexdigest(ref.name.encode())}-{ref.size}"
        path = self._directory_of(root_id) / stem
        poll = Poll(timeout, cancel, url=str(path), most_s=_LOOK_S)
        if ref.size <= self.max_bytes:
            try:
                return self._shared(path, ref, fetch, poll)
            except _NotShared as error:
                _log.warning("%s: %s is fetched for this process alone: %s", path, ref.name, error)
        return private_copy(self.directory, ref, fetch)

    def prober(self, root_id: str, *, stale_s: float = STALE_S) -> Prober:
        """For one wait for news of a root: who looks at the store, and what was seen."""
        return Prober(self._directory_of(root_id), stale_s=stale_s)

    def last_seen(self, root_id: str) -> int:
        """The newest record number that any process of this host saw; 0 for none. A hint."""
        return read_tip(self._directory_of(root_id))

    def _directory_of(self, root_id: str) -> Path:
        if not _ROOT.fullmatch(root_id):
            raise InvalidArgument(f"{root_id!r:.80} is not the id of a root")
        return self.directory / root_id

    def _shared(self, path: Path, ref: ObjectRef, fetch: Fetch, poll: Poll) -> CachedObject:
        with _disk_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            if (found := self._cached(path, ref)) is not None:
                return found
            with _disk_errors():
                lock = HostLock.take(path.with_name(path.name + PART))
            if lock is None:
                poll.pause("another process is downloading it")
                continue
            with lock:
                try:
                    return self._cached(path, ref) or self._download(
                        path, lock.path, ref, fetch, poll
                    )
                finally:
                    lock.unlink()

    def _cached(self, path: Path, ref: ObjectRef) -> CachedObject | None:
        """The cached file, when it is there and can be trusted."""
        with _disk_errors():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
        found = CachedObject(descriptor, ref.size, path)
        if self._is_sound(found, ref):
            mark_used(descriptor)
            return found
        found.close()
        _log.warning("%s: the cached copy of %s is damaged, and is replaced", path, ref.name)
        return None

    def _is_sound(self, found: CachedObject, ref: ObjectRef) -> bool:
        if os.fstat(found.fileno()).st_size != ref.size:
            return False
        content = _content(found, ref)
        if not ref.hash or content in self._verified:
            return True
        try:
            sound = found.digest() == ref.hash
        except IntegrityError:  # it cannot be read
            return False
        if sound:
            self._verified.add(content)
        return sound

    def _download(
        self, path: Path, part: Path, ref: ObjectRef, fetch: Fetch, poll: Poll
    ) -> CachedObject:
        """Under the object's lock, which lies on `part`."""
        with _disk_errors():
            path.unlink(missing_ok=True)  # a damaged one
            # Not the lock's own descriptor: a mapping keeps what it maps open, also in forked children.
            descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            with _disk_errors():
                self._reserve(descriptor, ref.size, poll)
                memory = map_file(descriptor, ref.size)
            fill(memory, ref, fetch)
        except BaseException:
            os.close(descriptor)
            raise
        try:
            part.rename(path)
        except OSError as error:
            _log.warning("%s: %s is not shared: %s", path, ref.name, error)
            return CachedObject(descriptor, ref.size, None)
        found = CachedObject(descriptor, ref.size, path)
        if ref.hash:
            self._verified.add(_content(found, ref))
        return found

    def _reserve(self, descriptor: int, size: int, poll: Poll) -> None:
        """Give the download its room on the disk, so that others count it."""
        os.ftruncate(descriptor, 0)  # what a killed process left
        while (lock := HostLock.take(self.directory / _ROOM)) is None:
            poll.pause("another process is making room")
        with lock:
            if not make_room(self.directory, size, self.max_bytes):
                raise _NotShared("there is no room beside the downloads that are under way")
            allocate(descriptor, size)


class _NotShared(Exception):
    """The directory cannot take the object."""


@contextmanager
def _disk_errors() -> Iterator[None]:
    """The directory's trouble, told from the store's: around calls on local files only."""
    try:
        yield
    except WStoreError:  # of waiting; some are OSErrors too
        raise
    except OSError as error:
        raise _NotShared(str(error)) from error


def _content(found: CachedObject, ref: ObjectRef) -> tuple[int, int, int, str]:
    """What tells a file that was verified from one that was changed since."""
    status = os.fstat(found.fileno())
    return status.st_dev, status.st_ino, status.st_mtime_ns, ref.hash
