"""Several places that hold one root, read as one: what fails in one place is taken from the next.

Records and objects never change and are checked by their hashes, so it is no matter which mirror a byte
comes from. Two mirrors can differ in one way only: one holds less than the other, or nothing yet.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import (
    Cancelled,
    ForkedProcess,
    InvalidArgument,
    InvalidPath,
    WaitTimeout,
    WStoreError,
)
from wstore.stores.forking import renew_after_fork
from wstore_transports.errors import (
    DifferentRoots,
    NoVersion,
    PublisherLost,
    RunEnded,
)
from wstore_transports.versions.heartbeat import StandstillWatch
from wstore_transports.versions.mirror_failures import AllFailed, is_empty, meaning_of
from wstore_transports.versions.mirror_site import Site, in_order
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Manifest
    from wstore_transports.versions.leases import Lease
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.mirror_failures import Failures
    from wstore_transports.versions.root import Root

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long to ask all mirrors again and again while a failure may pass; what one store is given, too."""

LOOK_S = 5.0
"""How often a wait looks at the mirrors other than the preferred one."""

_NOT_THE_MIRROR = (Cancelled, DifferentRoots, ForkedProcess, InvalidArgument, InvalidPath)
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class _View:
    """What one mirror shows: its newest record, and its newest version if it has any."""

    site: Site
    tip: Tip
    version: Version | None


@dataclass(frozen=True, slots=True)
class _Look:
    """What the mirrors that answer show, by preference; at least one does.

    Attributes:
        complete: no other mirror can hold more: the rest is known to be empty still.
    """

    views: tuple[_View, ...]
    complete: bool

    @property
    def furthest(self) -> _View:
        """The mirror whose log is the longest."""
        return max(self.views, key=lambda view: view.tip.number)


