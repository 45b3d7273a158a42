"""A bound on how many operations of one store run at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from wstore.stores.forking import renew_after_fork
from wstore.stores.wrap.base import Call, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store

T = TypeVar("T")


class Limit(Wrapper):
    """Lets at most `parallel` operations run at a time; the others wait their turn.

    A forked child starts with all slots free: the threads that held some do not exist there.
    """

    def __init__(self, inner: Store, parallel: int) -> None:
        super().__init__(inner)
        self._parallel = parallel
        self._slots = threading.Semaphore(parallel)
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._slots = threading.Semaphore(self._parallel)

    def around(self, call: Call, run: Callable[[], T]) -> T:
        with self._slots:
            return run()
