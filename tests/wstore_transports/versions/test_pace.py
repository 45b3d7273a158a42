"""How often a reader may look, by a clock that only moves when somebody sleeps."""

from __future__ import annotations

import os
import random
import threading

import pytest

from tests.children import wait_for
from wstore.errors import Cancelled, InvalidArgument
from wstore_transports.versions.pace import Pace


class Clock:
    """A clock of the test's own, for any number of threads."""

    def __init__(self) -> None:
        self.now = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        with self._lock:
            self.now += seconds


def _looks(per_second: float, count: int, rests: dict[int, float]) -> list[float]:
    clock = Clock()
    pace = Pace(per_second, clock=clock, sleep=clock.sleep)
    times = []
    for index in range(count):
        clock.now += rests.get(index, 0.0)
        pace.wait()
        times.append(clock.now)
    return times


def _most_in(times: list[float], window_s: float) -> int:
    return max(sum(start <= t < start + window_s for t in times) for start in times)


def test_five_at_once_then_twenty_a_second() -> None:
    times = _looks(20, 200, {})
    assert times[:5] == [0.0] * 5
    assert times[5] == pytest.approx(0.05)
    assert times[-1] == pytest.approx(200 / 20, abs=1.1)  # as fast as it may, and no faster
    assert _most_in(times, 1.0) == 20


@pytest.mark.parametrize("per_second", [1, 3.7, 7, 20, 250])
def test_no_window_of_a_second_has_more(per_second: float) -> None:
    chance = random.Random(5)
    rests = {chance.randrange(400): chance.uniform(0, 1.5) for _ in range(60)}
    times = _looks(per_second, 400, rests)
    assert _most_in(times, 1.0) <= per_second
    assert _most_in(times, 0.9 / per_second) <= 5


def test_less_than_one_a_second() -> None:
    assert _looks(0.25, 3, {}) == [0.0, 4.0, 8.0]


def test_threads_share_the_limit() -> None:
    clock = Clock()
    pace = Pace(20, clock=clock, sleep=clock.sleep)
    taken = threading.Lock()
    counts = [0]

    def look() -> None:
        for _ in range(50):
            pace.wait()
            with taken:
                counts[0] += 1

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts[0] == 200
    assert clock.now >= 200 / 20 - 1


def test_a_look_that_is_cancelled_does_not_count() -> None:
    clock = Clock()
    pace = Pace(0.001, clock=clock, sleep=clock.sleep)
    cancel = threading.Event()
    pace.wait(cancel)
    thread = threading.Timer(0.05, cancel.set)
    thread.start()
    with pytest.raises(Cancelled):
        pace.wait(cancel)
    thread.join()
    with pytest.raises(Cancelled):
        pace.wait(cancel)
    pace.wait()
    assert clock.now == 1000


def test_a_child_forked_while_the_lock_is_held_paces_itself() -> None:
    held, go_on = threading.Event(), threading.Event()

    def clock() -> float:
        if threading.current_thread() is holder:
            held.set()
            go_on.wait()
        return 0.0

    pace = Pace(clock=clock)
    holder = threading.Thread(target=pace.wait)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        pace.wait()
        os._exit(0)
    try:
        wait_for(child, 10.0)
    finally:
        go_on.set()
        holder.join()


@pytest.mark.parametrize("per_second", [0, -1, float("nan"), float("inf")])
def test_no_pace(per_second: float) -> None:
    with pytest.raises(InvalidArgument, match="looks in a second"):
        Pace(per_second)
