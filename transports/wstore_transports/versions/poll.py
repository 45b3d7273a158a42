"""Looking again, ever more rarely, until a deadline."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import Cancelled, WaitTimeout
from wstore.probes import Probe
from wstore.transfer import check_cancel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")

FIRST_S = 0.02
MOST_S = 1.0
_GRACE_S = 1.0  # a first look gets so long, also with a timeout of 0
_SLICE_S = 0.05  # how often `cancel` is looked at while a look is under way
_random = random.SystemRandom()  # the state of the `random` module is the user's


class Poll:
    """The pauses between looks: 0.02 s growing by half up to `most_s`, with jitter.

    Args:
        timeout: seconds from now.
        cancel: looked at during each look, before and during each pause.
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

    def look(self, call: Callable[[], T]) -> T:
        """The result of `call`, if it comes before the deadline; else it is left to end by itself.

        Raises:
            WaitTimeout: the deadline has passed. Cancelled: the event is set. What `call` raises.
        """
        probe = Probe(call, place=self._url)
        try:
            probe.start()
            while not probe.done.wait(_SLICE_S):
                check_cancel(self._cancel)
                waited = time.monotonic() - self._began
                if self.remaining_s == 0.0 and waited > _GRACE_S:
                    raise WaitTimeout(
                        f"the last look had no answer yet (waited {waited:.1f} s)", url=self._url
                    )
        finally:
            probe.give_up()
        return probe.result()

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
        length = min(remaining, self._next_s * _random.uniform(0.75, 1.0))
        self._next_s = min(self._most_s, self._next_s * 1.5)
        if self._cancel is None:
            time.sleep(length)
        elif self._cancel.wait(length):
            raise Cancelled(f"cancelled while waiting: {what}", url=self._url)
