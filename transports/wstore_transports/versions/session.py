"""A publishing session: the right to append versions, held by one start of one trainer."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat, NotFound
from wstore_transports.errors import Fenced, RootError, VersionGone
from wstore_transports.versions import layout
from wstore_transports.versions.attempt import Attempt
from wstore_transports.versions.documents import (
    MAX_STEP,
    Abort,
    Announcement,
    End,
    Fence,
    Open,
    Session,
)
from wstore_transports.versions.heartbeat import Heartbeat, OverwritePace
from wstore_transports.versions.log import stand
from wstore_transports.versions.loss import require_whole
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.sealing import read_document, seal
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    import threading
    from types import TracebackType

    from wstore_transports.versions.attempt import Outcome
    from wstore_transports.versions.documents import Kind, Record, Spec
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.place import Place

_log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""Seconds between two movements of a session's counter."""


class PublishSession:
    """The publisher of a root, as one rank sees it; made by `Root.begin_session` or `join_session`.

    Rank 0 begins it with a fence record, whose number is the session's epoch: from then on no older
    session can commit. The other ranks find it by `launch`, and each attempt by its announcement, so
    the ranks need no collective. All ranks open the same attempts in the same order.

    Attributes:
        epoch: the number of the session's fence record.
        rank, ranks: this process's rank, and how many write each version.
        last: how the newest attempt that this rank took part in ended; None before the first, and
            while it is undecided.
    """

    def __init__(self, place: Place, fence: Fence, *, rank: int, interval_s: float) -> None:
        self._place = place
        self._fence = fence
        self._interval_s = interval_s
        self._index = 0
        self._current: Attempt | None = None
        self._previous: Version | None = None
        self._counter = 0
        self._pace = OverwritePace(place.path)
        self._heartbeat: Heartbeat | None = None
        self.epoch = fence.number
        self.rank = rank
        self.ranks = fence.ranks
        self.last: Outcome | None = None
        self._settled: tuple[Attempt, Outcome] | None = None
        if rank == 0:
            self._beat()
            self._heartbeat = Heartbeat(
                self._beat, interval_s=interval_s, name=f"wstore-session-{self.epoch}"
            )

    @classmethod
    def begin(
        cls,
        place: Place,
        run: str,
        *,
        ranks: int = 1,
        launch: str = "",
        interval_s: float = INTERVAL_S,
    ) -> PublishSession:
        """Take the root over: rank 0's side. Every older session is fenced when this returns.

        Raises:
            InvalidArgument: a bad name; several ranks without a `launch`.
            RecordMissing: the log has lost records; their numbers must not be taken again.
        """
        layout.check_name(run, "run")
        if ranks > 1 and not launch:
            raise InvalidArgument(
                "several ranks need `launch`: a text that all of them share and that is new for every "
                "start of the job, or a rank could join the session of the start before"
            )
        require_whole(place)
        token = secrets.token_hex(16)

        def draft(tip: Tip) -> Fence:
            root, number, prev = place.log.base_fields(tip)
            fence = Fence(
                root=root,
                number=number,
                prev=prev,
                after=tip.standing,
                run=run,
                session=token,
                launch=launch,
                ranks=ranks,
            )
            return stand(tip, fence)

        return cls(place, place.log.append(draft), rank=0, interval_s=interval_s)

    @classmethod
    def join(
        cls,
        place: Place,
        run: str,
        *,
        rank: int,
        ranks: int,
        launch: str,
        timeout: float,
        cancel: threading.Event | None = None,
    ) -> PublishSession:
        """Join the session that rank 0 of this `launch` begins; waits for it.

        Raises:
            InvalidArgument: rank 0 has another number of ranks, or another run.
            WaitTimeout, Cancelled.
        """
        layout.check_name(run, "run")
        if not launch or not 0 < rank < ranks:
            raise InvalidArgument(f"rank {rank} of {ranks} cannot join launch {launch!r}")
        poll = Poll(timeout, cancel, url=place.path.url)
        while True:
            fence = poll.look(partial(_present_fence, place))
            if isinstance(fence, Fence) and fence.launch == launch:
                break
            poll.pause(f"rank 0 of launch {launch!r} has not begun a session")
        if (fence.run, fence.ranks) != (run, ranks):
            raise InvalidArgument(
                f"rank 0 publishes run {fence.run!r} from {fence.ranks} ranks, "
                f"this is rank {rank} of {ranks} of run {run!r}",
                url=place.path.url,
            )
        return cls(place, fence, rank=rank, interval_s=INTERVAL_S)

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._fence.run

    def open_attempt(
        self,
        step: int,
        *,
        kind: Kind | None = "full",
        base: int = 0,
        inventory: dict[str, Spec] | None = None,
        anchor: int = 0,
        cuts: dict[str, list[list[int]]] | None = None,
        timeout: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> Attempt:
        """Open the next attempt, the same on all ranks, once the log shows how the last one ended.

        Before it returns, `last` holds that outcome. Rank 0 ends an attempt that is still open by
        appending an abort; the record that takes its place in the log settles also a commit whose
        answer was lost. Then it writes `open.json` and announces it; other ranks wait for that.

        Args:
            step: the trainer's label, within 2^53 of 0.
            kind, base: a delta names the version that it applies to. Ranks above 0 may say None: what
                rank 0 opened.
            inventory: what the version must hold, rank 0 only; None: what the ranks declare together.
            anchor: `base` when the ranks shall write whole weights of it from now on, rank 0 only.
            cuts: positions that no block reaches across from that anchor on, rank 0 only.
            timeout: seconds that another rank than 0 waits for rank 0.

        Raises:
            Fenced: another publisher took over. RootError: the session has ended.
            InvalidArgument: a step out of range; rank 0 opened another step, kind or base.
            WaitTimeout, Cancelled.
        """
        if abs(step) > MAX_STEP:
            raise InvalidArgument(f"step {step} is out of range: at most 2^53 either way")
        if self.rank != 0:
            return self._follow(step, kind, base, timeout, cancel)
        if kind is None:
            raise InvalidArgument("rank 0 says which kind of version it opens")
        self._settle()
        tip = self._require_live()
        opened = Open(
            root=self._place.root_id,
            run=self.run,
            attempt=layout.new_attempt(self.epoch),
            epoch=self.epoch,
            wanted=tip.number + 1,
            index=self._index + 1,
            step=step,
            kind=kind,
            base=base,
            shares=self._sharable(tip.standing.latest) if kind == "full" else 0,
            ranks=self.ranks,
            inventory=inventory,
            anchor=anchor,
            cuts=cuts or {},
        )
        seal(opened)  # what readers would refuse is refused here, where nothing has begun yet
        self._index += 1
        self._current = Attempt(self._place, opened, rank=0, previous=self._previous)
        self._announce(self._current)
        if self._heartbeat is not None:
            self._heartbeat.soon(self._pace.remaining_s)
        return self._current

    def settle(
        self, *, timeout: float, cancel: threading.Event | None = None
    ) -> tuple[Attempt, Outcome] | None:
        """The attempt that this rank took part in last, and how it ended; None before the first.

        Rank 0 ends it by an abort record where the log does not show its end yet; the other ranks wait
        for that. What `open_attempt` does first, for those who must know before they open the next.

        Raises:
            Fenced: another publisher took over before the attempt ended. WaitTimeout, Cancelled.
        """
        attempt = self._current
        if self.rank == 0:
            self._settle()
        if attempt is None:
            return self._settled
        poll = Poll(timeout, cancel, url=self._place.path.url)
        while (outcome := poll.look(attempt.outcome)) is None:
            poll.pause("rank 0 has not ended the last attempt")
        self._settled = attempt, outcome
        return self._settled

    def end(self) -> None:
        """Say in the log that no further version will come, and close. Rank 0; a no-op elsewhere."""
        if self.rank == 0:
            self._settle()
            self._require_live()
            self._place.log.append(self._draft_end)
        self.close()

    def close(self) -> None:
        """Stop the counter: to waiting readers the publisher is then dead after a while. Idempotent."""
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._place.log.flush_head(at_once=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Rank 0

    def _settle(self) -> None:
        """End the attempt that is open still, and learn how it ended."""
        if self._current is None:
            return
        if self._current.outcome() is None:
            self._announce(self._current)  # a rank that waits for it must find that it ended
            self._current.abort("the publisher went on without it")
        self.last = self._current.outcome()
        if self.last is not None:
            self._settled = self._current, self.last
        self._previous = self._current.committed or self._previous
        self._current = None

    def _sharable(self, latest: int) -> int:
        """`latest` when its manifest can be read, else 0: sharing only saves bytes, so a version that
        was damaged must not stop those that come after it."""
        previous = self._previous
        if latest == 0:
            return 0
        if previous is None or previous.number != latest:
            previous = Version(self._place, self._place.log.weights(latest))
        try:
            self._previous = replace(previous, known=previous.manifest())
        except (IntegrityError, NewerFormat, VersionGone) as error:
            _log.warning("nothing is shared with version %d, all is written: %s", latest, error)
            return 0
        return latest

    def _announce(self, attempt: Attempt) -> None:
        """Write `open.json`, then tell the other ranks. May be repeated: the bytes are the same."""
        opened = attempt.opened
        (attempt.directory / layout.OPEN).write_file(seal(opened))
        if self.ranks == 1:
            return
        name = layout.AttemptName(opened.run, opened.wanted, opened.attempt)
        announcement = Announcement(
            root=self._place.root_id,
            epoch=self.epoch,
            index=opened.index,
            directory=name.directory,
        )
        path = self._place.path / layout.announcement_name(self.epoch, opened.index)
        path.write_file(seal(announcement))

    def _require_live(self) -> Tip:
        tip = self._place.log.refresh()
        if tip.standing.epoch != self.epoch:
            raise Fenced(
                f"log record {tip.standing.epoch} began another session; this one ({self.epoch}) is over",
                url=self._place.path.url,
            )
        if tip.standing.ended:
            raise RootError("this session has ended; begin a new one", url=self._place.path.url)
        return tip

    def _draft_end(self, tip: Tip) -> End:
        self._require_live()
        root, number, prev = self._place.log.base_fields(tip)
        end = End(root=root, number=number, prev=prev, after=tip.standing, epoch=self.epoch)
        return stand(tip, end)

    def _beat(self) -> None:
        self._counter += 1
        current = self._current
        document = Session(
            root=self._place.root_id,
            epoch=self.epoch,
            run=self.run,
            counter=self._counter,
            interval_s=self._interval_s,
            attempt="" if current is None else current.name,
        )
        with self._pace:
            (self._place.path / layout.session_name(self.epoch)).write_file(seal(document))
        self._place.log.flush_head()

    # Other ranks

    def _follow(
        self,
        step: int,
        kind: Kind | None,
        base: int,
        timeout: float,
        cancel: threading.Event | None,
    ) -> Attempt:
        poll = Poll(timeout, cancel, url=self._place.path.url)
        attempt = self._await_announced(poll)
        # An attempt that rank 0 gave up before this rank saw it is not this rank's to take part in.
        while isinstance(self._learn(attempt), Abort):
            attempt = self._await_announced(poll)
        theirs = (attempt.opened.step, attempt.opened.kind, attempt.opened.base)
        mine = (step, *theirs[1:]) if kind is None else (step, kind, base)
        if theirs != mine:
            differ = f"rank 0 opened (step, kind, base) {theirs}, rank {self.rank} {mine}"
            attempt.abort(differ)  # or rank 0 would wait for this one
            raise InvalidArgument(differ, url=attempt.directory.url)
        return attempt

    def _await_announced(self, poll: Poll) -> Attempt:
        path = self._place.path / layout.announcement_name(self.epoch, self._index + 1)
        while True:
            try:
                announced = poll.look(
                    lambda: read_document(Announcement, path, root=self._place.root_id)
                )
                break
            except NotFound:
                poll.look(self._require_live)
                poll.pause(f"rank 0 has not opened attempt {self._index + 1} of the session")
        if self._current is not None:
            self.last = self._current.outcome()
        self._index += 1
        directory = self._place.object(announced.directory)
        while True:
            try:
                opened = poll.look(
                    lambda: read_document(Open, directory / layout.OPEN, root=self._place.root_id)
                )
                break
            except NotFound:
                poll.look(self._require_live)
                poll.pause(f"{layout.OPEN} of attempt {self._index} of the session is missing")
        self._current = Attempt(self._place, opened, rank=self.rank)
        return self._current

    def _learn(self, attempt: Attempt) -> Outcome | None:
        outcome = attempt.outcome()
        if isinstance(outcome, Fence):
            self._require_live()
        return outcome


def _present_fence(place: Place) -> Record | None:
    """The record by which the present session began; None before the first."""
    epoch = place.log.refresh().standing.epoch
    return place.log.read(epoch) if epoch else None
