"""What a name that must be there, and is not, gets: a bounded time to appear."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.errors import WStoreError

T = TypeVar("T")

LAG_S = 5.0
"""Shared mounts and mirrors may show what was written first after what was written last. For so long."""

_FIRST_S = 0.05
_MOST_S = 1.0


def patiently(look: Callable[[], T], *, on: type[WStoreError]) -> T:
    """The result of `look`, called again while it raises `on`, for `LAG_S` seconds; then that error."""
    deadline, pause = time.monotonic() + LAG_S, _FIRST_S
    while True:
        try:
            return look()
        except on:
            if time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(_MOST_S, 2 * pause)
