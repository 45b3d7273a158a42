"""Many small requests at once, results in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")

WORKERS = 16


def in_parallel(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`[call(item) for item in items]`, up to 16 at a time; the first failure (in order) is raised."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(WORKERS, len(items)), "wstore-documents") as pool:
        return list(pool.map(call, items))
