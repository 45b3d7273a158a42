"""What the suite is run on: fresh stores on one place, and a back door to the same bytes."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wstore.errors import WStoreError
    from wstore.stores.base import Entry, Store

T = TypeVar("T")

WHOLE = 1 << 40
"""A length no object of the suite reaches: `read(key, 0, WHOLE)` is the whole object."""


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    """One place, for one check.

    Attributes:
        open: makes a new Store on the same place each time; all see the same objects. Whoever made
            the place closes them after the check.
        raw_get: the object's bytes by another way than the store, or None.
        raw_put: writes an object by another way than the store.
        prefix: keys of this check begin with it; ends with "/", nothing is under it yet.
        flat: any string is a key of its own: "a" beside "a/b", "a//b", "a/./b". False where keys are
            paths of files, on POSIX and on servers that keep objects as files.
        many: how many keys make more than one page of a listing, or fewer on a slow server.
        rounds: how often races are repeated.
        mangled: characters that the server, not the store, cannot keep in a key; the suite names no
            object with them. Empty for a place that is to be trusted.
        tells_age: the place knows when an upload began (moto gives a constant).
        one_upload: the service keeps the pieces of all uploads of one key together, so that the first to
            complete takes the others' pieces along, and these fail.
        processes: `open` pickles and another process that unpickles it reaches the same place.
    """

    open: Callable[[], Store]
    raw_get: Callable[[str], bytes | None]
    raw_put: Callable[[str, bytes], None]
    prefix: str
    flat: bool = True
    many: int = 1_001
    rounds: int = 3
    mangled: str = ""
    tells_age: bool = True
    one_upload: bool = False
    processes: bool = False

    def key(self, name: str) -> str:
        """The full key of a name of this check."""
        return self.prefix + name


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes without a period, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def view(data: bytes) -> memoryview:
    return memoryview(data)


def contents(store: Store, key: str) -> bytes:
    """The whole object through the store."""
    return bytes(store.read(key, 0, WHOLE).data)


def names(entries: Iterable[Entry], prefix: str) -> list[str]:
    """The keys of a listing, without the check's prefix."""
    return [entry.key.removeprefix(prefix) for entry in entries]


def attempt(kind: type[WStoreError], call: Callable[[], object]) -> WStoreError | None:
    """The error of that kind that `call` raises, or None where it returns."""
    try:
        call()
    except kind as error:
        return error
    return None


def expect_error(kind: type[WStoreError], call: Callable[[], object]) -> WStoreError:
    """The error that `call` raises.

    Raises:
        AssertionError: it raised none. Any error of another kind passes through.
    """
    error = attempt(kind, call)
    assert error is not None, f"no {kind.__name__} was raised"
    return error


def together(calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Run all calls at once, each in its thread; the result of each, or what it raised."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(run, call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def succeed(results: Iterable[T | BaseException]) -> list[T]:
    """All results, or the first error among them raised again."""
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
