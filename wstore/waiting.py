"""Waiting for objects that others write: polling with back-off, a deadline, and cancellation.

Each look runs on another thread and is given up at the deadline (`probes`), so a server that does not
answer, or a hung mount, cannot make the caller wait longer.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import InvalidArgument, NotFound, WaitTimeout, WStoreError
from wstore.probes import Probe
from wstore.transfer import check_cancel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator

    from wstore.stores.base import ObjectInfo, Store

T = TypeVar("T")

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.25
"""Four looks a second once a wait has lasted: what comes is noticed within 0.32 s, on average in half of
that, and a thousand waiting engines cost a store 4,000 small requests a second."""
_PATIENCE = 0.25  # pauses grow with the time waited: what is noticed is at most so much late
_SLICE_S = 0.05  # how often `cancel` is looked at while a look is under way
_random = random.SystemRandom()  # the state of the `random` module is the user's


def wait(
    store: Store,
    key: str,
    timeout: float | None,
    *,
    poll: float | None = None,
    cancel: threading.Event | None = None,
) -> ObjectInfo:
    """Until the object exists; see `StoragePath.wait`."""
    url = f"{store.url}/{key}"
    pace = _Pace(url, timeout, poll, cancel)
    place = (id(store), key)  # the look keeps the store alive, so that no other gets its number
    while True:
        try:
            return pace.look(lambda: store.stat(key), place)
        except NotFound as error:
            pace.pause(error)
        except WStoreError as error:
            if not error.retryable:
                raise
            pace.pause(error)


def watch(
    scan: Callable[[], Iterator[str]],
    url: str,
    timeout: float | None,
    *,
    place: Hashable,
    poll: float | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[str]:
    """What `scan` finds, each once, until cancelled; see `StoragePath.watch`.

    Args:
        scan: one complete look.
        url: what to name in errors.
        place: equal for scans that hang for the same reason.
    """
    seen: set[str] = set()
    pace = _Pace(url, timeout, poll, cancel)
    while cancel is None or not cancel.is_set():
        try:
            found = pace.look(lambda: [name for name in scan() if name not in seen], place)
        except WStoreError as error:
            if cancel is not None and cancel.is_set():
                return
            if not error.retryable and not isinstance(error, NotFound):
                raise
            found = []
        for name in found:
            seen.add(name)
            yield name
        if found:
            pace = _Pace(url, timeout, poll, cancel)
        if cancel is None or not cancel.is_set():
            pace.pause(None, quietly=cancel is not None)


class _Pace:
    """One wait: its deadline and its pauses, by the monotonic clock."""

    def __init__(
        self, url: str, timeout: float | None, poll: float | None, cancel: threading.Event | None
    ) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument(f"a timeout of {timeout} seconds", url=url)
        if poll is not None and not poll > 0:
            raise InvalidArgument(f"a poll interval of {poll} seconds", url=url)
        self._url = url
        self._begun = time.monotonic()
        self._timeout = timeout
        self._longest = LONGEST_PAUSE_S if poll is None else poll
        self._cancel = cancel

    @property
    def _left(self) -> float | None:
        if self._timeout is None:
            return None
        return self._begun + self._timeout - time.monotonic()

    def look(self, call: Callable[[], T], place: Hashable) -> T:
        """The result of `call`, if it comes before the deadline."""
        check_cancel(self._cancel)
        probe = Probe(call, place=place)
        try:
            probe.start()
            while not probe.done.wait(_SLICE_S):
                check_cancel(self._cancel)
                left = self._left
                # A first look always gets a moment, also with a timeout of 0.
                if left is not None and left <= 0 and time.monotonic() - self._begun > 1.0:
                    raise self._timed_out(None, "the last look had no answer yet")
        finally:
            probe.give_up()
        return probe.result()

    def pause(self, cause: Exception | None, *, quietly: bool = False) -> None:
        """Sleep before the next look. Raises WaitTimeout at the deadline, Cancelled when cancelled."""
        elapsed = time.monotonic() - self._begun
        pause = min(self._longest, max(FIRST_PAUSE_S, elapsed * _PATIENCE)) * _random.uniform(
            0.75, 1.25
        )
        left = self._left
        if left is not None:
            if left <= 0:
                raise self._timed_out(cause, "" if cause is None else str(cause))
            pause = min(pause, left)
        if self._cancel is None:
            time.sleep(pause)
            return
        self._sleep_watching(pause)
        if not quietly:
            check_cancel(self._cancel)

    def _sleep_watching(self, pause: float) -> None:
        end = time.monotonic() + pause
        assert self._cancel is not None
        while not self._cancel.is_set() and (left := end - time.monotonic()) > 0:
            self._cancel.wait(min(left, _SLICE_S))

    def _timed_out(self, cause: Exception | None, last: str) -> WaitTimeout:
        waited = time.monotonic() - self._begun
        detail = f" (last: {last})" if last and not isinstance(cause, NotFound) else ""
        error = WaitTimeout(f"did not appear within {waited:.2f} s{detail}", url=self._url)
        error.__cause__ = cause
        return error
