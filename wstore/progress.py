"""How far a transfer is: the callback's protocol, and the counter that calls it."""

from __future__ import annotations

import threading
from typing import Protocol


class Progress(Protocol):
    """Called after each piece, by any thread but never by two at once; must be quick.

    An exception that it raises ends the transfer, which then publishes nothing.
    """

    def __call__(self, done: int, total: int | None, /) -> None:
        """`done` bytes of `total` (None: not known yet) are transferred; `done` only grows."""


class ByteCounter:
    """Adds up the bytes of one transfer's pieces and reports them."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more bytes, and report. Thread-safe."""
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._done, self._total)
