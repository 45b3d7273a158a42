"""Where the bytes of one object can be had: in one place, or on several mirrors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from wstore.path import StoragePath

T = TypeVar("T")


class Copies(Protocol):
    """The places that hold an object, which are all equal."""

    @property
    def concurrency(self) -> int:
        """How many large requests at once pay."""

    def read(self, use: Callable[[StoragePath], T], cancel: threading.Event | None = None) -> T:
        """What `use` makes of a copy. It must verify what it reads: where it raises, another copy may be
        tried, and it is called again with that one's path."""


@dataclass(frozen=True, slots=True)
class OneCopy:
    """The object at one place."""

    path: StoragePath

    @property
    def concurrency(self) -> int:
        return self.path.store.capabilities.concurrency

    def read(self, use: Callable[[StoragePath], T], cancel: threading.Event | None = None) -> T:
        return use(self.path)
