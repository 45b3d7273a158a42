"""One attempt at a version: what its ranks write, and how it ends.

Order of writes, which `docs/format.md` argues from: `open.json`; then each rank's objects; each rank's
done marker; the manifest; the log record. Every name is written by one rank, once.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from wstore.errors import IntegrityError, InvalidArgument, InvalidPath, NotFound, WStoreError
from wstore_transports.errors import AttemptAborted, Fenced, VersionGone
from wstore_transports.versions import layout
from wstore_transports.versions.documents import (
    Abort,
    Done,
    Fence,
    Manifest,
    ObjectRef,
    Open,
    RankAbort,
    Record,
    Tensor,
    Weights,
)
from wstore_transports.versions.gather import gather
from wstore_transports.versions.log import stand
from wstore_transports.versions.merge import Merged, check_tensors, merge
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.sealing import hash_of, seal
from wstore_transports.versions.standing import outcome_of
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from wstore.path import StoragePath
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.place import Place

_log = logging.getLogger(__name__)

Outcome = Weights | Abort | Fence
"""How an attempt ended: committed, aborted, or overtaken by a new publisher."""


class Attempt:
    """One attempt at a version, as one rank sees it. Made by `PublishSession.open_attempt`.

    Write own objects below `path`, call `done` with what they hold, then `commit`. As a context
    manager an exception inside aborts the attempt. Methods are for one thread at a time, but `path`
    and `object_name` for any.

    Attributes:
        opened: what `open.json` says: step, kind, base, ranks, inventory, shares.
        rank: this process's.
        name: of the attempt's directory, relative to the root.
        directory: where the attempt's objects live.
    """

    def __init__(
        self, place: Place, opened: Open, *, rank: int, previous: Version | None = None
    ) -> None:
        self._place = place
        self.name = layout.AttemptName(opened.run, opened.wanted, opened.attempt).directory
        self._scanned = opened.wanted - 1
        self._outcome: Outcome | None = None
        self._merged: Manifest | None = None
        self._done: Done | None = None
        self._previous = previous
        self._lock = threading.RLock()
        self.opened = opened
        self.rank = rank
        self.directory = place.path / self.name

    # Writing

    def path(self, name: str) -> StoragePath:
        """Where to write the own object `name`, which must start with the rank ("r00003.").

        Raises:
            InvalidArgument: another rank's name, or one of the protocol's own.
        """
        self.object_name(name)
        return self.directory / name

    def object_name(self, name: str) -> str:
        """The object's name relative to the root, for `ObjectRef.name`. Raises as `path`."""
        mine = name.startswith(layout.own_prefix(self.rank)) and "/" not in name
        marker = name in (
            layout.done_name(self.rank),
            layout.rank_abort_name(self.rank),
            layout.anchor_done_name(self.rank),
        )
        if not mine or marker:
            raise InvalidArgument(
                f"object {name!r}: rank {self.rank} writes names that start with "
                f"{layout.own_prefix(self.rank)!r} and are not its markers",
                url=self.directory.url,
            )
        return layout.check_object_name(f"{self.name}/{name}")

    def shared(self) -> Manifest | None:
        """The manifest of the version whose objects may be named instead of written again, if any.

        All ranks of an attempt get the same one. Raises IntegrityError, NewerFormat, VersionGone.
        """
        if self.opened.shares == 0:
            return None
        if self._previous is None or self._previous.number != self.opened.shares:
            self._previous = Version(self._place, self._place.log.weights(self.opened.shares))
        if self._previous.known is None:
            self._previous = replace(self._previous, known=self._previous.manifest())
        return self._previous.manifest()

    def done(
        self,
        objects: list[ObjectRef],
        tensors: dict[str, Tensor],
        *,
        aliases: dict[str, str] | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Say that all this rank contributes is written: its done marker, last of its objects.

        Args:
            objects: own ones, and shared ones exactly as `shared()` lists them.
            tensors: this rank's blocks of each tensor; `Block.object` indexes `objects`.
            aliases: further names of tensors (tied weights).
            metadata: for people and loaders; no key may differ between ranks.

        Raises:
            IntegrityError: an object, own or shared, is not there with its size. Nothing was written.
        """
        self._done = self.mark(
            layout.done_name(self.rank),
            Done(
                root=self._place.root_id,
                attempt=self.opened.attempt,
                rank=self.rank,
                objects=objects,
                tensors=tensors,
                aliases=aliases or {},
                metadata=metadata or {},
            ),
        )

    def mark(self, name: str, marker: Done) -> Done:
        """Write a marker once each object that it lists was seen there. Raises as `done`."""
        in_parallel(self._check_there, marker.objects)
        (self.directory / name).write_file(seal(marker))
        return marker

    def _check_there(self, ref: ObjectRef) -> None:
        path = self._place.object(ref.name)
        try:
            size = path.stat().size
        except NotFound as error:
            own = ref.name.startswith(self.name + "/")
            what = "was never written" if own else "of an earlier version is missing"
            raise IntegrityError(f"this object {what}", url=path.url) from error
        if size != ref.size:
            raise IntegrityError(f"this object has {size} bytes of {ref.size}", url=path.url)

    # Ending

    @property
    def committed(self) -> Version | None:
        """The version that this attempt became, as far as this process has looked."""
        if not isinstance(self._outcome, Weights):
            return None
        return Version(self._place, self._outcome, self._merged)

    def outcome(self) -> Outcome | None:
        """How the attempt ended, from the log; None while nothing there says so."""
        with self._lock:
            self._look(self._place.log.refresh().number)
            return self._outcome

    def commit(self, *, timeout: float, cancel: threading.Event | None = None) -> Version:
        """Make the version: when this returns, the log shows it.

        Rank 0 waits for all done markers, checks that they make whole tensors, writes the manifest
        and appends the record. Other ranks wait until the log shows how the attempt ended. May be
        called again after an error that leaves it open (WaitTimeout, OutcomeUnknown).

        Args:
            timeout: seconds.

        Raises:
            AttemptAborted: names the rank that gave up, or what does not fit. In the log.
            Fenced: another publisher took over; nothing was committed.
            VersionGone: what the version builds on was let go.
            WaitTimeout, Cancelled: undecided; the next `open_attempt` learns it from the log.
        """
        poll = Poll(timeout, cancel, url=self.directory.url)
        if self.rank != 0:
            while poll.look(self.outcome) is None:
                poll.pause("rank 0 has neither committed nor aborted")
            return self._result()
        if self.outcome() is None:
            self._commit(poll)
        return self._result()

    def abort(self, reason: str) -> None:
        """Give up. Rank 0 appends an abort record, other ranks leave a marker for rank 0.

        Nothing happens when the attempt has ended. Raises the store's errors: then the next
        `open_attempt` ends it.
        """
        reason = reason[:2000]
        if self.rank != 0:
            marker = RankAbort(
                root=self._place.root_id,
                attempt=self.opened.attempt,
                rank=self.rank,
                reason=reason,
            )
            (self.directory / layout.rank_abort_name(self.rank)).write_file(seal(marker))
            return
        with self._lock:
            self._append(lambda tip: self._draft_abort(tip, reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, Fenced):
            return
        try:
            self.abort(f"{type(error).__name__}: {error}")
        except WStoreError as failure:
            _log.warning("%s: the abort was not written: %s", self.directory.url, failure)

    def _commit(self, poll: Poll) -> None:
        try:
            dones = gather(self.directory, self.opened, poll, self._check_open, own=self._done)
            shared = self.shared() if self._any_shared(dones) else None
            merged = merge(self.opened, dones, directory=self.name, shared=shared)
            if self.opened.kind == "delta":
                check_tensors(self._base(), merged.manifest)
        except (AttemptAborted, IntegrityError, InvalidArgument, InvalidPath) as error:
            self.abort(str(error))
            if isinstance(error, AttemptAborted):
                raise
            raise AttemptAborted(str(error), url=self.directory.url) from error
        data = seal(merged.manifest)
        (self.directory / layout.MANIFEST).write_file(data)
        ref = ObjectRef(name=f"{self.name}/{layout.MANIFEST}", size=len(data), hash=hash_of(data))
        self._merged = merged.manifest
        with self._lock:
            self._append(lambda tip: self._draft_weights(tip, merged, ref))

    def _base(self) -> Manifest:
        """The manifest of the version that this delta applies to."""
        previous = self._previous
        if previous is None or previous.number != self.opened.base:
            previous = Version(self._place, self._place.log.weights(self.opened.base))
        return previous.manifest()

    def _any_shared(self, dones: list[Done]) -> bool:
        own = self.name + "/"
        return any(not ref.name.startswith(own) for done in dones for ref in done.objects)

    def _append(self, draft: Callable[[Tip], Record]) -> None:
        try:
            self._place.log.append(draft)
        except _Ended:
            return

    def _check_open(self) -> None:
        outcome = self.outcome()
        if outcome is not None:
            self._result()

    def _look(self, upto: int) -> None:
        """Learn from the records up to `upto` whether the attempt has ended."""
        if self._outcome is None and upto > self._scanned:
            records = self._place.log.records(self._scanned + 1, upto)
            self._outcome = outcome_of(records, self.opened.attempt, self.opened.epoch)
            self._scanned = upto

    def _result(self) -> Version:
        match self.outcome():
            case Weights() as record:
                return Version(self._place, record, self._merged)
            case Abort() as record:
                raise AttemptAborted(record.reason, url=self.directory.url)
            case Fence() as record:
                raise Fenced(
                    f"log record {record.number} made run {record.run!r} the publisher; "
                    "this session is over",
                    url=self._place.path.url,
                )
            case None:
                raise AssertionError("an append returned and the log does not show it")

    # Records

    def _draft_weights(self, tip: Tip, merged: Merged, manifest: ObjectRef) -> Record:
        self._require_open(tip)
        opened, log = self.opened, self._place.log
        refs = [opened.shares] if merged.shares else []
        for number in {*refs, opened.base} - {0}:
            if not log.is_alive(number):
                raise VersionGone(
                    f"version {number}, which this attempt builds on, was let go by retention",
                    url=self.directory.url,
                )
        root, number, prev = log.base_fields(tip)
        record = Weights(
            root=root,
            number=number,
            prev=prev,
            after=tip.standing,
            run=opened.run,
            attempt=opened.attempt,
            epoch=opened.epoch,
            step=opened.step,
            kind=opened.kind,
            base=opened.base,
            refs=refs,
            digest=merged.manifest.digest,
            manifest=manifest,
            nbytes=sum(ref.size for ref in merged.manifest.objects),
        )
        return stand(tip, record)

    def _draft_abort(self, tip: Tip, reason: str) -> Record:
        self._require_open(tip)
        root, number, prev = self._place.log.base_fields(tip)
        opened = self.opened
        record = Abort(
            root=root,
            number=number,
            prev=prev,
            after=tip.standing,
            attempt=opened.attempt,
            epoch=opened.epoch,
            reason=reason,
        )
        return stand(tip, record)

    def _require_open(self, tip: Tip) -> None:
        self._look(tip.number)
        if self._outcome is not None:
            raise _Ended


class _Ended(Exception):
    """The log shows already how the attempt ended."""
