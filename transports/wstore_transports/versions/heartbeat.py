"""Counters that move while somebody lives, and the watch that tells when one stands still."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import WStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from wstore.path import StoragePath

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0


class Heartbeat:
    """Calls `beat` every `interval_s` seconds on a daemon thread until closed.

    A beat that fails is logged and tried again with the next: a counter gives liveness, never
    correctness. The thread does not cross a fork; the child has no heartbeat.
    """

    def __init__(self, beat: Callable[[], None], *, interval_s: float, name: str) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._woken = threading.Event()
        self._closed = False
        self._soon_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait a little for a beat that is under way. Idempotent.

        A store that hangs must not hold up its user for the whole patience of a write: a beat that comes
        late only leaves a counter that stands still, as after a crash.
        """
        self._closed = True
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def soon(self, delay_s: float) -> None:
        """Let the next beat be `delay_s` seconds from now."""
        self._soon_s = delay_s
        self._woken.set()

    def _run(self) -> None:
        pause_s = self._interval_s
        while True:
            woken = self._woken.wait(pause_s)
            self._woken.clear()
            if self._closed:
                return
            if woken:
                pause_s = self._soon_s
                continue
            pause_s = self._interval_s
            try:
                self._beat()
            except WStoreError as error:
                _log.warning("%s: no sign of life was written: %s", self._thread.name, error)


class OverwritePace:
    """Spaces this process's overwrites of one object as its store asks (Google: one a second).

    Faster ones would be answered "slow down" and repeated, and a hint or a counter would come late for
    it. A context manager around each write, for one thread at a time: waits until the object may be
    written, and counts from the end of the write.
    """

    def __init__(self, path: StoragePath) -> None:
        self.interval_s = path.store.capabilities.overwrite_interval_s
        self._next = float("-inf")

    @property
    def remaining_s(self) -> float:
        """Seconds until the object may be written; 0.0 when it may be now."""
        return max(0.0, self._next - time.monotonic())

    def __enter__(self) -> None:
        pause = self.remaining_s
        if pause > 0:
            time.sleep(pause)

    def __exit__(self, *_: object) -> None:
        self._next = time.monotonic() + self.interval_s


@dataclass(slots=True)
class _Seen:
    value: Hashable
    since: float


class StandstillWatch:
    """How long each of several counters has stood still, by one monotonic clock: the watcher's own.

    The value of a counter is compared for change only, so clocks need not agree and a restart counts
    as a movement.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def observe(self, key: str, value: Hashable, now: float) -> float:
        """Seconds since `key` was first seen with `value` in a row; 0.0 the first time."""
        seen = self._seen.get(key)
        if seen is None or seen.value != value:
            self._seen[key] = _Seen(value, now)
            return 0.0
        return now - seen.since
