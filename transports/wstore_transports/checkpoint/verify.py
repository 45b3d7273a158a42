"""Re-reads everything that a version names, and proves that it is what was written."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import IntegrityError, NotFound, WStoreError
from wstore.progress import Tally
from wstore.transfer import run_parallel
from wstore_codecs import dtypes
from wstore_codecs import tensors as arrays
from wstore_codecs.digest import digest_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore.stores.base import ObjectInfo
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.versions.documents import Block, ObjectRef, Tensor

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was read and what is wrong with it.

    Attributes:
        objects, tensors: how many were read.
        nbytes: bytes of the objects.
        proven: hashes were there to compare with (a foreign directory has none).
        problems: one line each, naming the object's URL; empty when all is well.
    """

    objects: int
    tensors: int
    nbytes: int
    proven: bool
    problems: tuple[str, ...]


def verify_snapshot(
    snapshot: Snapshot, *, deep: bool, progress: Progress | None = None
) -> VerifyReport:
    """Check the size and hash of every object; with `deep` also each block's hash and digest.

    Goes on after a problem, so the report names all of them. At most 8 MiB an object are held; `deep`
    holds a block a thread.
    """
    manifest = snapshot.manifest
    total = sum(ref.size for ref in manifest.objects)
    blocks = [
        (name, tensor, block)
        for name, tensor in manifest.tensors.items()
        for block in tensor.blocks
        if block.encoding == "flat"
    ]
    deep_bytes = sum(block.nbytes for _, _, block in blocks) if deep else 0
    counter = Tally(progress, total + deep_bytes)
    problems: list[str] = []
    lock = threading.Lock()

    def tried(check: Callable[[], None]) -> None:
        try:
            check()
        except (IntegrityError, NotFound) as error:
            with lock:
                problems.append(_line(error))

    def check_one(index: int) -> None:
        ref = manifest.objects[index]
        tried(lambda: check_object(snapshot.object(ref.name), ref, counter))

    def check_block(index: int) -> None:
        tried(lambda: _check_block(snapshot, *blocks[index], counter))

    run_parallel(len(manifest.objects), check_one, concurrency=4, cancel=None)
    if deep:
        run_parallel(len(blocks), check_block, concurrency=4, cancel=None)
    return VerifyReport(
        len(manifest.objects),
        len(manifest.tensors),
        total,
        all(ref.hash for ref in manifest.objects),
        tuple(dict.fromkeys(problems)),
    )


def _line(error: WStoreError) -> str:
    return f"{error.url}: is missing" if isinstance(error, NotFound) else str(error)


def check_size(path: StoragePath, ref: ObjectRef) -> ObjectInfo:
    """Check that the object is there with its size; one request. Raises NotFound, IntegrityError."""
    info = path.stat()
    if info.size != ref.size:
        raise IntegrityError(f"has {info.size} bytes; the manifest says {ref.size}", url=path.url)
    return info


def check_object(path: StoragePath, ref: ObjectRef, counter: Tally) -> None:
    """Read the whole object, 8 MiB at a time, and check size and hash.

    Args:
        counter: is told the bytes that were read.

    Raises:
        NotFound, IntegrityError.
    """
    info = check_size(path, ref)
    running = xxhash.xxh3_128()
    buffer = np.empty(min(CHUNK_BYTES, max(1, ref.size)), np.uint8)
    for offset in range(0, ref.size, CHUNK_BYTES):
        part = buffer[: min(CHUNK_BYTES, ref.size - offset)]
        if path.read_into(part.data, offset, tag=info.tag) != part.size:
            raise IntegrityError("became shorter while it was read", url=path.url)
        running.update(part.data)
        counter.add(part.size)
    if ref.hash and running.hexdigest() != ref.hash:
        raise IntegrityError("its bytes do not have the hash that the manifest gives", url=path.url)


def _check_block(
    snapshot: Snapshot, name: str, tensor: Tensor, block: Block, counter: Tally
) -> None:
    if not block.hash:
        return
    path = snapshot.object(snapshot.manifest.objects[block.object].name)
    data = path.read_range(block.offset, block.nbytes)
    counter.add(block.nbytes)
    where = f"tensor {name!r}, box at {block.origin} of {block.extent}"
    if xxhash.xxh3_128_hexdigest(data) != block.hash:
        raise IntegrityError(f"{where}: its bytes do not have their hash", url=path.url)
    kind, extent = dtypes.dtype(tensor.dtype), tuple(block.extent)
    array = arrays.from_bytes(memoryview(data), kind, extent, name=name)
    if digest_block(array, tensor.shape, block.origin, name=name).hex != block.digest:
        raise IntegrityError(f"{where}: its values do not have their digest", url=path.url)
