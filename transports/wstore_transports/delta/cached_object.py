"""An object's bytes as a local file: allocated, filled, verified, read."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Self

import xxhash

from wstore.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore_transports.versions.documents import ObjectRef

    Fetch = Callable[[memoryview], int]
    """Fills the memory with the object's bytes from its first on, and returns how many it had."""

_log = logging.getLogger(__name__)

_CHUNK = 4 << 20


class CachedObject:
    """All bytes of one object, readable at any place by any thread, until closed. A context manager.

    They stay readable when the cache lets the object go.

    Attributes:
        size: bytes.
    """

    def __init__(self, descriptor: int, size: int, path: Path | None) -> None:
        self._descriptor = descriptor
        self._path = path
        self.size = size

    @property
    def shared(self) -> bool:
        """Whether other processes find it in the cache; else this is a copy of the reader's own."""
        return self._path is not None

    def fileno(self) -> int:
        """The open file, for `os.pread`; it is closed with this."""
        return self._descriptor

    def read_into(self, buffer: memoryview, offset: int = 0) -> None:
        """Fill `buffer` (flat, of bytes) with the bytes from `offset` on.

        Raises:
            IntegrityError: the file ends before, or cannot be read.
        """
        at = 0
        while at < len(buffer):
            try:
                count = os.preadv(self._descriptor, [buffer[at:]], offset + at)
            except OSError as error:
                raise IntegrityError(f"the cached copy cannot be read: {error}") from error
            if count == 0:
                raise IntegrityError(f"the cached copy ends at byte {offset + at} of {self.size}")
            at += count

    def digest(self) -> str:
        """xxh3-128 of all bytes, 32 hex digits. Raises IntegrityError as `read_into`."""
        state = xxhash.xxh3_128()
        chunk = memoryview(bytearray(min(_CHUNK, self.size)))
        for start in range(0, self.size, _CHUNK):
            piece = chunk[: min(_CHUNK, self.size - start)]
            self.read_into(piece, start)
            state.update(piece)
        return state.hexdigest()

    def discard(self) -> None:
        """Take it out of the cache, for a reader that found its content wrong; the next open downloads it.

        For one that is open. A newer copy that has taken its place stays. What this object reads does not
        change.
        """
        if self._path is None:
            return
        try:
            if os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                self._path.unlink()
        except FileNotFoundError:
            return  # it has gone already
        except OSError as error:
            _log.warning("%s: cannot be taken out of the cache: %s", self._path, error)

    def close(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def allocate(descriptor: int, size: int) -> None:
    """Give an empty file its size, and blocks for all of it.

    `os.posix_fallocate` and not only the hint that stores use: a mapping whose blocks are missing ends
    the process (SIGBUS) when the disk fills.

    Raises:
        OSError: there is no room.
    """
    if size:
        os.posix_fallocate(descriptor, 0, size)


def map_file(descriptor: int, size: int) -> memoryview:
    """The file's own pages as writable memory, which lives as long as the view does.

    Raises:
        OSError: the file system cannot do it.
    """
    return memoryview(mmap.mmap(descriptor, size) if size else bytearray())


def fill(memory: memoryview, ref: ObjectRef, fetch: Fetch) -> None:
    """Download the object straight into `memory`, and verify it.

    Raises:
        IntegrityError: the download has another size or hash. What `fetch` raises.
    """
    count = fetch(memory)
    if count != ref.size:
        raise IntegrityError(f"object {ref.name}: {count} bytes came, not {ref.size}")
    if ref.hash and xxhash.xxh3_128_hexdigest(memory) != ref.hash:
        raise IntegrityError(f"object {ref.name}: the download does not have the hash {ref.hash}")


def private_copy(directory: Path, ref: ObjectRef, fetch: Fetch) -> CachedObject:
    """The object in a file without a name in `directory`; in memory where the disk cannot take it.

    Raises: as `fill`.
    """
    descriptor, memory = _unnamed(directory, ref.size)
    try:
        fill(memory, ref, fetch)
    except BaseException:
        os.close(descriptor)
        raise
    return CachedObject(descriptor, ref.size, None)


def _unnamed(directory: Path, size: int) -> tuple[int, memoryview]:
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            allocate(file.fileno(), size)
            memory = map_file(file.fileno(), size)
            return os.dup(file.fileno()), memory
    except OSError as error:
        _log.warning("%s: %d bytes are held in memory: %s", directory, size, error)
    descriptor = os.memfd_create("wstore")
    os.ftruncate(descriptor, size)
    return descriptor, map_file(descriptor, size)
