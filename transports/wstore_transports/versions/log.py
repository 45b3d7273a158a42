"""The log: gap-free records, each made by create-if-absent, never changed, never deleted.

Because a number that was taken stays taken, a publisher that slept for a day cannot create a record
that others have passed, and the newest record can be found by bisection: no listing is ever needed.
"""

from __future__ import annotations

import itertools
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from wstore.errors import IntegrityError, NotFound
from wstore.stores.forking import renew_after_fork
from wstore_transports.errors import NoVersion, RecordMissing, RootError, VersionGone
from wstore_transports.versions import layout, standing
from wstore_transports.versions.create import create
from wstore_transports.versions.documents import (
    Anchor,
    Floor,
    Record,
    RecordBase,
    Standing,
    Weights,
)
from wstore_transports.versions.head import HeadHint
from wstore_transports.versions.lag import patiently
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import hash_of, read_capped, seal, unseal_record
from wstore_transports.versions.standing import BrokenLog, LogState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore.path import StoragePath

R = TypeVar("R", bound=Record)

_log = logging.getLogger(__name__)

NO_RECORD = "0" * 32
"""What record 1 carries as the hash of the record before it."""

_SEQUENTIAL = 3  # records read one by one before the search gallops: the usual lag is none or one
_CACHED = 64  # records kept; the newest few are asked for again and again
_CHUNK = 256  # records a replay reads at a time: bounds what it holds


@dataclass(frozen=True, slots=True)
class Tip:
    """The newest known record's number, the hash of its bytes, and where the log stands after it."""

    number: int = 0
    hash: str = NO_RECORD
    standing: Standing = standing.START


def stand(tip: Tip, record: R) -> R:
    """`record`, made for the place after `tip`, with its `after` filled in.

    Raises:
        RootError: the log's rules forbid it there.
    """
    try:
        after = standing.step(tip.standing, record)
    except BrokenLog as error:
        raise RootError(f"this may not follow log record {tip.number}: {error}") from error
    return msgspec.structs.replace(record, after=after)


