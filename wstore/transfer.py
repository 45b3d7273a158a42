"""The engine under every parallel read and write: shared threads, one error, bounded work in flight.

The calling thread always works too. So one request runs inline without any hand-over; a transfer makes
progress however busy the shared threads are; and a transfer inside a shared thread cannot deadlock.
A worker takes the next index from a C counter: between two requests it never waits, so a busy
interpreter (which hands the GIL over every 5 ms only) does not slow it down.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING

from wstore.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_THREADS = 256  # of each kind; a request waiting for the network costs one


class Threads:
    """Daemon threads of this process, started when a job finds none idle, kept for later jobs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # threads that wait, less the jobs queued for them
        self._started = 0

    def run(self, job: Callable[[], None]) -> None:
        """Run `job` on some thread, soon. It must not raise.

        Raises:
            RuntimeError: no thread can be started (the system's limit, or the interpreter is ending).
        """
        with self._lock:
            if self._free > 0 or self._started >= MAX_THREADS:
                self._free -= 1
            else:
                self._start()
        self._jobs.put(job)

    def write_off(self) -> None:
        """A job that runs may never end: its thread counts no more, and another may start instead."""
        with self._lock:
            self._started -= 1
            if self._free < 0:  # a job waits
                with contextlib.suppress(RuntimeError):  # no more threads: those there are will do
                    self._start()
                    self._free += 1

    def take_back(self) -> None:
        """A job that was written off ends after all: its thread serves again. To be called by the job."""
        with self._lock:
            self._started += 1

    def _start(self) -> None:
        name = f"{self.name}-{self._started}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._started += 1

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            job()
            del job  # what it holds must not live until the next one comes
            with self._lock:
                self._free += 1


_threads = Threads("wstore")
_callers = Threads("wstore-call")
_lookers = Threads("wstore-look")


def _renew_after_fork() -> None:
    global _threads, _callers, _lookers
    _threads, _callers, _lookers = (Threads(one.name) for one in (_threads, _callers, _lookers))


os.register_at_fork(after_in_child=_renew_after_fork)


def run_in_thread(job: Callable[[], None]) -> None:
    """Run `job`, which must not raise, on a shared daemon thread."""
    _threads.run(job)


def run_call_in_thread(job: Callable[[], None]) -> None:
    """Run a whole call, which must not raise, on a daemon thread.

    Not on the shared ones: a call may wait for jobs that need those (a look of `waiting.wait`), so many
    calls at once would leave none to their own jobs.
    """
    _callers.run(job)


def look_threads() -> Threads:
    """Those for `probes.Probe`. Not the ones of `run_call_in_thread`: such a call may wait for a look."""
    return _lookers


def run_parallel(
    count: int,
    work: Callable[[int], None],
    *,
    concurrency: int,
    cancel: threading.Event | None = None,
) -> None:
    """Call `work(0)` ... `work(count - 1)`, started in this order, at most `concurrency` at once.

    The first exception stops all that has not started; it is raised when nothing runs any more, so no
    worker touches the caller's memory after the return.

    Raises:
        Cancelled: `cancel` was set.
    """
    if count == 1 or concurrency == 1:
        for index in range(count):
            check_cancel(cancel)
            work(index)
        return
    crew = _Crew(count, work, cancel)
    with contextlib.suppress(RuntimeError):  # no more threads: those there are will do
        for _ in range(min(count, concurrency) - 1):
            run_in_thread(crew.help)
    crew.finish()


def attempt(call: Callable[[], None]) -> BaseException | None:
    """The error of a call, for another thread to raise; None if there was none."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    return None


def check_cancel(cancel: threading.Event | None) -> None:
    """Raises Cancelled if the event is set."""
    if cancel is not None and cancel.is_set():
        raise Cancelled("cancelled by the caller")


class _Crew:
    """The workers of one `run_parallel`."""

    def __init__(
        self, count: int, work: Callable[[int], None], cancel: threading.Event | None
    ) -> None:
        self._indices = iter(range(count))  # next() on it is atomic
        self._work = work
        self._cancel = cancel
        self._lock = threading.Lock()
        self._helping = 0
        self._closed = False
        self._all_left = threading.Event()
        self._error: BaseException | None = None

    def help(self) -> None:
        """What a shared thread does: nothing if the work is over by now."""
        with self._lock:
            if self._closed:
                return
            self._helping += 1
        self._labour()
        with self._lock:
            self._helping -= 1
            if self._closed and not self._helping:
                self._all_left.set()

    def finish(self) -> None:
        """Work until nothing is left, wait for the helpers, raise the first error."""
        try:
            self._labour()
        finally:
            self._wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # Its traceback holds this frame: without the cycle the memory is free at once.
            del error

    def _labour(self) -> None:
        error = attempt(self._work_all)
        if error is not None:
            with self._lock:
                self._error = self._error or error

    def _work_all(self) -> None:
        for index in self._indices:
            if self._error is not None:
                return
            check_cancel(self._cancel)
            self._work(index)

    def _wait(self) -> None:
        with self._lock:
            self._closed = True
            if not self._helping:
                return
        try:
            self._all_left.wait()
        except BaseException as error:  # Ctrl-C: start nothing more, but let the rest finish
            self._error = error
            self._all_left.wait()
            raise


class Window:
    """Jobs of one transfer that are made one by one: at most `width` (which may change) are under way.

    `run` blocks by doing a job itself when the window is full. The first error wins and is raised by
    the next `run` or by `join`; jobs not started are then dropped.
    """

    def __init__(self, width: int, cancel: threading.Event | None = None) -> None:
        self.width = width
        self._cancel = cancel
        self._lock = threading.Condition()
        self._waiting: list[Callable[[], None]] = []
        self._running = 0
        self._error: BaseException | None = None

    def run(self, job: Callable[[], None]) -> None:
        """Start `job` on a shared thread; if `width` are under way, work on one of them first."""
        check_cancel(self._cancel)
        while True:
            with self._lock:
                self._raise_error()
                if len(self._waiting) + self._running < self.width:
                    if self.width > 1:
                        self._waiting.append(job)
                        break
                    self._running += 1
                    inline = job
                elif self._waiting:
                    inline = self._waiting.pop(0)
                    self._running += 1
                else:
                    self._lock.wait()
                    continue
            self._do(inline)
            if inline is job:
                return
        with contextlib.suppress(RuntimeError):  # no more threads: `join` does it
            run_in_thread(self._help)

    def join(self) -> None:
        """Wait until every job is done; raises the first error."""
        while True:
            with self._lock:
                if not self._waiting:
                    break
                job = self._waiting.pop(0)
                self._running += 1
            self._do(job)
        with self._lock:
            while self._running:
                self._lock.wait()
            self._raise_error()

    def drop(self) -> None:
        """Start nothing more, and wait for what runs. Never raises the jobs' errors."""
        with self._lock:
            self._waiting.clear()
            while self._running:
                self._lock.wait()

    def _help(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._error is not None:
                    return
                job = self._waiting.pop(0)
                self._running += 1
            self._do(job)

    def _do(self, job: Callable[[], None]) -> None:
        def checked() -> None:
            check_cancel(self._cancel)
            job()

        error = attempt(checked)
        with self._lock:
            if error is not None:
                self._error = self._error or error
                self._waiting.clear()
            self._running -= 1
            self._lock.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
