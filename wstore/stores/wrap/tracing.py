"""A record of every operation: what, where, how much, how long, and how it failed."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wstore.stores.base import Read
from wstore.stores.wrap.base import Call, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One finished operation.

    Attributes:
        call: what was asked.
        nbytes: bytes that came (read) or were sent (write, put).
        seconds: how long it took.
        error: what it raised, or None.
    """

    call: Call
    nbytes: int
    seconds: float
    error: BaseException | None

    def __str__(self) -> str:
        call = self.call
        place = f" at {call.offset}" if call.op in ("read", "put") else ""
        outcome = f": {type(self.error).__name__}" if self.error else ""
        return f"{call.op} {call.key}{place}: {self.nbytes} bytes, {self.seconds:.4f} s{outcome}"


def _log_record(record: TraceRecord) -> None:
    _log.debug("%s", record)


class Trace(Wrapper):
    """Hands a `TraceRecord` of each operation to `sink` (default: the debug log of this module).

    `sink` runs in the thread of the operation, right after it; what it raises reaches the caller.
    """

    def __init__(self, inner: Store, sink: Callable[[TraceRecord], None] = _log_record) -> None:
        super().__init__(inner)
        self._sink = sink

    def around(self, call: Call, run: Callable[[], T]) -> T:
        begun = time.perf_counter()
        try:
            result = run()
        except BaseException as error:
            self._sink(TraceRecord(call, 0, time.perf_counter() - begun, error))
            raise
        nbytes = moved_bytes(call, result)
        self._sink(TraceRecord(call, nbytes, time.perf_counter() - begun, None))
        return result


def moved_bytes(call: Call, result: object) -> int:
    """How many bytes of content a successful operation moved."""
    return len(result.data) if isinstance(result, Read) else call.length
