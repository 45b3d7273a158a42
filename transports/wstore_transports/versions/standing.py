"""What the log means; pure. `step` is the one reducer, `LogState` its result over many records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from wstore_transports.versions.documents import (
    Abort,
    Anchor,
    End,
    Fence,
    Floor,
    Record,
    Standing,
    Weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

START = Standing()
"""Where an empty log stands."""


class BrokenLog(ValueError):
    """A record that must not follow what is before it; says which field and why."""


def step(before: Standing, record: Record) -> Standing:
    """Where the log stands after `record`. The record's own `after` is not looked at.

    Raises:
        BrokenLog: no publisher that keeps the rules would have appended this record here.
    """
    number = record.number
    match record:
        case Weights():
            _same_epoch(before, record.epoch)
            if (record.kind == "full") != (record.base == 0):
                raise BrokenLog(f"field `base` is {record.base} in a {record.kind} version")
            if max((record.base, *record.refs)) > before.latest:
                raise BrokenLog("fields `base` and `refs` may only name earlier versions")
            after = msgspec.structs.replace(before, latest=number, finished=number)
            if record.kind == "delta":
                return after
            return _anchored(after, number, record)
        case Anchor():
            _same_epoch(before, record.epoch)
            if not before.anchor < record.version <= before.latest:
                raise BrokenLog(
                    f"field `version` is {record.version}, outside ({before.anchor}, {before.latest}]"
                )
            return _anchored(before, record.version, record)
        case Abort():
            _same_epoch(before, record.epoch)
            return msgspec.structs.replace(before, finished=number)
        case Fence():
            return msgspec.structs.replace(before, epoch=number, finished=number, ended=False)
        case Floor():
            _floor_fits(before, record)
            return msgspec.structs.replace(before, floor=record.floor, floored_at=number)
        case End():
            _same_epoch(before, record.epoch)
            return msgspec.structs.replace(before, ended=True)


def _anchored(before: Standing, version: int, record: Record) -> Standing:
    return msgspec.structs.replace(
        before, anchor=version, anchored_at=record.number, anchors=before.anchors + 1
    )


def _same_epoch(before: Standing, epoch: int) -> None:
    if epoch != before.epoch or epoch == 0:
        raise BrokenLog(f"field `epoch` is {epoch} where {before.epoch} is the publisher's")
    if before.ended:
        raise BrokenLog(f"the publisher of field `epoch` {epoch} had ended")


def _floor_fits(before: Standing, record: Floor) -> None:
    if not before.floor <= record.floor <= before.latest:
        raise BrokenLog(
            f"field `floor` is {record.floor}, outside [{before.floor}, {before.latest}]"
        )
    for name, numbers in (("keep", record.keep), ("anchors", record.anchors)):
        if sorted(set(numbers)) != numbers or (numbers and numbers[-1] >= record.floor):
            raise BrokenLog(f"field `{name}` is not ascending below the floor")


@dataclass(frozen=True, slots=True)
class LogState:
    """The versions that are alive, by number ascending, and where the log stands.

    Attributes:
        number: of the newest record that is taken into account; 0 for an empty log.
        standing: after that record.
        versions: alive ones only.
        anchors: by version, the anchor records of those.
    """

    number: int
    standing: Standing
    versions: Mapping[int, Weights]
    anchors: Mapping[int, Anchor]

    def anchor(self, version: int) -> Weights | Anchor | None:
        """The record that says where the whole weights of a version alive are; None when nowhere."""
        record = self.versions[version]
        return record if record.kind == "full" else self.anchors.get(version)


EMPTY = LogState(0, START, {}, {})


def replay(state: LogState, records: Iterable[Record]) -> LogState:
    """`state` with the records that come next applied, in order; `state` itself stays as it was.

    Raises:
        BrokenLog: a gap, or a record whose `after` is not what `step` gives.
    """
    number, standing = state.number, state.standing
    versions, anchors = dict(state.versions), dict(state.anchors)
    for record in records:
        if record.number != number + 1:
            raise BrokenLog(f"field `number` is {record.number} where {number + 1} comes next")
        standing = checked_step(standing, record)
        number = record.number
        if isinstance(record, Weights):
            versions[number] = record
        elif isinstance(record, Anchor) and record.version in versions:
            anchors[record.version] = record
        elif isinstance(record, Floor):
            stay = set(record.keep)
            versions = {n: r for n, r in versions.items() if n >= record.floor or n in stay}
            anchors = {n: r for n, r in anchors.items() if n in versions}
    return LogState(number, standing, versions, anchors)


def checked_step(before: Standing, record: Record) -> Standing:
    """`step`, and the record must itself say the same. Raises BrokenLog."""
    after = step(before, record)
    if after != record.after:
        raise BrokenLog(f"field `after` is {record.after} where it must be {after}")
    return after


def outcome_of(
    records: Iterable[Record], attempt: str, epoch: int
) -> Weights | Abort | Fence | None:
    """How an attempt ended, given the records from the number that it wanted on.

    A fence of a later epoch before any record of the attempt ends it too. None: nothing says so yet.
    """
    for record in records:
        match record:
            case Weights() | Abort() if record.attempt == attempt:
                return record
            case Fence() if record.number > epoch:
                return record
            case _:
                pass
    return None


def in_flight(standing: Standing, *, epoch: int, wanted: int) -> bool:
    """Whether an attempt may still be committed, judged by its name alone.

    A session has one attempt at a time and opens the next only when the log shows how the last one
    ended. So an attempt of an earlier epoch is over, and so is one that wanted a number up to that of
    the session's newest weights or abort record. What is over stays over. An attempt of a later epoch
    is of a session that began after the log was read for `standing`, so nothing is known of it.
    """
    if epoch > standing.epoch:
        return True
    return epoch == standing.epoch and not standing.ended and wanted > standing.finished
