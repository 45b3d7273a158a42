"""Several places that hold one root, read as one: what fails in one place is taken from the next.

Records and objects never change and are checked by their hashes, so it is no matter which mirror a byte
comes from. Two mirrors can differ in one way only: one holds less than the other, or nothing yet.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import (
    InvalidArgument,
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
from wstore_transports.versions.mirror_failures import AllFailed, meaning_of
from wstore_transports.versions.mirror_look import NOT_THE_MIRROR, View, look_at
from wstore_transports.versions.mirror_site import Site, in_order
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.root import check_after
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Anchor, Manifest, Weights
    from wstore_transports.versions.leases import Lease
    from wstore_transports.versions.mirror_failures import Failures
    from wstore_transports.versions.mirror_look import Look
    from wstore_transports.versions.root import Root

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long to ask all mirrors again and again while a failure may pass; what one store is given, too."""

LOOK_S = 5.0
"""How often a wait looks at the mirrors other than the preferred one."""

_LONGEST_PAUSE_S = 5.0


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
        self._looked = -math.inf  # when all mirrors were asked last
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """A fresh lock: the child has not the thread that may have held this one."""
        self._lock = threading.Lock()

    # As a root

    def root(self) -> Root:
        """The root at the most preferred mirror that answers."""
        self._find_out()
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
        self._find_out()
        return self._insist(
            lambda: self._one_by_one("", lambda site: self._open(site).version(number))
        )

    def versions(self) -> list[Version]:
        """All versions that are alive by the log that reaches furthest, ascending; and the newest that
        this object has shown, even while its mirror is away."""
        look = self._insist(self._look)
        newest = self._note(look)
        sites = [view.site for view in sorted(look.views, key=lambda view: -view.tip.number)]
        found = self._insist(
            lambda: self._one_by_one("", lambda site: self._open(site).versions(), among=sites)
        )
        if newest is not None and newest.number > max((v.number for v in found), default=0):
            found.append(newest)
        return found

    def wait(
        self,
        after: int,
        *,
        timeout: float,
        cancel: threading.Event | None = None,
        dead_after_s: float | None = None,
    ) -> Version:
        """The newest version once there is one newer than `after`; also waits for the root itself.

        Polls the most preferred mirror that answers, as a root is polled; every 5 s all of them.

        Args:
            dead_after_s: how long a publisher's counter may stand still; the lease period when None.

        Raises:
            RunEnded, PublisherLost: as of a root, by what all mirrors together show. While one is away,
                neither is raised: it may know better.
            WaitTimeout, Cancelled, DifferentRoots; the mirrors' errors where none of them may pass.
            InvalidArgument: `after` is negative.
        """
        check_after(after, self.path.url)
        poll = Poll(timeout, cancel, url=self.path.url)
        watch = StandstillWatch()
        while True:
            try:
                look = poll.look(self._look)
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
                poll.look(partial(self._judge, look, watch, dead_after_s))
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
                if isinstance(error, NOT_THE_MIRROR):
                    raise
                preferred.failed("", error)
                poll.pause(str(error))

    def lease(self, reader: str | None = None) -> Lease:
        """Lease everything on the first mirror that can be written.

        Collections heed the leases of their own place only: on other mirrors nothing is protected.
        """
        self._find_out()
        failures: Failures = []
        for site in in_order(self._sites, ""):
            try:
                lease = self._open(site).lease(reader)
            except NOT_THE_MIRROR:
                raise
            except WStoreError as error:
                failures.append((site, error))
                if error.retryable:
                    site.failed("", error)
            else:
                site.worked("")
                return lease
        raise AllFailed(failures).as_error() from failures[0][1]

    # The bytes

    def manifest(self, version: Version) -> Manifest:
        """The version's manifest, checked; from the first mirror that has it sound."""
        record = version.record

        def use(site: Site) -> Manifest:
            return Version(self._open(site).place, record).manifest()

        return self._insist(lambda: self._one_by_one(record.manifest.name, use, version=version))

    def whole(self, version: Version, anchor: Weights | Anchor) -> Manifest:
        """The manifest of the version's whole weights, as `Version.whole` has it."""

        def use(site: Site) -> Manifest:
            return Version(self._open(site).place, version.record).whole(anchor)

        return self._insist(lambda: self._one_by_one(anchor.manifest.name, use, version=version))

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
            except NOT_THE_MIRROR:
                raise
            except WStoreError as error:
                meant = error if version is None else meaning_of(site, version, error)
                site.failed(name, meant)
                failures.append((site, meant))
            else:
                site.worked(name)
                return result
        raise AllFailed(failures)

    def _find_out(self) -> None:
        """Look, unless a moment ago: a mirror that hangs then rests, and holds up no request that would
        have to wait for its answer for as long as its store does."""
        if len(self._sites) > 1 and time.monotonic() - self._looked >= LOOK_S:
            with contextlib.suppress(AllFailed):  # what follows meets, and names, the same failures
                self._look()

    def _look(self) -> Look:
        try:
            return look_at(self._sites, self._view)
        finally:
            self._looked = time.monotonic()

    def _view(self, site: Site) -> View:
        try:
            root = self._open(site)
            tip = root.log.refresh()
            latest = tip.standing.latest
            version = Version(root.place, root.log.weights(latest)) if latest else None
        except NOT_THE_MIRROR:
            raise
        except WStoreError as error:
            site.failed("", error)
            raise
        site.worked("")
        return View(site, tip, version)

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

    def _note(self, look: Look) -> Version | None:
        """The newest version among these and what was seen before."""
        with self._lock:
            for version in (view.version for view in look.views):
                if version and (self._newest is None or version.number > self._newest.number):
                    self._newest = version
            return self._newest

    def _judge(self, look: Look, watch: StandstillWatch, dead_after_s: float | None) -> None:
        """Whether the publisher still lives. A mirror's copy of its counter may stand still for ever."""
        standing = look.furthest.tip.standing
        if standing.ended:
            raise RunEnded(
                f"the publisher ended; the newest version is {standing.latest}", url=self.path.url
            )
        if not standing.epoch:
            return
        counters = tuple(view.site.root().counter(standing.epoch) for view in look.views)
        if all(counter is None for counter in counters):
            return  # these are all copies of a root elsewhere, made without its sessions
        still_s = watch.observe(str(standing.epoch), counters, time.monotonic())
        limit_s = look.furthest.site.root().lease_s if dead_after_s is None else dead_after_s
        if still_s >= limit_s:
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
