"""Coroutines run from plain threads on fsspec's own event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from wstore.errors import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[object, None, T]) -> T:
    """What `work` returns or raises, run on `loop`, which another thread serves.

    When this thread is interrupted (Ctrl-C), `work` is cancelled and waited for before the interruption
    goes on: nothing writes into the caller's memory any more.

    Raises:
        UnsupportedOperation: this is that other thread, which would wait for itself.
    """
    if _is_served_here(loop):
        work.close()
        raise UnsupportedOperation("called from fsspec's own event loop: call from another thread")
    job = _Job(work)
    loop.call_soon_threadsafe(job.start, loop)
    try:
        job.ended.wait()
    except BaseException:
        loop.call_soon_threadsafe(job.cancel)
        job.ended.wait()
        raise
    return job.result()


def _is_served_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _Job(Generic[T]):
    def __init__(self, work: Coroutine[object, None, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.ended = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._work)
        self._task.add_done_callback(lambda _: self.ended.set())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        task, self._task = self._task, None
        if task is None:
            raise RuntimeError("the job was not started")
        return task.result()
