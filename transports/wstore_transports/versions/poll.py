"""Looking again, ever more rarely, until a deadline."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, WaitTimeout

if TYPE_CHECKING:
    import threading

FIRST_S = 0.02
MOST_S = 1.0


class Poll:
    """The pauses between looks: 0.02 s growing by half up to `most_s`, with jitter.

    Args:
        timeout: seconds from now.
        cancel: looked at before and during each pause.
        url: what is waited for, for the errors.
    """

    def __init__(
        self, timeout: float, cancel: threading.Event | None, *, url: str, most_s: float = MOST_S
    ) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + timeout
        self._cancel = cancel
        self._url = url
        self._most_s = most_s
        self._next_s = min(FIRST_S, most_s)

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; 0.0 after it."""
        return max(0.0, self._deadline - time.monotonic())

    def pause(self, what: str) -> None:
        """Wait before the next look.

        Args:
            what: what is missing still, for the error.

        Raises:
            WaitTimeout: the deadline has passed. Cancelled: the event is set.
        """
        remaining = self.remaining_s
        if remaining == 0.0:
            waited = time.monotonic() - self._began
            raise WaitTimeout(f"{what} (waited {waited:.1f} s)", url=self._url)
        length = min(remaining, self._next_s * random.uniform(0.75, 1.0))
        self._next_s = min(self._most_s, self._next_s * 1.5)
        if self._cancel is None:
            time.sleep(length)
        elif self._cancel.wait(length):
            raise Cancelled(f"cancelled while waiting: {what}", url=self._url)
