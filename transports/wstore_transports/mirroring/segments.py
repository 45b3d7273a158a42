"""Where a copy of a log may stop so that its readers find what they look for; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore_transports.versions.documents import Anchor, Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_transports.versions.documents import Record
    from wstore_transports.versions.standing import LogState


@dataclass(frozen=True, slots=True)
class Segment:
    """Records that are appended in one go, once the objects that they name are there.

    Attributes:
        records: in order, none missing.
        content: those of them whose objects are copied: of versions that are alive at the source.
        passing: whether readers must not look between its records, as they name versions that are gone.
    """

    records: tuple[Record, ...]
    content: tuple[Weights | Anchor, ...]
    passing: bool


def segments(records: Sequence[Record], state: LogState) -> list[Segment]:
    """Cut the records that a copy lacks, up to the source's newest, into segments.

    After each the newest version can be read, by the records and objects that are there by then: it and
    what it builds on are alive at the source, down to whole weights. Versions that the source has let go
    lie before its newest floor, and so in the first segment, which takes that floor along.

    Args:
        state: of the source, as of the last of the records.
    """
    found: list[Segment] = []
    start = 0
    floored_at = state.standing.floored_at
    for index, record in enumerate(records):
        last = index == len(records) - 1
        if not last and (record.number < floored_at or not _readable(record, state)):
            continue
        found.append(_segment(records[start : index + 1], state))
        start = index + 1
    return found


def _segment(records: Sequence[Record], state: LogState) -> Segment:
    content = tuple(
        record
        for record in records
        if isinstance(record, Weights | Anchor) and _version(record) in state.versions
    )
    gone = any(
        isinstance(record, Weights) and record.number not in state.versions for record in records
    )
    return Segment(tuple(records), content, gone)


def _version(record: Weights | Anchor) -> int:
    return record.number if isinstance(record, Weights) else record.version


def _readable(end: Record, state: LogState) -> bool:
    """Whether the newest version can be read by who sees the log up to `end`."""
    number = end.after.latest
    while number:
        if number not in state.versions:
            return False
        whole = state.anchor(number)
        if whole is not None and whole.number <= end.number:
            return True
        number = state.versions[number].base
    return end.after.latest == 0
