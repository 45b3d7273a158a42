"""Letting versions go: the plan, as data, and the collection, in an order that is safe at every crash.

What can be deleted is found by what the log says about an attempt's *name*, never by age: objects of
attempts that are over and that no version still alive (or still leased) lists. See `docs/format.md`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Floor, Marker, Weights
from wstore_transports.versions.garbage import Going, Sweep, delete, find_garbage
from wstore_transports.versions.leases import LeaseWatch
from wstore_transports.versions.log import stand
from wstore_transports.versions.loss import require_whole
from wstore_transports.versions.mirror_mark import require_no_mirror
from wstore_transports.versions.retention import Fate, Retention, decide
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wstore.progress import Progress
    from wstore_transports.versions.documents import LeaseDocument
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.place import Place
    from wstore_transports.versions.root import Root

_log = logging.getLogger(__name__)

Leases = dict[str, "LeaseDocument"]


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a collection would do now.

    Attributes:
        versions: every version that is alive, and whether it stays.
        objects: what would be deleted once no living lease needs it.
    """

    versions: tuple[Fate, ...]
    objects: tuple[Going, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that would be freed."""
        return sum(going.size for going in self.objects)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection did.

    Attributes:
        floor: number of the floor record that it appended; None when no version had to go.
        versions: the fate of every version that was alive before.
        deleted: the objects that are gone now.
        leased: versions that the log has let go and that a living lease still protects: run again.
        joining: readers that leased everything all the while; then nothing was deleted: run again.
    """

    floor: int | None
    versions: tuple[Fate, ...]
    deleted: tuple[Going, ...]
    leased: tuple[int, ...] = ()
    joining: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes freed."""
        return sum(going.size for going in self.deleted)


def plan_gc(root: Root, retention: Retention) -> GcPlan:
    """What `collect` would do. Writes nothing.

    Raises:
        RecordMissing: the log has lost records. IntegrityError: a document that decides about deletion
            is damaged. IsAMirror: what goes there, its source decides.
    """
    place = root.place
    require_no_mirror(place.path)
    _require_same_root(place)
    require_whole(place)
    leases, _ = LeaseWatch(place).look()
    state = place.log.state()
    fates = decide(state, retention, _leased(leases))
    stays = {fate.number: state.versions[fate.number] for fate in fates if fate.stays}
    return GcPlan(tuple(fates), tuple(find_garbage(place, stays, state.standing, protected={})))


def collect(
    root: Root,
    retention: Retention,
    *,
    pause: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
) -> GcReport:
    """Let go of what `retention` does not keep, and delete what nothing needs.

    Appends a floor, waits one lease period, looks at the leases again, deletes; dead leases go too. When only leases keep
    a version, it first waits another period to tell the living from the dead. Two collections at once,
    and a collection beside a publisher and readers, are safe. May be killed at any point: the next one
    carries on.

    Args:
        pause: called with the seconds to wait; may raise to give up (nothing is half done).
        progress: is told how many objects are deleted, of how many.

    Raises:
        NotARoot, IntegrityError: the marker, a record or a manifest is damaged, or the log has lost
            records; nothing is deleted. IsAMirror: what goes there, its source decides.
    """
    place = root.place
    require_no_mirror(place.path)
    _require_same_root(place)
    require_whole(place)
    watch = LeaseWatch(place)
    leases, _ = watch.look()
    fates = decide(place.log.state(), retention, _leased(leases))
    if _only_leased(fates):
        pause(place.lease_s)
        leases, _ = watch.look()
    floor, fates = _append_floor(place, retention, leases)
    report = _delete_unneeded(place, watch, pause, progress)
    return replace(report, floor=floor, versions=tuple(fates))


def delete_gone(
    root: Root,
    *,
    pause: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
) -> GcReport:
    """Delete what the log has let go already; append nothing. For a mirror, whose floors are its source's.

    Waits for readers, and raises, as `collect`.
    """
    place = root.place
    _require_same_root(place)
    require_whole(place)
    watch = LeaseWatch(place)
    watch.look()
    return _delete_unneeded(place, watch, pause, progress)


def _delete_unneeded(
    place: Place,
    watch: LeaseWatch,
    pause: Callable[[float], None],
    progress: Progress | None,
) -> GcReport:
    """Delete, a lease period after the floor, what no version alive and no reader needs."""
    state = place.log.state()
    found = find_garbage(place, state.versions, state.standing, protected={})
    before, _ = watch.look()
    if found or before:  # a lease shows only after a wait whether it is dead
        pause(place.lease_s)
    after, dead = watch.look()
    _require_same_root(place)
    if not found:
        Sweep(place, state.standing).run(dead)
        return GcReport(None, (), ())
    joining = [
        lease.reader
        for name, lease in after.items()
        if lease.versions is None and name in before and before[name].versions is None
    ]
    if joining:
        return GcReport(None, (), (), joining=tuple(sorted(joining)))
    state = place.log.state()
    protected = _gone_but_leased(place, state.versions, before, after)
    garbage = find_garbage(place, state.versions, state.standing, protected=protected)
    # What became garbage during the wait, by another collection's floor, has not had its own wait: a
    # reader that came meanwhile may have chosen it before that floor. It goes next time.
    waited = {going.name for going in found}
    garbage = [going for going in garbage if going.name in waited]
    delete(place, garbage, progress=progress)
    Sweep(place, state.standing).run(dead)
    return GcReport(None, (), tuple(garbage), tuple(sorted(protected)))


def _append_floor(
    place: Place, retention: Retention, leases: Leases
) -> tuple[int | None, list[Fate]]:
    fates: list[Fate] = []

    def draft(tip: Tip) -> Floor:
        nonlocal fates
        state = place.log.state_at(tip)
        versions = state.versions
        fates = decide(state, retention, _leased(leases))
        going = [fate.number for fate in fates if not fate.stays]
        if not going:
            raise _NothingGoes
        above = min(number for number in versions if number > going[-1])
        floor = max(tip.standing.floor, above)
        keep = [fate.number for fate in fates if fate.stays and fate.number < floor]
        anchors = (state.anchors[number] for number in keep if number in state.anchors)
        root, number, prev = place.log.base_fields(tip)
        record = Floor(
            root=root,
            number=number,
            prev=prev,
            after=tip.standing,
            floor=floor,
            keep=keep,
            anchors=sorted(anchor.number for anchor in anchors if anchor.number < floor),
        )
        return stand(tip, record)

    try:
        return place.log.append(draft).number, fates
    except _NothingGoes:
        return None, fates


class _NothingGoes(Exception):
    """All versions stay, so there is no floor to append."""


def _leased(leases: Leases) -> set[int] | None:
    numbers: set[int] = set()
    for lease in leases.values():
        if lease.versions is None:
            return None
        numbers.update(lease.versions)
    return numbers


def _only_leased(fates: list[Fate]) -> bool:
    return any(fate.reason == "a reader leases it" for fate in fates)


def _gone_but_leased(
    place: Place, alive: Mapping[int, Weights], before: Leases, after: Leases
) -> dict[int, Weights]:
    """Versions that the log let go and that a living reader may still be reading, with their bases.

    A lease of everything that was not there right after the floor belongs to a reader that reads the
    log after the floor, and so cannot choose what the floor let go. One that was narrow then protects
    what it leased then.
    """
    numbers: set[int] = set()
    for name, lease in after.items():
        numbers.update(lease.versions or ())
        if lease.versions is None and name in before:
            numbers.update(before[name].versions or ())
    found: dict[int, Weights] = {}
    pending = [number for number in numbers if number not in alive]
    while pending:
        number = pending.pop()
        record = _weights(place, number)
        if record is None or number in found:
            continue
        found[number] = record
        if record.base and record.base not in alive:
            pending.append(record.base)
    return found


def _weights(place: Place, number: int) -> Weights | None:
    try:
        record = place.log.read(number)
    except NotFound:
        return None
    return record if isinstance(record, Weights) else None


def _require_same_root(place: Place) -> None:
    """Never delete below a place that is not (any more) the root that was opened."""
    path = place.path / layout.MARKER
    try:
        read_document(Marker, path, root=place.root_id)
    except NotFound as error:
        raise IntegrityError(
            "the root's marker is gone; nothing is deleted here", url=path.url
        ) from error
