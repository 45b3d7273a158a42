"""Writes one version of a root as a plain safetensors directory: whole weights, and the deltas after them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError, NotFound
from wstore.path import StoragePath
from wstore.progress import Tally
from wstore.stores.posix_errors import OsErrors
from wstore.stores.syscalls import preallocate
from wstore.transfer import run_parallel
from wstore_codecs import tensors as arrays
from wstore_codecs.apply import apply
from wstore_codecs.block import Block
from wstore_transports.checkpoint.export import (
    complete_directory,
    export,
    plan_export,
    write_extra_files,
    write_index,
)
from wstore_transports.checkpoint.fetch import Fetcher, plan
from wstore_transports.checkpoint.reader import leased_version
from wstore_transports.checkpoint.targets import Target
from wstore_transports.checkpoint.weights_digest import weights_digest
from wstore_transports.delta.origin import Origin
from wstore_transports.delta.route import find_route
from wstore_transports.delta.staging import LOAD_BUDGET, check_frame, check_hash
from wstore_transports.delta.wanted import check_same, wanted_frames

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from wstore.progress import Progress
    from wstore_codecs.frame import Frame
    from wstore_codecs.tensors import HostArray
    from wstore_transports.checkpoint.export import PlannedFile
    from wstore_transports.delta.route import Route
    from wstore_transports.delta.wanted import WantedFrame
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest

MAX_FILE_BYTES = 4 << 30
"""Bytes of one safetensors file, unless told otherwise."""

FRAMES = 8
"""Frames that are fetched and applied together; their undo fits the memory of a journal."""

AT_ONCE = 4
"""So many of those at once."""


@dataclass(frozen=True, slots=True)
class PullReport:
    """What was written.

    Attributes:
        version: its number, step and digest.
        start: the version whose whole weights were read.
        deltas: how many were applied to them.
        fetched_nbytes: bytes of all objects on the way.
        path: the directory.
    """

    version: Version
    start: int
    deltas: int
    fetched_nbytes: int
    path: Path


def pull(
    root: StoragePath | str,
    local_dir: str | os.PathLike[str],
    *,
    version: int | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> PullReport:
    """Write a version as a directory that any library loads; it appears complete or not at all.

    Laid out as `CheckpointReader.download` has it. The files' own pages are the only copy of the weights;
    beside them a few blocks are in memory. Everything is verified, the result against the version's digest.

    Args:
        version: which one; the newest by default.
        progress: is told bytes that were read, of those of all objects on the way.

    Raises:
        AlreadyExists: the directory exists and is not empty. NoSpace. IntegrityError: naming tensor and
            URL. VersionGone, NoVersion, NoRoot, NotARoot.
    """
    origin = Origin(root if isinstance(root, StoragePath) else StoragePath(root))
    with leased_version(origin.root, None, version) as target:
        route = find_route(target, 0)
        whole = route.whole
        if whole is None:
            raise AssertionError("a route from nothing begins with whole weights")
        tally = Tally(progress, route.nbytes)
        manifest = origin.whole(whole.version, whole.anchor)
        snapshot = origin.snapshot(whole.version, manifest)
        if not route.deltas:
            with snapshot.explained():
                export(
                    snapshot,
                    local_dir,
                    max_file_bytes=max_file_bytes,
                    progress=progress,
                    cancel=cancel,
                )
        else:
            with complete_directory(local_dir) as directory:
                files = plan_export(manifest, max_file_bytes)
                memory = _map_files(files, directory)
                with snapshot.explained():
                    _load(origin, whole.version, manifest, memory, cancel)
                tally.add(whole.nbytes)
                last = _replay(origin, route, manifest, memory, tally, cancel)
                _check_digest(target, last, memory)
                _sync(files, directory)
                write_index(files, StoragePath(directory))
                write_extra_files(origin.snapshot(target, last), StoragePath(directory), cancel)
    return PullReport(
        target, whole.version.number, len(route.deltas), route.nbytes, Path(local_dir).absolute()
    )


def _map_files(files: Sequence[PlannedFile], directory: Path) -> dict[str, HostArray]:
    """The tensors' memory, by name: pages of the files, which have their headers already."""
    found: dict[str, HostArray] = {}
    for file in files:
        path = directory / file.name
        with OsErrors(str(path)), path.open("wb+") as opened:
            opened.write(file.head)
            # Room first: a full disk is an error here, and a fatal signal in a mapped page.
            preallocate(opened.fileno(), file.header.size)
            opened.truncate(file.header.size)
            pages = np.memmap(opened, np.uint8, mode="r+", shape=(file.header.size,))
        for name, entry in file.header.tensors.items():
            start = entry.offset
            data = pages.data[start : start + entry.nbytes]
            found[name] = arrays.from_bytes(data, entry.dtype, entry.shape, name=name)
    return found


