"""Work over threads that an interrupt cannot tear: it ends by itself, done or taken back."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    T = TypeVar("T")


def shielded(work: Callable[[threading.Event], None]) -> None:
    """Runs `work` in a thread of its own, to its end, and raises what it raises.

    An interrupt (of Ctrl-C, or whatever a signal's handler raises) reaches the main thread only, so it
    never comes between two steps of the work. It sets the event that `work` gets, by which it ends early, and
    is raised once the work has ended.
    """
    stop: threading.Event = threading.Event()
    ended: Future[None] = Future()

    def run() -> None:
        try:
            if stop.is_set():
                raise Cancelled("interrupted before it began")
            work(stop)
        except BaseException as error:  # noqa: BLE001
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="wstore-apply")
    try:
        thread.start()
        _outlast(ended, stop)
    except BaseException:
        stop.set()
        # One that did not start, or has not yet, finds the event set and does nothing.
        if thread.is_alive():
            _outlast(ended, stop)
        raise
    ended.result()


def _outlast(ended: Future[None], stop: threading.Event) -> None:
    """Waits for the end, whatever interrupts; raises the interrupt then."""
    try:
        wait([ended])
    except BaseException:
        stop.set()
        _outlast(ended, stop)
        raise


def each(jobs: Sequence[T], step: Callable[[T], None], threads: int, stop: threading.Event) -> None:
    """Run a step for each job, some at once; when one fails, or `stop` is set, no further one starts.

    Returns or raises once all that started have ended.

    Raises:
        Cancelled: `stop` was set before all were done; else what the first that failed raised.
    """

    def guarded(job: T) -> None:
        if not stop.is_set():
            try:
                step(job)
            except BaseException:
                stop.set()
                raise

    with ThreadPoolExecutor(max(1, threads), "wstore-apply") as pool:
        futures = [pool.submit(guarded, job) for job in jobs]
    for future in futures:
        future.result()
    if stop.is_set():
        raise Cancelled("the apply was interrupted")
