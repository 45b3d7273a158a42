"""How versions come to a host: found, waited for, read ahead, staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore_transports.delta.following import Follower, Patience
from wstore_transports.delta.route import find_route
from wstore_transports.versions.pace import Pace

if TYPE_CHECKING:
    import threading

    from wstore_transports.checkpoint.targets import Framework
    from wstore_transports.delta.ahead import Ahead, Prepare
    from wstore_transports.delta.origin import Origin, Protection
    from wstore_transports.delta.shared_cache import SharedCache
    from wstore_transports.delta.spool import Spool
    from wstore_transports.delta.staged import Staged
    from wstore_transports.delta.staging import Stager
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest


class Arrivals:
    """What one reader sees of its origin.

    Args:
        protection: its lease.
        cache: through which this host's engines read and look; None: each for itself.
        dead_after_s: how long a publisher may give no sign of life.
    """

    def __init__(
        self,
        origin: Origin,
        stager: Stager,
        protection: Protection,
        spool: Spool,
        *,
        cache: SharedCache | None,
        dead_after_s: float,
    ) -> None:
        self._origin = origin
        self._stager = stager
        self._protection = protection
        self._spool = spool
        self._cache = cache
        self._dead_after_s = dead_after_s
        self._pace = Pace()

    def find(self, wanted: int | Version | None) -> Version:
        """A version that is there: the newest for None. Raises NoVersion, VersionGone, ..."""
        if wanted is None:
            return self._origin.followed.latest()
        return self._origin.followed.version(wanted) if isinstance(wanted, int) else wanted

    def wait(self, after: int, timeout: float, cancel: threading.Event | None) -> Version:
        """The newest version once it is newer than `after`. Raises as `Subscriber.wait`."""
        return self._origin.wait(
            after, timeout=timeout, cancel=cancel, dead_after_s=self._dead_after_s
        )

    def await_version(
        self, wanted: int | Version, timeout: float, cancel: threading.Event | None
    ) -> Version:
        """A version that may not be there yet. Raises as `wait` and `find`."""
        if isinstance(wanted, int) and wanted > 0:
            self.wait(wanted - 1, timeout, cancel)
        return self.find(wanted)

    def next(
        self,
        held: int,
        holding: Holding,
        prepare: Prepare,
        timeout: float,
        cancel: threading.Event | None,
    ) -> tuple[Version, Ahead | None]:
        """The next version, read ahead where one root is followed from a version that is held.

        Args:
            prepare: makes frames that were read ahead ready to be applied.

        Raises:
            As `wait`.
        """
        root = self._origin.single
        if root is None or not held:
            return self.wait(held, timeout, cancel), None
        patience = Patience(timeout, cancel, self._dead_after_s, self._pace)
        follower = Follower(
            root,
            held,
            holding,
            self._spool,
            cache=self._cache,
            prepare=prepare,
            patience=patience,
        )
        return follower.wait()

    def stage(
        self,
        target: Version,
        held: int,
        holding: Holding,
        known: Manifest | None,
        *,
        framework: Framework = "numpy",
        ahead: Ahead | None = None,
        cancel: threading.Event | None = None,
    ) -> Staged:
        """Stage what leads to a version, under the lease.

        Args:
            held: the version that is held, 0 for none; `known`: its manifest.

        Raises:
            InvalidArgument: the version is held already; as `Stager.stage`.
        """
        route = find_route(target, held)
        if not route.versions:
            raise InvalidArgument(
                f"version {target.number} is held already: `wait` for a newer one",
                url=self._origin.path.url,
            )
        self._protection.cover(*route.versions)
        try:
            return self._stager.stage(
                route, holding, known, framework=framework, ahead=ahead, cancel=cancel
            )
        finally:
            self._protection.cover()
