"""Calls that may not come back, such as any on a mount that hangs: who waits for one may give it up.

A thread inside such a call cannot be stopped. So that what hangs starves nothing else, a probe that was
given up does not count against the limit of threads, and a place where several are stuck gets no more of
them: the next ones wait until one has ended, which shows that the place answers again.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from wstore.transfer import attempt, look_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

T = TypeVar("T")

MAX_STUCK = 4
"""Probes that were given up and still run, of one place. More than one: a request that was lost on its
way must not hold up the next, which may be answered at once."""


@dataclass(slots=True)
class _Place:
    """How many probes of one place were given up and still run, and what starts once one has ended."""

    stuck: int = 0
    behind: list[Callable[[], None]] = field(default_factory=list)


_lock = threading.Lock()  # never held during a call
_places: defaultdict[Hashable, _Place] = defaultdict(_Place)  # only those where something is stuck


def _renew_after_fork() -> None:
    """A child has none of the threads that are stuck."""
    global _lock
    _lock = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_renew_after_fork)


class Probe(Generic[T]):
    """One call on another thread.

    Args:
        call: whatever it raises, `result` raises.
        place: equal for calls that hang for the same reason.

    Attributes:
        done: set once the call has ended.
    """

    def __init__(self, call: Callable[[], T], *, place: Hashable) -> None:
        self.done = threading.Event()
        self._call = call
        self._place = place
        self._threads = look_threads()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._running = False
        self._given_up = False

    def start(self) -> None:
        """Call soon; where too much is stuck already, once one of that has ended.

        Raises:
            RuntimeError: no thread can be started.
        """
        with _lock:
            if self._place in _places and _places[self._place].stuck >= MAX_STUCK:
                _places[self._place].behind.append(self._launch)
                return
        self._threads.run(self._run)

    def give_up(self) -> None:
        """Nobody waits for it any more: it does not begin, or ends by itself some day."""
        with _lock:
            if self.done.is_set() or self._given_up:
                return
            self._given_up = True
            if self._running:
                self._threads.write_off()
                _places[self._place].stuck += 1
            elif self._place in _places and self._launch in _places[self._place].behind:
                _places[self._place].behind.remove(self._launch)

    def result(self) -> T:
        """What the call returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _launch(self) -> None:
        error = attempt(lambda: self._threads.run(self._run))
        if error is not None:  # no thread can be started
            self._error = error
            self.done.set()

    def _run(self) -> None:
        with _lock:
            if self._given_up:
                return
            self._running = True
        error = attempt(lambda: self._results.append(self._call()))
        with _lock:
            self._error = error
            self.done.set()
            freed: Sequence[Callable[[], None]] = self._unstuck() if self._given_up else ()
        for launch in freed:
            launch()

    def _unstuck(self) -> Sequence[Callable[[], None]]:
        """What may start now that this probe, which was given up, has ended."""
        self._threads.take_back()
        place = _places[self._place]
        place.stuck -= 1
        launches, place.behind = place.behind, []
        if not place.stuck:
            del _places[self._place]
        return launches
