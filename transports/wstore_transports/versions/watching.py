"""Looking whether there is a newer version, and whether its publisher lives."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wstore.errors import WStoreError
from wstore_transports.errors import PublisherLost, RunEnded
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Session
from wstore_transports.versions.heartbeat import StandstillWatch
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_transports.versions.documents import Standing
    from wstore_transports.versions.place import Place

_log = logging.getLogger(__name__)


class Watcher:
    """Looks at one root again and again, with its own clock only.

    Args:
        after: a version.
        dead_after_s: how long a publisher's counter may stand still.
        session_every_s: how often its document is read.
        before_look: called before each request.
    """

    def __init__(
        self,
        place: Place,
        after: int,
        *,
        dead_after_s: float,
        session_every_s: float,
        before_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._place = place
        self._after = after
        self._dead_after_s = dead_after_s
        self._session_every_s = session_every_s
        self._before_look = before_look
        self._watch = StandstillWatch()
        self._look_at = time.monotonic()
        self._heard = 0  # the epoch whose counter was seen
        self.session: Session | None = None

    def look(self) -> Standing:
        """Where the log stands. When it has no newer version, the publisher is looked at too, in its turn.

        A root whose counter was never seen, such as a copy without sessions, tells nothing of its
        publisher.

        Raises:
            RunEnded: the publisher said that no more will come. PublisherLost: its counter stood still.
            IntegrityError, NewerFormat; the store's errors.
        """
        self._before_look()
        standing = self._place.log.refresh().standing
        if standing.latest > self._after:
            return standing
        url = self._place.path.url
        if standing.ended:
            raise RunEnded(f"the publisher ended; the newest version is {standing.latest}", url=url)
        now = time.monotonic()
        if standing.epoch and now >= self._look_at:
            self._look_at = now + self._session_every_s
            epoch = standing.epoch
            self._before_look()
            self.session = read_session(self._place, epoch)
            if self.session is not None:
                self._heard = epoch
            counter = None if self.session is None else self.session.counter
            heard = self._heard == epoch
            still_s = self._watch.observe(str(epoch), counter, now) if heard else 0.0
            if still_s >= self._dead_after_s:
                raise PublisherLost(
                    f"the publisher (epoch {epoch}) gave no sign of life for {still_s:.1f} s; the newest "
                    f"version is {standing.latest}",
                    url=url,
                )
        return standing


def read_session(place: Place, epoch: int) -> Session | None:
    """The document of the session of that epoch; None when it cannot be read, which is no sign of life
    either."""
    try:
        return read_document(Session, place.path / layout.session_name(epoch), root=place.root_id)
    except WStoreError as error:
        _log.debug("no session: %s", error)
        return None
