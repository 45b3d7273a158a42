"""Whether a log has lost records: what was written after a record proves that it was there.

The search for the newest record takes the first gap for the end. Where records were lost (a root that was
restored in part, a `log/` that was emptied) a publisher would take their numbers again and a collection
delete what they name. So both look here first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound
from wstore_transports.errors import RecordMissing
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Session
from wstore_transports.versions.lag import patiently
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from wstore_transports.versions.place import Place

BEYOND = 4
"""How many numbers after a gap are asked for."""


def require_whole(place: Place) -> None:
    """Refuse to append to, or to delete by, a log that does not reach what the root tells of.

    That is: the record in the head, the fence of the newest session, and a record just after a gap. A
    gap further back shows when the log is read. Costs a listing and a few small requests.

    Raises:
        RecordMissing: it names the record, or the document that tells of it. IntegrityError.
    """
    patiently(lambda: _look(place), on=RecordMissing)


def require_head(place: Place) -> None:
    """The same by the head alone, with one request: for readers, who need not be able to list.

    Raises:
        RecordMissing.
    """
    patiently(place.log.require_head, on=RecordMissing)


def _look(place: Place) -> None:
    epoch = _newest_session(place)  # before the log, which then reaches at least as far
    place.log.require_head()
    tip = place.log.refresh()
    if epoch > tip.standing.epoch and _is_session(place, epoch):
        name = layout.session_name(epoch)
        raise RecordMissing(
            f"this record began a session, as {name} tells, and it is missing: the log ends at "
            f"{tip.number}. Bring the log back from a copy; to go on without what is lost, delete {name}",
            url=(place.path / layout.record_name(epoch)).url,
        )
    numbers = range(tip.number + 2, tip.number + 2 + BEYOND)
    there = in_parallel(lambda number: _exists(place, number), numbers)
    if any(there):
        raise RecordMissing(
            f"this record is missing, though record {numbers[there.index(True)]} is there: bring it "
            "back from a copy of the root",
            url=(place.path / layout.record_name(tip.number + 1)).url,
        )


def _newest_session(place: Place) -> int:
    """The greatest epoch that a counter in `sessions/` is named for; 0 for none."""
    try:
        names = [path.name for path in (place.path / layout.SESSIONS).iterdir()]
    except NotFound:
        return 0
    parsed = [layout.parse_session(name) for name in names]
    return max((found[0] for found in parsed if found and found[1] is None), default=0)


def _is_session(place: Place, epoch: int) -> bool:
    """Whether that counter is one of this very root, and not something that is only named like it."""
    path = place.path / layout.session_name(epoch)
    try:
        return read_document(Session, path, root=place.root_id).epoch == epoch
    except (NotFound, IntegrityError):
        return False


def _exists(place: Place, number: int) -> bool:
    path = place.path / layout.record_name(number)
    try:
        path.store.stat(path.key)
    except NotFound:
        return False
    return True
