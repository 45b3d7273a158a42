"""What a root holds that nothing needs, found by names and the log; and deleting it in a safe order."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import DirectoryNotEmpty, IntegrityError, NotFound, WStoreError
from wstore.progress import Tally
from wstore.stores.base import Directories
from wstore.stores.probing import left_probes
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Open
from wstore_transports.versions.manifest import read_manifest
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import read_document
from wstore_transports.versions.standing import in_flight

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_transports.versions.documents import Standing, Weights
    from wstore_transports.versions.place import Place

_log = logging.getLogger(__name__)

PROBE_S = 24 * 3600.0
"""How old a probe of the store is that was left behind; one that is under way takes seconds."""


@dataclass(frozen=True, slots=True)
class Going:
    """An object to delete: its name relative to the root, its bytes, and why."""

    name: str
    size: int
    reason: str


def find_garbage(
    place: Place,
    alive: Mapping[int, Weights],
    standing: Standing,
    *,
    protected: Mapping[int, Weights],
) -> list[Going]:
    """Every object below `data/` whose attempt is over and that nothing needs, sorted by name.

    The listing only says what exists; whether it goes, its name and the log decide. An object that
    the listing lacks stays until the next time. Names that are not an attempt's are never touched.

    Args:
        alive: the versions that stay, with their manifests.
        protected: versions that the log let go and a lease still protects; what is left of them stays.

    Raises:
        IntegrityError: a manifest of `alive` is missing or damaged, so nothing can be said.
    """
    needed: set[str] = set()
    for names in in_parallel(lambda record: _listed_by(place, record), list(alive.values())):
        needed |= names
    for names in in_parallel(lambda r: _left_of(place, r), list(protected.values())):
        needed |= names
    attempts = {record.attempt for record in (*alive.values(), *protected.values())}
    found: list[Going] = []
    for name, size in _objects(place):
        attempt = layout.attempt_of(name)
        if attempt is None or attempt.attempt in attempts or name in needed:
            continue
        if in_flight(standing, epoch=attempt.epoch, wanted=attempt.wanted):
            continue
        found.append(Going(name, size, "no version that stays lists it, and its attempt is over"))
    return found


def delete(place: Place, garbage: Collection[Going], *, progress: Progress | None) -> None:
    """Delete: manifests first, so that who comes late fails at once; then the objects; then the rest.

    Raises the store's first error after trying all; what is left is found again next time.
    """
    phases: dict[int, list[str]] = {0: [], 1: [], 2: []}
    directories: set[str] = set()
    for going in garbage:
        last = going.name.rpartition("/")[2]
        phases[0 if last == layout.MANIFEST else 2 if last == layout.OPEN else 1].append(going.name)
        directories.add(going.name.rpartition("/")[0])
    tally = Tally(progress, len(garbage))

    def remove(name: str) -> None:
        place.object(name).remove(missing_ok=True)
        tally.add(1)

    for names in phases.values():
        in_parallel(remove, names)
    for directory in sorted(directories):
        _remove_empty(place.object(directory))


@dataclass(frozen=True, slots=True)
class Sweep:
    """Removes the small documents that have served: dead leases, old sessions' counters, announcements,
    probes of the store that were killed.

    Failures are logged: none of these documents is ever relied on.
    """

    place: Place
    standing: Standing

    def run(self, dead_leases: Iterable[StoragePath]) -> None:
        """Remove them."""
        try:
            for path in (*dead_leases, *self._sessions(), *self._probes()):
                path.remove(missing_ok=True)
        except WStoreError as error:
            _log.warning("not swept, next time: %s", error)

    def _sessions(self) -> Iterator[StoragePath]:
        directory = self.place.path / layout.SESSIONS
        passed = self._passed_index()
        try:
            paths = list(directory.iterdir())
        except NotFound:
            return
        for path in paths:
            parsed = layout.parse_session(path.name)
            if parsed is None:
                continue
            epoch, index = parsed
            # A session that began after the log was read is nobody's to tidy yet.
            served = epoch == self.standing.epoch and index is not None and index <= passed
            if epoch < self.standing.epoch or served:
                yield path

    def _probes(self) -> Iterator[StoragePath]:
        root = self.place.path
        prefix = f"{root.key}/" if root.key else ""
        for key in left_probes(root.store, prefix, older_than_s=PROBE_S):
            yield root / key[len(prefix) :]

    def _passed_index(self) -> int:
        """Up to which attempt of the present session every rank has come: all ranks took part in a
        committed one."""
        latest = self.standing.latest
        if latest <= self.standing.epoch:
            return 0
        record = self.place.log.weights(latest)
        path = self.place.object(f"{record.manifest.name.rpartition('/')[0]}/{layout.OPEN}")
        return read_document(Open, path, root=self.place.root_id).index


def _listed_by(place: Place, record: Weights) -> set[str]:
    try:
        return {ref.name for ref in read_manifest(place, record).objects}
    except NotFound as error:
        path = place.object(record.manifest.name)
        raise IntegrityError(
            f"the manifest of version {record.number} is missing, though the log keeps that version; "
            "nothing is deleted",
            url=path.url,
        ) from error


def _left_of(place: Place, record: Weights) -> set[str]:
    """What a version that the log let go lists; nothing when its manifest is gone already."""
    try:
        return {ref.name for ref in read_manifest(place, record).objects}
    except NotFound:
        return set()


def _objects(place: Place) -> Iterator[tuple[str, int]]:
    data = place.path / layout.DATA
    prefix = data.key + "/"
    start = len(data.key) - len(layout.DATA)
    for entry in data.store.list(prefix, recursive=True):
        if entry.info is not None:
            yield entry.key[start:], entry.info.size


def _remove_empty(directory: StoragePath) -> None:
    directories = directory.store.feature(Directories)
    if directories is None:
        return
    try:
        directories.rmdir(directory.key)
    except (NotFound, DirectoryNotEmpty):
        return