class Mirrors:
    """Mirrors of one root, in order of preference, read as a root is. Thread-safe.

    A mirror that fails is passed over for a while, growing from 1 s to a minute, and comes last
    meanwhile; so does a single object that is damaged or missing there. While any failure may pass, all
    mirrors are asked again for `patience_s`; then one error names every URL and its cause.

    Args:
        paths: the same root at each: another root id is `DifferentRoots` as soon as it is seen.
        patience_s: seconds.
    """

    def __init__(self, paths: Sequence[StoragePath], *, patience_s: float = PATIENCE_S) -> None:
        if len({path.url for path in paths}) != len(paths) or not paths:
            urls = ", ".join(path.url for path in paths)
            raise InvalidArgument(f"give at least one mirror, and each once: [{urls}]")
        self.path = paths[0]
        self._sites = [Site(path) for path in paths]
        self._patience_s = patience_s
        self._first: Root | None = None
        self._newest: Version | None = None
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A fresh lock: the child has not the thread that may have held this one."""
        self._lock = threading.Lock()

    # As a root

    def root(self) -> Root:
        """The root at the most preferred mirror that answers."""
        return self._insist(lambda: self._one_by_one("", self._open))

    def latest(self) -> Version:
        """The newest version that any reachable mirror shows, and never an older one than this object
        has shown before. One small request to each mirror.

        Raises:
            NoVersion: no mirror has one. NotARoot, DifferentRoots, MirrorsFailed, ...
        """
        newest = self._note(self._insist(self._look))
        if newest is None:
            raise NoVersion("no version was committed yet", url=self.path.url)
        return newest

    def version(self, number: int) -> Version:
        """Version `number`, from the first mirror that has it. Raises NoVersion, VersionGone."""
        return self._insist(
            lambda: self._one_by_one("", lambda site: self._open(site).version(number))
        )

    def versions(self) -> list[Version]:
        """All versions that are alive by the log that reaches furthest, ascending."""
        views = sorted(self._insist(self._look).views, key=lambda view: -view.tip.number)
        sites = [view.site for view in views]
        return self._insist(
            lambda: self._one_by_one("", lambda site: self._open(site).versions(), among=sites)
        )

    def wait(self, after: int, *, timeout: float, cancel: threading.Event | None = None) -> Version:
        """The newest version once there is one newer than `after`; also waits for the root itself.

        Polls the most preferred mirror that answers, as a root is polled; every 5 s all of them.

        Raises:
            RunEnded, PublisherLost: as of a root, by what all mirrors together show. While one is away,
                neither is raised: it may know better.
            WaitTimeout, Cancelled, DifferentRoots; the mirrors' errors where none of them may pass.
        """
        poll = Poll(timeout, cancel, url=self.path.url)
        watch = StandstillWatch()
        while True:
            try:
                look = self._look()
            except AllFailed as failed:
                error = failed.as_error()
                if not (failed.may_pass or failed.no_root_yet):
                    raise error from failed.failures[0][1]
                poll.pause(str(error))
                continue
            newest = self._note(look)
            if newest is not None and newest.number > after:
                return newest
            if look.complete:
                self._judge(look, watch)
            preferred = look.views[0].site
            try:
                slice_s = min(LOOK_S, poll.remaining_s)
                self._open(preferred).wait(
                    after, timeout=slice_s, cancel=cancel, dead_after_s=math.inf
                )
            except WaitTimeout:
                if poll.remaining_s == 0.0:
                    poll.pause(f"no version after {after} on any mirror")
            except RunEnded:  # as far as that log reaches
                poll.pause(f"no version after {after} on any mirror")
            except WStoreError as error:
                if isinstance(error, _NOT_THE_MIRROR):
                    raise
                preferred.failed("", error)

    def lease(self, reader: str | None = None) -> Lease:
        """Lease everything on the first mirror that can be written.

        Collections heed the leases of their own place only: on other mirrors nothing is protected.
        """
        failures: Failures = []
        for site in in_order(self._sites, ""):
            try:
                return self._open(site).lease(reader)
            except _NOT_THE_MIRROR:
                raise
            except WStoreError as error:
                failures.append((site, error))
                if error.retryable:
                    site.failed("", error)
        raise AllFailed(failures).as_error() from failures[0][1]

    # The bytes

    def manifest(self, version: Version) -> Manifest:
        """The version's manifest, checked; from the first mirror that has it sound."""
        record = version.record

        def use(site: Site) -> Manifest:
            return Version(self._open(site).place, record).manifest()

        return self._insist(lambda: self._one_by_one(record.manifest.name, use, version=version))

    def copies(self, version: Version, name: str) -> MirroredCopies:
        """An object that the version's manifest lists."""
        return MirroredCopies(self, version, name)

    def read(
        self,
        version: Version,
        name: str,
        use: Callable[[StoragePath], T],
        cancel: threading.Event | None,
    ) -> T:
        """What `use` makes of the first copy with which it does not fail. See `Copies.read`.

        Raises:
            VersionGone: no mirror has it, and by the log of one the version was let go.
            MirrorsFailed, IntegrityError, ...: naming each mirror.
        """
        return self._insist(
            lambda: self._one_by_one(
                name, lambda site: use(self._open(site).object(name)), version=version
            ),
            cancel,
        )

    # How

    def _insist(self, once: Callable[[], T], cancel: threading.Event | None = None) -> T:
        """`once`, again and again while its failure may pass and patience lasts."""
        deadline = time.monotonic() + self._patience_s
        poll = Poll(math.inf, cancel, url=self.path.url, most_s=_LONGEST_PAUSE_S)
        while True:
            try:
                return once()
            except AllFailed as failed:
                if not failed.may_pass or time.monotonic() >= deadline:
                    raise failed.as_error() from failed.failures[0][1]
                poll.pause("no mirror can serve this")

    def _one_by_one(
        self,
        name: str,
        use: Callable[[Site], T],
        *,
        version: Version | None = None,
        among: Sequence[Site] | None = None,
    ) -> T:
        failures: Failures = []
        for site in in_order(self._sites if among is None else among, name):
            try:
                result = use(site)
            except _NOT_THE_MIRROR:
                raise
            except WStoreError as error:
                meant = error if version is None else meaning_of(site, version, error)
                site.failed(name, meant)
                failures.append((site, meant))
            else:
                site.worked(name)
                return result
        raise AllFailed(failures)

    def _look(self) -> _Look:
        """Ask all mirrors at once; those that failed lately only where no other answers."""
        failures: Failures = []
        resting = [site for site in self._sites if site.rests("")]
        for sites in ([site for site in self._sites if site not in resting], resting):
            views = []
            for site, found in zip(sites, in_parallel(self._view, sites), strict=True):
                if isinstance(found, _View):
                    views.append(found)
                else:
                    failures.append((site, found))
            if views:
                asked_all = sites is resting or not resting
                return _Look(tuple(views), asked_all and all(is_empty(e) for _, e in failures))
        raise AllFailed(failures)

    def _view(self, site: Site) -> _View | WStoreError:
        try:
            root = self._open(site)
            tip = root.log.refresh()
            latest = tip.standing.latest
            version = Version(root.place, root.log.weights(latest)) if latest else None
        except _NOT_THE_MIRROR:
            raise
        except WStoreError as error:
            site.failed("", error)
            return error
        site.worked("")
        return _View(site, tip, version)

    def _open(self, site: Site) -> Root:
        root = site.root()
        with self._lock:
            first = self._first = self._first or root
        if first.root_id != root.root_id:
            raise DifferentRoots(
                f"is root {root.root_id}, but {first.path.url} is root {first.root_id}: "
                "mirrors must be copies of one root",
                url=root.path.url,
            )
        return root

    def _note(self, look: _Look) -> Version | None:
        """The newest version among these and what was seen before."""
        with self._lock:
            for version in (view.version for view in look.views):
                if version and (self._newest is None or version.number > self._newest.number):
                    self._newest = version
            return self._newest

    def _judge(self, look: _Look, watch: StandstillWatch) -> None:
        """Whether the publisher still lives. A mirror's copy of its counter may stand still for ever."""
        standing = look.furthest.tip.standing
        if standing.ended:
            raise RunEnded(
                f"the publisher ended; the newest version is {standing.latest}", url=self.path.url
            )
        if not standing.epoch:
            return
        counters = tuple(view.site.root().counter(standing.epoch) for view in look.views)
        if not any(counters):
            return  # these are all copies of a root elsewhere, made without its sessions
        still_s = watch.observe(str(standing.epoch), counters, time.monotonic())
        if still_s >= look.furthest.site.root().lease_s:
            raise PublisherLost(
                f"the publisher (epoch {standing.epoch}) gave no sign of life on any mirror for "
                f"{still_s:.1f} s; the newest version is {standing.latest}",
                url=self.path.url,
            )

    def __repr__(self) -> str:
        return f"Mirrors({[site.path.url for site in self._sites]})"


@dataclass(frozen=True, slots=True)
class MirroredCopies:
    """One object of a version on all mirrors; a `Copies`."""

    mirrors: Mirrors
    version: Version
    name: str

    @property
    def concurrency(self) -> int:
        return self.mirrors.path.store.capabilities.concurrency

    def read(self, use: Callable[[StoragePath], T], cancel: threading.Event | None = None) -> T:
        return self.mirrors.read(self.version, self.name, use, cancel)
