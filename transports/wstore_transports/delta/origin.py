"""Where a subscriber reads: one root, or several mirrors of it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, NotFound, WStoreError
from wstore.path import StoragePath
from wstore_transports.checkpoint.snapshot import Snapshot
from wstore_transports.delta.pointer import follow_pointer
from wstore_transports.errors import NoRoot
from wstore_transports.versions import Mirrors, Root, layout
from wstore_transports.versions.copies import OneCopy
from wstore_transports.versions.poll import Poll

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore_transports.versions import Lease, Version
    from wstore_transports.versions.copies import Copies
    from wstore_transports.versions.documents import Anchor, Manifest, Weights

_log = logging.getLogger("wstore.delta")


class Origin:
    """One root as a subscriber sees it. Thread-safe. Opened on first use: the root need not exist yet."""

    def __init__(self, place: StoragePath | Mirrors, variant: str = "") -> None:
        self._mirrors = place if isinstance(place, Mirrors) else None
        self.path = place.path if isinstance(place, Mirrors) else place
        self._variant = variant
        self._root: Root | None = None

    @property
    def root(self) -> Root:
        """The root; of mirrors, that at the first that answers. Raises NoRoot, NotARoot."""
        if self._mirrors is not None:
            return self._mirrors.root()
        if self._root is None:
            self._root = open_root(self.path, self._variant)
        return self._root

    @property
    def single(self) -> Root | None:
        """The root where there is one place and it is open; else None."""
        return self._root

    @property
    def followed(self) -> Root | Mirrors:
        """What is asked for versions."""
        return self.root if self._mirrors is None else self._mirrors

    def wait(
        self,
        after: int,
        *,
        timeout: float,
        cancel: threading.Event | None,
        dead_after_s: float,
    ) -> Version:
        """The newest version once it is newer than `after`; also waits for the root. Raises as `Root.wait`."""
        if self._mirrors is not None:
            return self._mirrors.wait(
                after, timeout=timeout, cancel=cancel, dead_after_s=dead_after_s
            )
        poll = Poll(timeout, cancel, url=self.path.url)
        root = self.await_root(poll)
        return root.wait(after, timeout=poll.remaining_s, cancel=cancel, dead_after_s=dead_after_s)

    def await_root(self, poll: Poll) -> Root:
        """The root, once it is there."""
        while True:
            try:
                return poll.look(lambda: self.root)
            except NoRoot as error:
                poll.pause(error.message)

    def manifest(self, version: Version) -> Manifest:
        """The version's manifest, checked. Raises VersionGone, IntegrityError, NewerFormat."""
        if version.known is not None or self._mirrors is None:
            return version.manifest()
        return self._mirrors.manifest(version)

    def whole(self, version: Version, anchor: Weights | Anchor) -> Manifest:
        """The manifest of the version's whole weights. Raises as `manifest`."""
        if self._mirrors is None:
            return version.whole(anchor)
        return self._mirrors.whole(version, anchor)

    def copies(self, version: Version, name: str) -> Copies:
        """Where an object of the version can be read."""
        if self._mirrors is None:
            return OneCopy(version.object(name))
        return self._mirrors.copies(version, name)

    def snapshot(self, version: Version, manifest: Manifest) -> Snapshot:
        """The version for reading, by this manifest of it."""
        return Snapshot(manifest, version.place.path, version, self._mirrors)

    def explained(self, version: Version, error: NotFound) -> WStoreError:
        """What a missing object of a version means; from a mirror it comes explained."""
        return error if self._mirrors is not None else version.missing(error)


def open_root(place: StoragePath, variant: str = "") -> Root:
    """The root at a place, or the one that it points to; or a variant's below it.

    Raises:
        NoRoot, NotARoot, IntegrityError.
    """
    try:
        return Root.open(below(place, variant))
    except NoRoot as missing:
        try:
            pointed = follow_pointer(place)
        except NotFound:
            raise missing from None
    return Root.open(below(pointed.path, variant)) if variant else pointed


def below(place: StoragePath, variant: str) -> StoragePath:
    """Where a variant's root is; "" is the model itself. Raises InvalidArgument: a bad id."""
    return place / layout.VARIANTS / layout.check_name(variant, "variant") if variant else place


class Protection:
    """A reader's lease, taken and moved in the background: it must not hold up a transfer that is shorter
    than the time that a collection waits. Where the store cannot be written, there is none.

    Args:
        lease: takes a lease of everything.
    """

    def __init__(self, lease: Callable[[], Lease]) -> None:
        self._take = lease
        self._lease: Lease | None = None
        self._failed = False
        self._wanted: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._moving: threading.Thread | None = None

    def cover(self, *versions: int) -> None:
        """Protect these versions, and no others, as soon as may be. Returns at once."""
        with self._lock:
            self._wanted = versions
            if self._moving is not None and self._moving.is_alive():
                return
            self._moving = threading.Thread(target=self._move, name="wstore-lease", daemon=True)
            self._moving.start()

    def release(self) -> None:
        """Protect nothing any more."""
        moving = self._moving
        if moving is not None:
            moving.join()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _move(self) -> None:
        covered: tuple[int, ...] | None = None
        while True:
            with self._lock:
                wanted = self._wanted
                if wanted == covered:
                    self._moving = None
                    return
            try:
                if self._lease is None:
                    self._lease = self._take()
                self._lease.narrow(*wanted)
            except WStoreError as error:
                level = logging.DEBUG if self._failed else logging.WARNING
                _log.log(level, "reading without a lease: %s", error)
                self._failed = True
                return
            self._failed = False
            covered = wanted


def origin_of(
    root: StoragePath | str | Sequence[StoragePath | str] | Mirrors, variant: str
) -> Origin:
    """What to follow: a root or mirrors of one; or a variant's root, which lies below it.

    Raises:
        InvalidArgument: no URL, or one twice; a bad variant.
    """
    if variant:
        layout.check_name(variant, "variant")
    if isinstance(root, (str, StoragePath)):
        return Origin(StoragePath(root), variant)
    if not isinstance(root, Mirrors):
        return Origin(Mirrors([below(StoragePath(place), variant) for place in root]))
    if variant:
        raise InvalidArgument("give the URLs of the mirrors together with a variant")
    return Origin(root)