class Log:
    """Reads and extends one root's log. Safe from any thread, and in a forked child; calls are serialised.

    What it knows only grows; every `refresh` costs one request when there is nothing new.
    """

    def __init__(self, root: StoragePath, root_id: str) -> None:
        self._root = root
        self._root_id = root_id
        self.after_fork()
        renew_after_fork(self)
        self._tip: Tip | None = None
        self._state = standing.EMPTY
        self._kept: tuple[int, frozenset[int]] = (0, frozenset())
        self._cache: dict[int, tuple[Record, str]] = {}
        self._hint = HeadHint(root, root_id)

    def after_fork(self) -> None:
        """Fresh locks: the child has not the threads that may have held these."""
        self._lock = threading.RLock()
        self._cache_lock = threading.Lock()  # its own: records are read by workers of a locked call

    # Reading

    @property
    def known(self) -> Tip:
        """The newest record as last seen; reads the log only when nothing was read before."""
        with self._lock:
            return self._tip or self.refresh()

    def refresh(self) -> Tip:
        """Look for newer records. A few requests however long the log is: see `docs/format.md`.

        Raises:
            IntegrityError: a record that was edited, cut or swapped, or that breaks the rules.
            NewerFormat: a record of a later version of this package.
        """
        with self._lock:
            tip = self._tip or self._start()
            self._tip = self._advance(tip)
            return self._tip

    def read(self, number: int) -> Record:
        """Record `number`.

        Raises:
            NotFound: as far as it was read, the log does not reach it.
            RecordMissing: the log goes on after it.
            Else as `refresh`.
        """
        return self._read_all([number])[0][0]

    def records(self, first: int, last: int) -> list[Record]:
        """Records [first, last], read in parallel, with the chain of hashes among them checked.

        Raises:
            NotFound: as far as it was read, the log does not reach `last`.
            RecordMissing: the log goes on after one that is not there.
            IntegrityError: as `refresh`, and naming a record that does not follow the one before.
        """
        found = self._read_all(range(first, last + 1))
        for (_, before), (record, _) in itertools.pairwise(found):
            if record.prev != before:
                raise self._broken(
                    record.number, "field `prev` is not the hash of the record before"
                )
        return [record for record, _ in found]

    def state(self) -> LogState:
        """All that is alive now. Reads each record since the floor once in the life of this object."""
        with self._lock:
            return self.state_at(self.refresh())

    def state_at(self, tip: Tip) -> LogState:
        """What is alive with `tip` as the newest record: for a draft of `append`, called with that."""
        with self._lock:
            state = self._state
            if tip.standing.floored_at > state.number:
                state = self._from_floor(tip)
            while state.number < tip.number:
                last = min(state.number + _CHUNK, tip.number)
                state = self._replay(state, self.records(state.number + 1, last))
            self._state = state
            return state

    def require_head(self) -> None:
        """Check that the log reaches the record that the head names: the head was written after it.

        Raises:
            RecordMissing: it does not, or has another record of that number.
        """
        head = self._hint.read()
        if head is None:
            return
        tip = self.refresh()
        found = self._probe(head.number)
        if found is not None and found.hash == head.hash and head.number <= tip.number:
            return
        number = head.number if found is None else min(head.number, tip.number + 1)
        what = "is missing" if number > tip.number else "is another than the head names"
        raise RecordMissing(
            f"this log record {what}: the log ends at {tip.number}, and {layout.HEAD} of this root names "
            f"record {head.number}, so records were lost. Bring them back from a copy of the root; to "
            f"go on without them, delete {layout.HEAD}",
            url=self._path(number).url,
        )

    def weights(self, number: int) -> Weights:
        """The record of version `number`, when it is alive as far as this log has read.

        Raises:
            VersionGone: a floor let it go.
            NoVersion: no such version. RecordMissing: its record was lost.
        """
        url = self._path(max(number, 1)).url
        at = self.known.standing
        if not 1 <= number <= at.latest:
            raise NoVersion(f"no version {number}; the newest is {at.latest}", url=self._root.url)
        if not self._stays(number, at):
            raise VersionGone(
                f"version {number} is below the floor {at.floor}; the newest is {at.latest}",
                url=url,
            )
        record = self.read(number)
        if not isinstance(record, Weights):
            raise NoVersion(f"log record {number} is not a version", url=url)
        return record

    def is_alive(self, number: int) -> bool:
        """Whether version `number` is there and no floor let it go, as far as this log has read."""
        try:
            self.weights(number)
        except (NoVersion, VersionGone):
            return False
        return True

    # Extending

    def append(self, draft: Callable[[Tip], R]) -> R:
        """Append the record that `draft` makes for the place after the newest one.

        When another writer takes the number first, its record is read and `draft` is called again; to
        give up it raises. When this returns, the record is in the log, durable as the store is.
        When this raises from the store, a later look at the log tells whether it is there.

        Raises:
            OutcomeUnknown: the answer was lost and the store could not be asked again.
            Whatever `draft` raises; the store's errors.
        """
        with self._lock:
            while True:
                tip = self.refresh()
                record = draft(tip)
                data = seal(record)
                if create(self._path(record.number), data):
                    self._tip = Tip(record.number, hash_of(data), record.after)
                    self._hint.announce(record.number, self._tip.hash)
                    return record
                _log.debug("log record %d was taken; trying the next", record.number)

    def flush_head(self, *, at_once: bool = False) -> None:
        """Write `head.json` when it is behind, and was not written for a second unless `at_once`.
        Never raises for what the store does: the head is a hint."""
        self._hint.flush(at_once=at_once)

    def base_fields(self, tip: Tip) -> tuple[str, int, str]:
        """(root, number, prev) of a record that comes after `tip`."""
        return self._root_id, tip.number + 1, tip.hash

    # Finding the newest record

    def _start(self) -> Tip:
        head = self._hint.read()
        if head is None:
            return Tip()
        found = self._probe(head.number)
        if found is None or found.hash != head.hash:
            _log.info("%s: the head does not match the log; searching", self._root.url)
            return Tip()
        return found

    def _advance(self, tip: Tip) -> Tip:
        """The newest record, given one that exists: one by one, then in doubling strides, then by
        bisection between what exists and what does not."""
        for _ in range(_SEQUENTIAL):
            after = self._probe(tip.number + 1, before=tip)
            if after is None:
                return tip
            tip = after
        stride = 2
        while (ahead := self._probe(tip.number + stride)) is not None:
            tip, stride = ahead, stride * 2
        missing = tip.number + stride
        while missing - tip.number > 1:
            middle = (tip.number + missing) // 2
            found = self._probe(middle)
            if found is None:
                missing = middle
            else:
                tip = found
        return tip

    def _probe(self, number: int, before: Tip | None = None) -> Tip | None:
        try:
            record, digest = self._read(number)
        except NotFound:
            return None
        if before is not None:
            if record.prev != before.hash:
                raise self._broken(number, "field `prev` is not the hash of the record before")
            try:
                standing.checked_step(before.standing, record)
            except BrokenLog as error:
                raise self._broken(number, str(error)) from error
        return Tip(number, digest, record.after)

    def _read_all(self, numbers: Sequence[int]) -> list[tuple[Record, str]]:
        """Records and their hashes, in parallel. What is missing gets time to appear, if others that
        were appended after it have been seen."""
        end = self._tip.number if self._tip else 0
        if max(numbers, default=0) > end:
            return in_parallel(self._read, numbers)
        try:
            return patiently(lambda: in_parallel(self._read, numbers), on=NotFound)
        except NotFound as error:
            raise RecordMissing(
                f"this log record is missing, though the log goes on to {end}: bring it back from a "
                "copy of the root",
                url=error.url,
            ) from error

    def _read(self, number: int) -> tuple[Record, str]:
        """The record and the hash of its bytes. Records never change, so the last few are kept."""
        with self._cache_lock:
            cached = self._cache.get(number)
        if cached is not None:
            return cached
        path = self._path(number)
        data = read_capped(path, RecordBase.max_bytes)
        record = unseal_record(data, url=path.url, root=self._root_id)
        if record.number != number:
            raise self._broken(number, f"field `number` is {record.number}")
        found = record, hash_of(data)
        with self._cache_lock:
            while len(self._cache) >= _CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[number] = found
        return found

    # Replaying

    def _from_floor(self, tip: Tip) -> LogState:
        """The state just before the floor's first version: what the floor record keeps from below."""
        at = tip.standing
        record = self._floor(at.floored_at)
        versions: dict[int, Weights] = {}
        for kept, _ in self._read_all(record.keep):
            if not isinstance(kept, Weights):
                raise self._broken(at.floored_at, f"field `keep` names {kept.number}, no version")
            versions[kept.number] = kept
        anchors: dict[int, Anchor] = {}
        for kept, _ in self._read_all(record.anchors):
            if not isinstance(kept, Anchor) or kept.version not in versions:
                raise self._broken(at.floored_at, f"field `anchors` names {kept.number}, of no use")
            anchors[kept.version] = kept
        below = at.floor - 1
        if below < 1:
            return LogState(0, standing.START, versions, anchors)
        return LogState(below, self.read(below).after, versions, anchors)

    def _replay(self, state: LogState, records: list[Record]) -> LogState:
        try:
            return standing.replay(state, records)
        except BrokenLog as error:
            raise self._broken(state.number + 1, str(error)) from error

    def _stays(self, number: int, at: Standing) -> bool:
        if number >= at.floor:
            return True
        if self._kept[0] != at.floored_at:
            self._kept = at.floored_at, frozenset(self._floor(at.floored_at).keep)
        return number in self._kept[1]

    def _floor(self, number: int) -> Floor:
        record = self.read(number)
        if not isinstance(record, Floor):
            raise self._broken(number, "not the floor record that a later record says it is")
        return record

    def _path(self, number: int) -> StoragePath:
        return self._root / layout.record_name(number)

    def _broken(self, number: int, why: str) -> IntegrityError:
        return IntegrityError(f"this log record breaks the log: {why}", url=self._path(number).url)
