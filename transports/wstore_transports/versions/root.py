"""A root: the place where a trainer publishes versions and engines find them."""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import (
    Cancelled,
    IntegrityError,
    InvalidArgument,
    IsADirectory,
    NotFound,
    WaitTimeout,
    WStoreError,
)
from wstore.stores.base import capabilities_at
from wstore_transports.errors import NoRoot, NotARoot, NoVersion, PublisherLost
from wstore_transports.versions import layout
from wstore_transports.versions.create import create, require_exclusive
from wstore_transports.versions.documents import Marker, RecordBase
from wstore_transports.versions.lag import patiently
from wstore_transports.versions.leases import Lease
from wstore_transports.versions.log import Log
from wstore_transports.versions.loss import require_head
from wstore_transports.versions.mirror_mark import require_no_mirror
from wstore_transports.versions.place import Place
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.sealing import (
    read_capped,
    read_document,
    seal,
    unseal_record,
)
from wstore_transports.versions.session import INTERVAL_S, PublishSession
from wstore_transports.versions.version import Version
from wstore_transports.versions.watching import Watcher, read_session

if TYPE_CHECKING:
    import threading

    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Standing

_log = logging.getLogger(__name__)

LEASE_S = 60.0
"""The lease period of a new root, in seconds."""


class Root:
    """A versioned root at a path. Thread-safe; holds no connection of its own.

    Attributes:
        path: where it is.
        root_id: random, 32 hex digits; every document of the root carries it.
        lease_s: seconds after which a lease that is not renewed is dead.
        log: the log.
    """

    def __init__(self, path: StoragePath, marker: Marker) -> None:
        self.path = path
        self.root_id = marker.root
        self.lease_s = marker.lease_s
        self.log = Log(path, marker.root)
        self.place = Place(path, marker.root, marker.lease_s, self.log)
        self._proved = False  # that the store honours conditions

    @classmethod
    def create(cls, path: StoragePath, *, lease_s: float = LEASE_S) -> Root:
        """Make a root here, or open the one that is: of racing creators all get the same one.

        Raises:
            NotARoot: there is something else under the marker's name, or a log without a marker. NewerFormat.
            UnsupportedOperation: the store ignores preconditions.
        """
        require_exclusive(path)
        try:
            root = cls.open(path)
        except NoRoot:
            if _has_log(path):
                root = _reopen(path)
            else:
                marker = Marker(root=secrets.token_hex(16), lease_s=lease_s)
                create(path / layout.MARKER, seal(marker))
                root = cls.open(path)
        root._proved = True
        return root

    @classmethod
    def open(cls, path: StoragePath) -> Root:
        """Open the root that is here.

        Raises:
            NoRoot: there is none. NotARoot: its marker is not one. NewerFormat: upgrade wstore.
        """
        try:
            marker = read_document(Marker, path / layout.MARKER)
        except (NotFound, IsADirectory, NotADirectoryError) as error:
            raise NoRoot(
                f"there is no root here: {layout.MARKER} is missing (the first writer makes it)",
                url=path.url,
            ) from error
        except IntegrityError as error:
            raise NotARoot(
                f"the root's marker is damaged: {error.message}", url=error.url
            ) from error
        return cls(path, marker)

    @property
    def single_publisher(self) -> bool:
        """The store has no create-if-absent: two publishers at a time would overwrite each other."""
        return not capabilities_at(self.path.store, self.path.key).create_if_absent

    # Versions

    def object(self, name: str) -> StoragePath:
        """The object of that name, relative to the root. Raises InvalidPath when it could leave it."""
        return self.place.object(name)

    def latest(self) -> Version:
        """The newest version, with a few requests however long the log is.

        Raises:
            NoVersion: nothing was committed yet. RecordMissing: something was, and the log has lost it.
            IntegrityError, NewerFormat.
        """
        standing = self.log.refresh().standing
        if standing.latest == 0:
            require_head(self.place)
            standing = self.log.known.standing
        return self._newest(standing)

    def version(self, number: int) -> Version:
        """Version `number`. Raises NoVersion, VersionGone, IntegrityError, NewerFormat."""
        self.log.refresh()
        return Version(self.place, self.log.weights(number))

    def versions(self) -> list[Version]:
        """All versions that are alive, ascending. Reads the log back to the newest floor, once.

        Raises:
            RecordMissing: the log has lost records. IntegrityError, NewerFormat.
        """
        state = self.log.state()
        if not state.versions:
            require_head(self.place)
            state = self.log.state()
        return [Version(self.place, record) for record in state.versions.values()]

    def wait(
        self,
        after: int = 0,
        *,
        timeout: float,
        cancel: threading.Event | None = None,
        dead_after_s: float | None = None,
    ) -> Version:
        """The newest version once it is greater than `after`.

        One small request a look; looks at most once a second after the first few. The publisher's
        counter is looked at every few seconds. A store that is away for a while is waited for.

        Args:
            after: a version; not a step.
            timeout: seconds.
            dead_after_s: how long a publisher's counter may stand still; the lease period when None.

        Raises:
            RunEnded: the publisher said that no more will come.
            PublisherLost: the publisher's counter stood still, by this process's own clock. A root whose
                counter was never seen, such as a copy without sessions, tells nothing of its publisher.
            WaitTimeout, Cancelled, InvalidArgument, IntegrityError, NewerFormat.
        """
        check_after(after, self.path.url)
        poll = Poll(timeout, cancel, url=self.path.url)
        limit_s = self.lease_s if dead_after_s is None else dead_after_s
        watcher = Watcher(
            self.place,
            after,
            dead_after_s=limit_s,
            session_every_s=min(INTERVAL_S, limit_s) / 2,
        )
        while True:
            try:
                standing = poll.look(watcher.look)
            except (WaitTimeout, Cancelled, PublisherLost):
                raise
            except WStoreError as error:
                if not error.retryable:
                    raise
                poll.pause(f"the log could not be read: {error}")
                continue
            if standing.latest > after:
                return poll.look(partial(self._newest, standing))
            poll.pause(f"no version after {after}; the newest is {standing.latest}")

    # Publishing and reading

    def begin_session(
        self,
        run: str,
        *,
        ranks: int = 1,
        launch: str = "",
        interval_s: float = INTERVAL_S,
    ) -> PublishSession:
        """Become the publisher: rank 0. See `PublishSession.begin`.

        Raises:
            UnsupportedOperation: the store ignores preconditions. IsAMirror: this root is one.
        """
        require_no_mirror(self.path)
        if not self._proved:
            require_exclusive(self.path)
            self._proved = True
        if self.single_publisher:
            _log.warning(
                "%s: this store cannot create an object only if it is absent, so nothing keeps two "
                "publishers apart here: make sure that there is one at a time",
                self.path.url,
            )
        return PublishSession.begin(
            self.place, run, ranks=ranks, launch=launch, interval_s=interval_s
        )

    def join_session(
        self,
        run: str,
        *,
        rank: int,
        ranks: int,
        launch: str,
        timeout: float,
        cancel: threading.Event | None = None,
    ) -> PublishSession:
        """Join the publisher's session: ranks above 0. See `PublishSession.join`."""
        return PublishSession.join(
            self.place,
            run,
            rank=rank,
            ranks=ranks,
            launch=launch,
            timeout=timeout,
            cancel=cancel,
        )

    def lease(self, reader: str | None = None, *, interval_s: float | None = None) -> Lease:
        """Lease everything; then read `latest()`; then narrow. See `Lease`."""
        return Lease(self.place, reader, interval_s=interval_s)

    def counter(self, epoch: int) -> int | None:
        """The counter of the session of that epoch; None when it cannot be read, which is no sign of life either."""
        session = read_session(self.place, epoch)
        return None if session is None else session.counter

    def _newest(self, standing: Standing) -> Version:
        if standing.latest == 0:
            raise NoVersion("no version was committed yet", url=self.path.url)
        return Version(self.place, self.log.weights(standing.latest))

    def __repr__(self) -> str:
        return f"Root({self.path.url!r})"


def _has_log(path: StoragePath) -> bool:
    record = path / layout.record_name(1)
    try:
        record.store.stat(record.key)
    except (NotFound, NotADirectoryError):
        return False
    return True


def _reopen(path: StoragePath) -> Root:
    """The root of a log that is here already: another creator was faster, or the marker is lost."""
    try:
        return patiently(lambda: Root.open(path), on=NoRoot)
    except NoRoot as error:
        raise NotARoot(
            f"there is a log here{_owner(path)} and no {layout.MARKER}: the marker of this root is lost. "
            "Bring it back from a copy of the root, or publish to another place",
            url=path.url,
        ) from error


def _owner(path: StoragePath) -> str:
    """Of which root the log is, by its first record; "" where that does not say."""
    record = path / layout.record_name(1)
    try:
        data = read_capped(record, RecordBase.max_bytes)
        return f", of root {unseal_record(data, url=record.url, root='').root},"
    except WStoreError as error:
        _log.warning("the first log record is of no use either: %s", error)
        return ""


def check_after(after: int, url: str) -> None:
    """Raises InvalidArgument where `after` cannot be what a wait begins at."""
    if after < 0:
        raise InvalidArgument(f"wait after {after}: a version, or 0 for any", url=url)
