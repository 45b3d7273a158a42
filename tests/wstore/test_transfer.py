"""The engine: shared threads, bounded work in flight, the first error wins, nothing left running."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from wstore import Cancelled, transfer
from wstore.transfer import Window, run_parallel


class Gauge:
    """How many workers are inside at once, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_all_work_is_done_once_within_the_bound(concurrency: int) -> None:
    gauge, done = Gauge(), []

    def work(index: int) -> None:
        with gauge:
            time.sleep(0.001)
            done.append(index)

    run_parallel(50, work, concurrency=concurrency)
    assert sorted(done) == list(range(50))
    assert gauge.most <= concurrency


def test_requests_do_overlap() -> None:
    meet = threading.Barrier(4, timeout=20)
    run_parallel(4, lambda index: (meet.wait(), None)[1], concurrency=4)


def test_one_request_stays_in_the_calling_thread() -> None:
    names: list[int] = []
    run_parallel(1, lambda index: names.append(threading.get_ident()), concurrency=8)
    assert names == [threading.get_ident()]
    run_parallel(0, lambda index: names.append(0), concurrency=8)
    assert len(names) == 1


def test_the_first_error_stops_the_rest_and_waits_for_what_runs() -> None:
    gauge, started = Gauge(), []

    def work(index: int) -> None:
        with gauge:
            started.append(index)
            if index == 3:
                raise KeyError(index)
            time.sleep(0.01)

    with pytest.raises(KeyError, match="3"):
        run_parallel(1000, work, concurrency=4)
    assert gauge.now == 0
    assert len(started) < 20


def test_cancel_stops_between_requests() -> None:
    cancel, started = threading.Event(), []

    def work(index: int) -> None:
        started.append(index)
        if index == 5:
            cancel.set()

    with pytest.raises(Cancelled):
        run_parallel(1000, work, concurrency=2, cancel=cancel)
    assert len(started) < 20


def test_nested_transfers_do_not_deadlock_when_all_threads_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "MAX_THREADS", 2)
    monkeypatch.setattr(transfer, "_threads", transfer.Threads("test"))
    done: list[int] = []

    def outer(index: int) -> None:
        run_parallel(5, done.append, concurrency=5)

    run_parallel(20, outer, concurrency=10)
    assert len(done) == 100


def test_a_forked_child_has_threads_of_its_own() -> None:
    run_parallel(8, lambda index: time.sleep(0.001), concurrency=8)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        run_parallel(20, done.append, concurrency=4)
        os._exit(0 if sorted(done) == list(range(20)) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_window_bounds_what_is_under_way(width: int) -> None:
    gauge, done = Gauge(), []
    window = Window(width)

    def job(index: int) -> None:
        with gauge:
            time.sleep(0.001)
            done.append(index)

    for index in range(40):
        window.run(partial(job, index))
    window.join()
    assert sorted(done) == list(range(40))
    assert gauge.most <= width


def test_a_window_raises_the_first_error_and_drops_the_rest() -> None:
    done: list[int] = []

    def job(index: int) -> None:
        if index == 2:
            raise KeyError(index)
        done.append(index)

    window = Window(3)

    def run_all() -> None:
        for index in range(1000):
            window.run(partial(job, index))

    with pytest.raises(KeyError):
        run_all()
    window.drop()
    assert len(done) < 20
    with pytest.raises(KeyError):
        window.join()
