"""Async twins: a synchronous call runs on a shared thread and is awaited from any event loop."""

from __future__ import annotations

import contextvars
import functools
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from wstore.transfer import attempt, run_call_in_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any

P = ParamSpec("P")
T = TypeVar("T")


def twin(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The async twin of a function that takes `cancel=` (a `threading.Event`).

    Cancelling the awaiting task returns at once: no further request starts, a write publishes nothing,
    and what is under way ends by itself in the background (a buffer being filled stays in use until
    then).
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        stop = _Linked(kwargs.get("cancel"))
        kwargs["cancel"] = stop
        try:
            return await _in_thread(lambda: function(*args, **kwargs))
        finally:
            stop.set()

    call.__doc__ = f"Async twin of `{function.__name__}`."
    return call


class _Linked(threading.Event):
    """Set when it is set itself, or when the caller's own event is."""

    def __init__(self, other: object) -> None:
        super().__init__()
        self._other = other if isinstance(other, threading.Event) else None

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())


async def _in_thread(function: Callable[[], T]) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def job() -> None:
        results: list[T] = []
        error = attempt(lambda: results.append(context.run(function)))
        _deliver(loop, functools.partial(_finish, future, results, error))

    run_call_in_thread(job)
    return await future


def _deliver(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if not loop.is_closed():
            raise  # a closed loop has nobody waiting any more


def _finish(future: asyncio.Future[T], results: list[T], error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(results[0])
