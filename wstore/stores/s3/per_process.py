"""What a forked child may not share with its parent: sockets, locks, foreign runtimes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_generation = 0


def generation() -> int:
    """How many forks lie between the process that imported this module and the present one."""
    return _generation


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


class PerProcess(Generic[T]):
    """One value per process: built on first use, and built anew in a forked child.

    The value inherited by a child is kept for ever and never closed: closing a TLS session or a
    runtime that the parent still uses would break the parent. There is no lock, because a lock held
    by another thread at the fork would stay held in the child; two threads that come first at the
    same time may both build, and both get the value that was stored first.
    """

    __slots__ = ("_build", "_values")

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """The value of this process."""
        try:
            return self._values[_generation]
        except KeyError:
            return self._values.setdefault(_generation, self._build())

    def take(self) -> T | None:
        """Forget the value of this process and return it, for closing; None if never built."""
        return self._values.pop(_generation, None)
