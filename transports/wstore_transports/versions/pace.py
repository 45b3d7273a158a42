"""How often a reader may look: never more than so many times in any second."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, InvalidArgument
from wstore.stores.forking import renew_after_fork
from wstore.transfer import check_cancel

if TYPE_CHECKING:
    from collections.abc import Callable

PER_SECOND = 20.0
"""Looks of one reader in a second, unless told otherwise."""

BURST = 5
"""Looks that may follow each other at once after a rest."""


class Pace:
    """A limit of looks (existence probes), shared by all threads of a reader.

    In no window of one second are there more than `per_second` of them (rounded down; where that is less
    than 1, they are at least `1 / per_second` seconds apart). After a rest at most 5 come at once. A
    forked child paces itself alone.

    Args:
        per_second: looks in a second, more than 0.
        clock: the time in seconds, never falling.
        sleep: waits for so many seconds; not used while a `cancel` event is watched.

    Raises:
        InvalidArgument: `per_second` is not a number above 0.
    """

    def __init__(
        self,
        per_second: float = PER_SECOND,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 < per_second < float("inf"):
            raise InvalidArgument(f"a pace of {per_second} looks in a second")
        self.per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        most = max(1, int(per_second))
        self._window_s = max(1.0, 1 / per_second)
        self._last: deque[float] = deque(maxlen=most)  # when the newest looks were let go
        self._step_s = self._window_s / most
        self._slack_s = (min(BURST, most) - 1) * self._step_s
        self._due = float("-inf")  # when the next look is due at the steady rate
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def wait(self, cancel: threading.Event | None = None) -> None:
        """Return when the next look may be made; it counts as made then. Thread-safe.

        Raises:
            Cancelled: the event is set, before or while it waits; no look is counted.
        """
        check_cancel(cancel)
        while (pause := self._pause()) > 0:
            if cancel is None:
                self._sleep(pause)
            elif cancel.wait(pause):
                raise Cancelled("cancelled while waiting for the next look")

    def _pause(self) -> float:
        """Seconds until a look may be made; 0.0 when it may be made now, and is counted."""
        with self._lock:
            now = self._clock()
            free = self._due - self._slack_s
            if len(self._last) == self._last.maxlen:
                free = max(free, self._last[0] + self._window_s)
            if now < free:
                return free - now
            self._last.append(now)
            self._due = max(self._due, now) + self._step_s
            return 0.0