def _load(
    origin: Origin,
    version: Version,
    manifest: Manifest,
    memory: Mapping[str, HostArray],
    cancel: threading.Event | None,
) -> None:
    targets = []
    for name, tensor in manifest.tensors.items():
        data = memory[name].reshape(-1).view(np.uint8).data
        box = Block.whole(name, tensor.shape)
        targets.append(Target(name, tensor, box, memory[name], data))
    objects = origin.snapshot(version, manifest).objects()
    fetcher = Fetcher(objects, verify=True, budget=LOAD_BUDGET, progress=None, cancel=cancel)
    fetcher.read(plan(targets))


def _replay(
    origin: Origin,
    route: Route,
    before: Manifest,
    memory: Mapping[str, HostArray],
    tally: Tally,
    cancel: threading.Event | None,
) -> Manifest:
    """Bring the memory to the target, a version after the other; the last manifest."""
    for version in route.deltas:
        manifest = origin.manifest(version)
        check_same(before, manifest)
        frames = wanted_frames(manifest, {})
        chunks = _chunks(frames)

        def one(
            index: int,
            version: Version = version,
            manifest: Manifest = manifest,
            chunks: list[list[WantedFrame]] = chunks,
        ) -> None:
            wanted = chunks[index]
            apply(_read(origin, version, manifest, wanted, cancel), memory)
            tally.add(sum(frame.nbytes for frame in wanted))

        run_parallel(len(chunks), one, concurrency=AT_ONCE, cancel=cancel)
        tally.add(version.record.nbytes - sum(frame.nbytes for frame in frames))
        before = manifest
    return before


def _chunks(frames: Sequence[WantedFrame]) -> list[list[WantedFrame]]:
    """A few frames of one object each."""
    chunks: list[list[WantedFrame]] = []
    for frame in frames:
        if not chunks or len(chunks[-1]) == FRAMES or chunks[-1][0].object != frame.object:
            chunks.append([])
        chunks[-1].append(frame)
    return chunks


def _read(
    origin: Origin,
    version: Version,
    manifest: Manifest,
    wanted: Sequence[WantedFrame],
    cancel: threading.Event | None,
) -> list[Frame]:
    def use(path: StoragePath) -> list[Frame]:
        found = path.read_ranges([(one.offset, one.nbytes) for one in wanted], cancel=cancel)
        return [
            check_frame(one, check_hash(one, data, path.url), manifest, path.url)
            for one, data in zip(wanted, found, strict=True)
        ]

    name = manifest.objects[wanted[0].object].name
    try:
        return origin.copies(version, name).read(use, cancel)
    except NotFound as error:
        raise version.missing(error) from error


def _check_digest(version: Version, manifest: Manifest, memory: Mapping[str, HostArray]) -> None:
    names = {**memory, **{alias: memory[name] for alias, name in manifest.aliases.items()}}
    found = weights_digest(names, threads=os.cpu_count() or 1)
    if found != version.digest:
        raise IntegrityError(
            f"the deltas lead to weights of digest {found}, and version {version.number} has "
            f"{version.digest}",
            url=version.object(version.record.manifest.name).url,
        )


def _sync(files: Sequence[PlannedFile], directory: Path) -> None:
    """All of it on the disk."""
    for file in files:
        path = directory / file.name
        with OsErrors(str(path)), path.open("rb+") as opened:
            os.fsync(opened.fileno())
