"""Copies single objects between places, and proves on the way that they are what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import IntegrityError, NotFound
from wstore_transports.checkpoint.verify import CHUNK_BYTES, check_size
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from wstore.path import StoragePath
    from wstore_transports.versions.documents import ObjectRef

UPLOAD_MEMORY = 32 << 20
"""Bytes that the upload of one object may hold, beside the piece of it that was read."""


def holds(path: StoragePath, ref: ObjectRef) -> bool:
    """Whether an object of this name and size is there: objects appear whole and never change."""
    try:
        return path.store.stat(path.key).size == ref.size
    except NotFound:
        return False


def copy_object(
    source: StoragePath, to: StoragePath, ref: ObjectRef, cancel: threading.Event | None
) -> None:
    """Copy an object, in pieces of 8 MiB; it appears at `to` only when size and hash are right.

    Raises:
        IntegrityError: it is not what `ref` says; names the source. NotFound. The stores' errors.
    """
    to.write_file(_proven(source, ref, cancel), max_memory=UPLOAD_MEMORY, cancel=cancel)


def _proven(
    source: StoragePath, ref: ObjectRef, cancel: threading.Event | None
) -> Iterator[memoryview]:
    info = check_size(source, ref)
    running = xxhash.xxh3_128()
    for offset in range(0, ref.size, CHUNK_BYTES):
        part = np.empty(min(CHUNK_BYTES, ref.size - offset), np.uint8).data
        if source.read_into(part, offset, tag=info.tag, cancel=cancel) != part.nbytes:
            raise IntegrityError("became shorter while it was read", url=source.url)
        running.update(part)
        if offset + CHUNK_BYTES >= ref.size:
            _check(running.hexdigest(), ref, source)
        yield part
    if not ref.size:
        _check(running.hexdigest(), ref, source)


def read_checked(path: StoragePath, ref: ObjectRef, limit: int) -> bytes:
    """A whole object, as a record or manifest names it.

    Raises:
        IntegrityError: it is not what `ref` says, or has more than `limit` bytes. NotFound.
    """
    if ref.size > limit:
        raise IntegrityError(f"{ref.size} bytes are over the limit of {limit}", url=path.url)
    data = path.store.read(path.key, 0, ref.size + 1).data
    if len(data) != ref.size:
        raise IntegrityError(f"is not the {ref.size} bytes that the log names", url=path.url)
    _check(hash_of(data), ref, path)
    return bytes(data)


def _check(found: str, ref: ObjectRef, path: StoragePath) -> None:
    if found != ref.hash:
        raise IntegrityError(
            "its bytes do not have the hash that they were written with", url=path.url
        )
