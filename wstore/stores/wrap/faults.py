"""Failures on order, for tests: of chosen calls, before or after they took effect."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from wstore import errors
from wstore.stores.base import Read
from wstore.stores.forking import renew_after_fork
from wstore.stores.wrap.base import Call, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wstore.stores.base import Store

T = TypeVar("T")


class Action(Protocol):
    """What happens instead of a call: may run it, may not, may raise, may alter the result."""

    def __call__(self, call: Call, run: Callable[[], object]) -> object: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """One order.

    Attributes:
        action: what happens (`fail`, `lose_answer`, `cut_body`, `delay`, or your own).
        when: which calls match.
        nth: the first matching call that is hit, from 1.
        times: how many consecutive matching calls are hit.
    """

    action: Action
    when: Callable[[Call], bool]
    nth: int = 1
    times: int = 1


class Faults(Wrapper):
    """Applies the first order that is due to each call. Calls are counted over all threads."""

    def __init__(self, inner: Store, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self._faults = list(faults)
        self._seen = [0] * len(self._faults)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Give one more order; its matching calls are counted from now."""
        with self._lock:
            self._faults.append(fault)
            self._seen.append(0)

    def around(self, call: Call, run: Callable[[], T]) -> T:
        fault = self._due(call)
        return run() if fault is None else cast("T", fault.action(call, run))

    def _due(self, call: Call) -> Fault | None:
        due = None
        with self._lock:
            for index, fault in enumerate(self._faults):
                if fault.when(call):
                    self._seen[index] += 1
                    if due is None and 0 <= self._seen[index] - fault.nth < fault.times:
                        due = fault
        return due


def fail(make_error: Callable[[], BaseException]) -> Action:
    """Raise, without running the call."""

    def action(call: Call, run: Callable[[], object]) -> object:
        raise make_error()

    return action


def lose_answer(make_error: Callable[[], BaseException]) -> Action:
    """Run the call, then raise: what it did stays done."""

    def action(call: Call, run: Callable[[], object]) -> object:
        run()
        raise make_error()

    return action


def delay(seconds: float) -> Action:
    """Sleep, then run the call."""

    def action(call: Call, run: Callable[[], object]) -> object:
        time.sleep(seconds)
        return run()

    return action


def cut_body(after: int) -> Action:
    """Of a read, let only the first `after` bytes arrive, then raise `BodyCut`.

    The rest of the caller's buffer is overwritten, as if it had never come.
    """

    def action(call: Call, run: Callable[[], object]) -> object:
        read = run()
        if not isinstance(read, Read):
            raise errors.InvalidArgument(f"cut_body applies to reads, not to {call.op}")
        if not read.data.readonly:
            read.data[after:] = b"\xa5" * len(read.data[after:])
        raise errors.BodyCut("the body was cut", read=Read(read.data[:after], read.info))

    return action
