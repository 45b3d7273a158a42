"""wait and watch: what appears is seen, deadlines hold, refusals do not wait. No timing is asserted
beyond generous bounds that tell a wait from a hang."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

import pytest

from wstore import (
    AccessDenied,
    Cancelled,
    InvalidArgument,
    IsADirectory,
    StoragePath,
    Unavailable,
    WaitTimeout,
)
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Call, Fault, Faults, Trace, TraceRecord, delay, fail

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_count = itertools.count()


@pytest.fixture(params=["memory", "posix"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    return StoragePath(
        f"memory://waits{next(_count)}/base" if request.param == "memory" else tmp_path
    )


def later(action: Callable[[], object], seconds: float = 0.2) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_what_is_there_is_found_at_once(base: StoragePath) -> None:
    info = (base / "x").write_bytes(b"x")
    assert (base / "x").wait(0) == info
    assert (base / "x").wait(None) == info


def test_what_appears_is_found(base: StoragePath) -> None:
    timer = later(lambda: (base / "x").write_bytes(b"123"))
    assert (base / "x").wait(60, poll=0.05).size == 3
    timer.join()


def test_a_timeout_names_the_path_and_the_seconds(base: StoragePath) -> None:
    with pytest.raises(WaitTimeout, match=r"did not appear within 0\.[1-9]") as caught:
        (base / "x").wait(0.1)
    assert (base / "x").url in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(WaitTimeout):
        (base / "x").wait(0)


def test_few_looks_are_taken() -> None:
    records: list[TraceRecord] = []
    path = StoragePath("memory://t/x", store=Trace(MemoryStore(), records.append))
    with pytest.raises(WaitTimeout):
        path.wait(1.0)
    assert 2 <= len(records) <= 22  # 20 ms at first, then a quarter of the time waited


def test_transient_errors_are_tolerated_and_named_at_the_deadline() -> None:
    store = MemoryStore()
    store.write("x", memoryview(b"x"))
    faults = [Fault(fail(lambda: Unavailable("slow down")), lambda call: True, times=3)]
    assert StoragePath("memory://t/x", store=Faults(store, faults)).wait(60).size == 1
    faults = [Fault(fail(lambda: Unavailable("slow down")), lambda call: True, times=9999)]
    with pytest.raises(WaitTimeout, match="slow down"):
        StoragePath("memory://t/x", store=Faults(store, faults)).wait(0.2)


def test_a_refusal_is_raised_at_once() -> None:
    faults = [Fault(fail(lambda: AccessDenied("no")), lambda call: True)]
    with pytest.raises(AccessDenied):
        StoragePath("memory://t/x", store=Faults(MemoryStore(), faults)).wait(None)


def test_a_look_that_hangs_does_not_hold_up_the_deadline() -> None:
    release = threading.Event()

    def hang(call: Call, run: Callable[[], object]) -> object:
        release.wait(60)
        return run()

    path = StoragePath(
        "memory://t/x", store=Faults(MemoryStore(), [Fault(hang, lambda call: True)])
    )
    begun = time.monotonic()
    with pytest.raises(WaitTimeout, match="no answer"):
        path.wait(0.3)
    release.set()
    assert time.monotonic() - begun < 30


def test_cancel() -> None:
    cancel = threading.Event()
    timer = later(cancel.set)
    slow = Faults(MemoryStore(), [Fault(delay(0.3), lambda call: True)])
    with pytest.raises(Cancelled):
        StoragePath("memory://t/x", store=slow).wait(None, cancel=cancel)
    timer.join()


def test_a_directory_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(IsADirectory):
        StoragePath(tmp_path).wait(60)


@pytest.mark.parametrize(("timeout", "poll"), [(-1, None), (float("nan"), None), (1, 0), (1, -2)])
def test_bad_times(base: StoragePath, timeout: float, poll: float | None) -> None:
    with pytest.raises(InvalidArgument):
        base.wait(timeout, poll=poll)


def test_watch_gives_each_name_once(base: StoragePath) -> None:
    (base / "step_1").write_bytes(b"")
    found: list[str] = []
    timers = [
        later(lambda: (base / "step_2").write_bytes(b""), 0.1),
        later(lambda: (base / "other").write_bytes(b""), 0.1),
        later(lambda: (base / "step_3").write_bytes(b""), 0.4),
    ]
    for path in base.watch("step_*", timeout=60, poll=0.05):
        found.append(path.name)
        if path.name == "step_3":
            break
    assert found == ["step_1", "step_2", "step_3"]
    assert path == base / "step_3"
    for timer in timers:
        timer.join()


def test_watch_times_out_and_ends_when_cancelled(base: StoragePath) -> None:
    with pytest.raises(WaitTimeout, match="step_"):
        next(base.watch("step_*", timeout=0.1))
    cancel = threading.Event()
    timer = later(cancel.set)
    assert list(base.watch("step_*", timeout=None, cancel=cancel)) == []
    timer.join()
