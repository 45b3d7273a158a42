"""Re-reads everything that a version is made of: its own objects, and those of what it builds on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError
from wstore_codecs.digest import digest_block
from wstore_transports.checkpoint.snapshot import Snapshot
from wstore_transports.checkpoint.verify import VerifyReport, verify_snapshot
from wstore_transports.delta.route import find_route
from wstore_transports.delta.subscriber import Subscriber
from wstore_transports.examining.history import raw_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.progress import Progress
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest

BATCH_BYTES = 512 << 20
"""Bytes of tensors that are in memory together; a larger tensor is alone."""


@dataclass(slots=True)
class _Sum:
    """Progress over several snapshots."""

    progress: Progress | None
    before: int
    total: int

    def at(self, done: int, _: int | None) -> None:
        if self.progress is not None:
            self.progress(self.before + done, max(self.total, self.before + done))


def verify_version(
    version: Version, *, deep: bool, progress: Progress | None = None
) -> VerifyReport:
    """Check size and hash of every object on the way from the nearest whole weights to a version, and of
    the version's own; with `deep` also the digests of the values that they lead to.

    Goes on after a problem, so the report names all of them.

    Raises:
        VersionGone: what it builds on was let go. IntegrityError: a manifest is damaged.
    """
    snapshots = list(_snapshots(version))
    total = sum(ref.size for one in snapshots for ref in one.manifest.objects)
    problems: list[str] = []
    objects = before = 0
    plain = len(snapshots) == 1 and _is_flat(snapshots[0].manifest)
    for snapshot in snapshots:
        report = verify_snapshot(
            snapshot, deep=deep and plain, progress=_Sum(progress, before, total).at
        )
        before += report.nbytes
        objects += report.objects
        problems += report.problems
    if deep and not plain and not problems:
        problems += _check_values(version)
    tensors = len(snapshots[-1].manifest.tensors)
    return VerifyReport(objects, tensors, before, True, tuple(dict.fromkeys(problems)))


def _snapshots(version: Version) -> Iterator[Snapshot]:
    """What the version is made of, oldest first; its own last."""
    route = find_route(version, 0)
    seen = set()
    if route.whole is not None:
        whole = route.whole
        yield Snapshot(whole.version.whole(whole.anchor), version.place.path, whole.version)
        if whole.anchor == whole.version.record:
            seen.add(whole.version.number)
    for step in (*route.deltas, version):
        if step.number not in seen:
            seen.add(step.number)
            yield Snapshot(step.manifest(), version.place.path, step)


def _is_flat(manifest: Manifest) -> bool:
    return all(
        block.encoding == "flat" for tensor in manifest.tensors.values() for block in tensor.blocks
    )


def _check_values(version: Version) -> list[str]:
    """Load the version, some tensors at a time, and compare their digests. The manifest's own digests are
    proven to be the model's when it is read."""
    manifest = version.manifest()
    threads = os.cpu_count() or 1
    problems = []
    for names in batches(manifest):
        with Subscriber(version.place.path) as reader:
            try:
                arrays = reader.load(version.number, names)
            except IntegrityError as error:
                problems.append(str(error))
                continue
        for name in names:
            found = digest_block(arrays[name], name=name, threads=threads).hex
            if found != manifest.tensors[name].digest:
                url = version.object(version.record.manifest.name).url
                problems.append(
                    f"{url}: tensor {name!r}: its values have digest {found}, and the manifest says "
                    f"{manifest.tensors[name].digest}"
                )
    return problems


def batches(manifest: Manifest) -> Iterator[list[str]]:
    """The names of all tensors, in lists of what is in memory together."""
    names: list[str] = []
    size = 0
    for name, tensor in manifest.tensors.items():
        nbytes = raw_nbytes(tensor)
        if names and size + nbytes > BATCH_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += nbytes
    if names:
        yield names
