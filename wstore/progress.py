"""How far a call is: the callback's protocol, and the tally that calls it."""

from __future__ import annotations

import threading
from typing import Protocol


class Progress(Protocol):
    """Called after each piece, by any thread but never by two at once; must be quick.

    An exception that it raises ends the transfer, which then publishes nothing.
    """

    def __call__(self, done: int, total: int | None, /) -> None:
        """`done` bytes of `total` (None: not known yet) are transferred; `done` only grows. A call that
        removes counts objects."""


class Tally:
    """Adds up what the parts of one call have done, in bytes or objects, and reports it."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count so many more, and report. Thread-safe."""
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._done, self._total)
