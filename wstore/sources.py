"""Where the bytes of a write come from: memory, another object, or a stream. Opened once, read once.

A local file is an object of the POSIX store: its reads are tied to one tag (inode, time, size), so a
source that changes meanwhile is `ObjectChanged`.
"""

from __future__ import annotations

import io
import os
import stat
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from wstore.buffers import is_readable, readable_bytes
from wstore.errors import InvalidArgument, ObjectChanged, StoreError
from wstore.pure_path import PureStoragePath
from wstore.stores import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from wstore.buffers import ReadableBuffer
    from wstore.stores.base import Read, Store

    Data: TypeAlias = ReadableBuffer | os.PathLike[str] | BinaryIO | Iterable[ReadableBuffer]

_CHUNK = 1 << 20
_FIRST = 8 << 20  # how much of an object is read to learn its size


class Sized(Protocol):
    """A source of known size that can be read anywhere, by many threads."""

    @property
    def size(self) -> int: ...

    @property
    def in_memory(self) -> bool:
        """Whether `load` takes no memory."""

    def load(self, offset: int, length: int) -> memoryview:
        """Exactly these bytes, which lie inside the source. Raises ObjectChanged."""

    def check(self) -> None:
        """Raises ObjectChanged if the source is known to be another than it was."""


class MemorySource:
    """The caller's memory, used in place."""

    in_memory = True

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size = len(data)

    def load(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]

    def check(self) -> None:
        """The caller keeps it as it is."""


class ObjectSource:
    """One content of an object in some store, local files included. Opening reads its first bytes."""

    in_memory = False

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._first: Read = store.read(key, 0, _FIRST)
        self._info = self._first.info
        self.size = self._info.size

    def load(self, offset: int, length: int) -> memoryview:
        if length == 0:
            return memoryview(b"")
        if offset + length <= len(self._first.data):
            return self._first.data[offset : offset + length]
        read = self._store.read(self._key, offset, length, tag=self._info.tag)
        if len(read.data) != length:
            raise StoreError(
                f"the store gave {len(read.data)} bytes for [{offset}, {offset + length})",
                url=f"{self._store.url}/{self._key}",
            )
        return read.data

    def check(self) -> None:
        """Local files are looked at once more: what grew at the end was not read."""
        if not self._store.capabilities.directories:
            return
        if self._store.stat(self._key).tag != self._info.tag:
            raise ObjectChanged(
                "the source changed while it was read", url=f"{self._store.url}/{self._key}"
            )


def open_source(data: Data) -> MemorySource | ObjectSource | Iterator[memoryview]:
    """The source behind what a user may write: of known size, or the chunks of a stream.

    Raises:
        InvalidArgument: a str, a text file, or nothing that holds bytes.
        NotFound, IsADirectory: the local file.
    """
    if isinstance(data, str):
        raise InvalidArgument("a str is no data: write_text() it, or pass a pathlib.Path to upload")
    if is_readable(data):
        return MemorySource(readable_bytes(data))
    if isinstance(data, os.PathLike):
        path = data if isinstance(data, PureStoragePath) else PureStoragePath(data)
        injected = path.injected_store
        return ObjectSource(injected or registry.open_store(path.location), path.key)
    if isinstance(data, io.TextIOBase):
        raise InvalidArgument("a file opened as text is no data: open it with mode 'rb'")
    if hasattr(data, "read"):
        return _file_chunks(cast("BinaryIO", data))
    if hasattr(data, "__iter__"):
        return (readable_bytes(chunk) for chunk in data)
    raise InvalidArgument(
        f"a {type(data).__name__} is no data: bytes-like, a path, a binary file, or an iterable of bytes"
    )


def _file_chunks(file: BinaryIO) -> Iterator[memoryview]:
    """The rest of the file; a regular one must not change its size or time meanwhile."""
    status = _regular_status(file)
    start = file.tell() if status is not None else 0
    done = 0
    while chunk := file.read(_CHUNK):
        view = readable_bytes(chunk)
        done += len(view)
        yield view
    if chunk is None:
        raise InvalidArgument("a non-blocking file that has no data at the moment")
    if status is None:
        return
    after = os.fstat(file.fileno())
    same = (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    if not same or done != max(0, status.st_size - start):
        raise ObjectChanged(f"the source file {file.name!r} changed while it was read")


def _regular_status(file: BinaryIO) -> os.stat_result | None:
    """The status of a plain file on disk opened to read; None for all else (pipes, gzip, BytesIO)."""
    if not isinstance(file, io.BufferedReader | io.FileIO):
        return None
    raw = file.raw if isinstance(file, io.BufferedReader) else file
    if not isinstance(raw, io.FileIO):
        return None
    status = os.fstat(raw.fileno())
    return status if stat.S_ISREG(status.st_mode) else None
