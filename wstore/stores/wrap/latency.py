"""A far-away store: each operation takes longer by a fixed time and a time for each byte."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from wstore.stores.wrap.base import Call, Wrapper
from wstore.stores.wrap.tracing import moved_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store

T = TypeVar("T")


class Latency(Wrapper):
    """Sleeps `fixed_s` before each operation, and `per_byte_s` for each byte moved after it."""

    def __init__(
        self,
        inner: Store,
        *,
        fixed_s: float = 0.0,
        per_byte_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._fixed_s = fixed_s
        self._per_byte_s = per_byte_s
        self._sleep = sleep

    def around(self, call: Call, run: Callable[[], T]) -> T:
        self._sleep(self._fixed_s)
        result = run()
        self._sleep(self._per_byte_s * moved_bytes(call, result))
        return result
