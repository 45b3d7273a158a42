"""Fresh locks in a forked child, for objects that own some.

A lock that another thread held at the moment of `os.fork()` stays locked for ever in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object whose locks (or clients) must be renewed in a forked child."""

    def after_fork(self) -> None:
        """Replace every lock. Runs in the child, before any of its other code."""


_known: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def renew_after_fork(owner: ForkAware) -> None:
    """Call `owner.after_fork()` in every child forked from now on, as long as `owner` lives."""
    _known.add(owner)


def _renew_all() -> None:
    for owner in list(_known):
        owner.after_fork()


os.register_at_fork(after_in_child=_renew_all)
