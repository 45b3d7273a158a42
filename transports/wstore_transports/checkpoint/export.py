"""Writes one version as a plain safetensors directory on the local disk, a block at a time."""

from __future__ import annotations

import math
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import AlreadyExists, IntegrityError, WStoreError
from wstore.path import StoragePath
from wstore.stores.posix_errors import OsErrors
from wstore.stores.posix_temp import new_temp_name
from wstore_codecs import dtypes
from wstore_codecs import tensors as arrays
from wstore_codecs.block import Block
from wstore_transports.checkpoint.extra_files import FILE_KEY, MAX_EXTRA_FILE, check_file_name
from wstore_transports.checkpoint.fetch import Fetcher, plan
from wstore_transports.checkpoint.index import INDEX, index_json
from wstore_transports.checkpoint.placement import ENTRY_BYTES, MAX_HEADER_BYTES, cut_blocks
from wstore_transports.checkpoint.safetensors_header import build_header
from wstore_transports.checkpoint.targets import Target

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from wstore.progress import Progress
    from wstore_transports.checkpoint.safetensors_header import Header
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.versions.documents import Manifest, ObjectRef, Tensor

BATCH_BYTES = 64 << 20
"""What is read at once, and so held in memory, while a file is written."""


def export(
    snapshot: Snapshot,
    local_dir: str | os.PathLike[str],
    *,
    max_file_bytes: int,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> Path:
    """Write all of the snapshot below `local_dir`; the directory appears complete or not at all.

    What a killed process leaves has the name of an unfinished write: not listed, and swept when old.
    """
    with complete_directory(local_dir) as partial:
        writer = _Writer(snapshot, StoragePath(partial), progress, cancel)
        writer.write_weights(max_file_bytes)
        write_extra_files(snapshot, StoragePath(partial), cancel)
    return Path(local_dir).absolute()


@contextmanager
def complete_directory(local_dir: str | os.PathLike[str]) -> Iterator[Path]:
    """A new directory to write into, which becomes `local_dir` when the context ends without an error.

    Raises:
        AlreadyExists: there is something under that name that is no empty directory.
    """
    target = Path(local_dir).absolute()
    partial = target.with_name(new_temp_name().decode())
    with OsErrors(str(target)):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists("exists and is not an empty directory", url=str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    try:
        yield partial
        with OsErrors(str(target)):
            if target.exists():
                target.rmdir()
            partial.rename(target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, WStoreError):
            error.url = error.url.replace(StoragePath(partial).url, StoragePath(target).url)
        raise


def write_extra_files(
    snapshot: Snapshot, directory: StoragePath, cancel: threading.Event | None
) -> None:
    """Write the files that go along with the version, checked. Raises IntegrityError."""
    sizes = {ref.name: ref for ref in snapshot.manifest.objects}
    for key, name in snapshot.manifest.metadata.items():
        if not key.startswith(FILE_KEY):
            continue
        ref, file = sizes.get(name), check_file_name(key.removeprefix(FILE_KEY))
        if ref is None or ref.size > MAX_EXTRA_FILE:
            raise IntegrityError(
                f"extra file {file!r} is not an object of the version, or too large"
            )
        (directory / file).write_file(_read_file(snapshot, ref, cancel))


def _read_file(snapshot: Snapshot, ref: ObjectRef, cancel: threading.Event | None) -> bytes:
    def use(path: StoragePath) -> bytes:
        data = path.read_range(0, ref.size + 1, cancel=cancel)
        if xxhash.xxh3_128_hexdigest(data) != ref.hash:
            raise IntegrityError("this extra file does not have its hash", url=path.url)
        return data

    return snapshot.copies(ref.name).read(use, cancel)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A safetensors file of an export: its header, and where each tensor's bytes go.

    Attributes:
        name: the file's.
        head: its first bytes.
        header: what they say.
        tensors: by name, in the order of their bytes.
    """

    name: str
    head: bytes
    header: Header
    tensors: dict[str, Tensor]


def plan_export(manifest: Manifest, max_file_bytes: int) -> list[PlannedFile]:
    """The files that hold all tensors, as few as the limit allows."""
    groups = _grouped(manifest.tensors, max_file_bytes)
    files = []
    for number, names in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        if len(groups) == 1:
            name = "model.safetensors"
        tensors = {name: manifest.tensors[name] for name in names}
        tied = {a: n for a, n in manifest.aliases.items() if n in tensors}
        head, header = build_header(
            ((name, dtypes.dtype(t.dtype), t.shape) for name, t in tensors.items()),
            metadata={**tied, "format": "pt"},
            url=name,
        )
        ordered = {name: tensors[name] for name in header.tensors}
        files.append(PlannedFile(name, head, header, ordered))
    return files


def write_index(files: Sequence[PlannedFile], directory: StoragePath) -> None:
    """The index, where the tensors are in several files."""
    if len(files) > 1:
        weight_map = {name: file.name for file in files for name in file.tensors}
        total = sum(_nbytes(tensor) for file in files for tensor in file.tensors.values())
        (directory / INDEX).write_file(index_json(weight_map, total))


class _Writer:
    """Writes the files of one export."""

    def __init__(
        self,
        snapshot: Snapshot,
        directory: StoragePath,
        progress: Progress | None,
        cancel: threading.Event | None,
    ) -> None:
        self._snapshot = snapshot
        self._directory = directory
        self._progress = progress
        self._cancel = cancel
        self._fetcher = Fetcher(
            snapshot.objects(), verify=True, budget=BATCH_BYTES, progress=None, cancel=cancel
        )
        self._done = 0
        self._total = sum(_nbytes(tensor) for tensor in snapshot.manifest.tensors.values())

    def write_weights(self, max_file_bytes: int) -> None:
        """All tensors, in as few files as the limit allows, and the index where they are several."""
        files = plan_export(self._snapshot.manifest, max_file_bytes)
        for file in files:
            chunks = self._chunks(file.head, file.tensors)
            (self._directory / file.name).write_file(chunks, cancel=self._cancel)
        write_index(files, self._directory)

    def _chunks(self, head: bytes, tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
        """The header, then the tensors' bytes in this order, verified; many small ones are one chunk."""
        yield memoryview(head)
        batch: list[tuple[str, Tensor, Block]] = []
        size = 0
        for name, tensor in tensors.items():
            itemsize = dtypes.dtype(tensor.dtype).itemsize
            for box in cut_blocks(Block.whole(name, tensor.shape), itemsize, BATCH_BYTES):
                if batch and size + box.size * itemsize > BATCH_BYTES:
                    yield self._read(batch, size)
                    batch, size = [], 0
                batch.append((name, tensor, box))
                size += box.size * itemsize
        if batch:
            yield self._read(batch, size)

    def _read(self, batch: Sequence[tuple[str, Tensor, Block]], size: int) -> memoryview:
        memory = np.empty(size, np.uint8).data
        targets, start = [], 0
        for name, tensor, box in batch:
            kind = dtypes.dtype(tensor.dtype)
            part = memory[start : start + box.size * kind.itemsize]
            array = arrays.from_bytes(part, kind, box.extent, name=name)
            targets.append(Target(name, tensor, box, array, part))
            start += len(part)
        self._fetcher.read(plan(targets))
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)
        return memory


def _grouped(tensors: Mapping[str, Tensor], max_file_bytes: int) -> list[list[str]]:
    """Names by file, in order; an empty version is one file without tensors."""
    files: list[list[str]] = [[]]
    size = header = 0
    for name, tensor in tensors.items():
        nbytes, entry = _nbytes(tensor), 2 * len(name.encode()) + ENTRY_BYTES
        if files[-1] and (size + nbytes > max_file_bytes or header + entry > MAX_HEADER_BYTES):
            files.append([])
            size = header = 0
        files[-1].append(name)
        size += nbytes
        header += entry
    return files


def _nbytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * dtypes.dtype(tensor.dtype).itemsize
