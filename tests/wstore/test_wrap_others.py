"""Limit, Trace, Latency and Faults: what each adds to every operation."""

from __future__ import annotations

import os
import threading

import pytest

from wstore import errors
from wstore.stores.base import Directories, Multipart
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import (
    Fault,
    Faults,
    Latency,
    Limit,
    Trace,
    TraceRecord,
    delay,
    fail,
    lose_answer,
)


def test_limit_bounds_what_runs_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()
    full = threading.Event()

    def action(call: object, run: object) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
        full.wait()
        with lock:
            running -= 1

    watched = Faults(MemoryStore(), [Fault(action, lambda call: True, times=1000)])
    store = Limit(watched, 3)
    threads = [threading.Thread(target=store.delete, args=("k",)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_limit_frees_its_slot_after_an_error() -> None:
    store = Limit(MemoryStore(), 1)
    for _ in range(3):
        with pytest.raises(errors.NotFound):
            store.stat("k")


def test_limit_in_a_forked_child_has_all_slots() -> None:
    memory = MemoryStore()
    memory.write("k", memoryview(b"x"))
    child = -1

    def fork_inside(call: object, run: object) -> None:
        nonlocal child
        child = os.fork()

    faults = Faults(memory, [Fault(fork_inside, lambda call: True)])
    store = Limit(faults, 1)
    store.delete("k")  # the only slot is held while the fork happens
    if child == 0:
        os._exit(store.stat("k").size)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_trace_records_every_operation() -> None:
    records: list[TraceRecord] = []
    store = Trace(MemoryStore(), records.append)
    store.write("k", memoryview(b"12345"))
    store.read("k", 3, 100)
    multipart = store.feature(Multipart)
    assert multipart is not None
    upload = multipart.upload("u")
    upload.put(0, 0, memoryview(b"123"))
    upload.complete()
    list(store.list("", recursive=True))
    with pytest.raises(errors.NotFound):
        store.stat("absent")
    assert [(record.call.op, record.call.key, record.nbytes) for record in records] == [
        ("write", "k", 5),
        ("read", "k", 2),
        ("upload", "u", 0),
        ("put", "u", 3),
        ("complete", "u", 0),
        ("list", "", 0),
        ("list", "", 0),
        ("stat", "absent", 0),
    ]
    assert records[1].call.offset == 3
    assert isinstance(records[-1].error, errors.NotFound)
    assert str(records[-1]).endswith(": NotFound")
    assert all(record.seconds >= 0 for record in records)


def test_latency_is_fixed_and_by_the_byte() -> None:
    slept: list[float] = []
    store = Latency(MemoryStore(), fixed_s=1.0, per_byte_s=0.5, sleep=slept.append)
    store.write("k", memoryview(b"1234"))
    store.read("k", 0, 2)
    store.stat("k")
    assert slept == [1, 2, 1, 1, 1, 0]


def test_faults_hit_the_nth_matching_call() -> None:
    memory = MemoryStore()
    fault = Fault(
        fail(lambda: errors.StoreError("ordered")), lambda call: call.key == "k", nth=2, times=2
    )
    store = Faults(memory, [fault])
    outcomes = []
    for key in ("k", "other", "k", "k", "k"):
        try:
            store.write(key, memoryview(b"x"))
            outcomes.append("ok")
        except errors.StoreError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "failed", "ok"]


def test_a_lost_answer_leaves_what_was_done() -> None:
    memory = MemoryStore()
    lost = Fault(lose_answer(lambda: errors.ConnectionFailed("reset")), lambda call: True)
    store = Faults(memory, [lost, Fault(delay(0.0), lambda call: True, nth=2)])
    with pytest.raises(errors.ConnectionFailed):
        store.write("k", memoryview(b"x"))
    assert store.stat("k").size == 1


def test_no_wrapper_invents_a_feature() -> None:
    assert Limit(Trace(MemoryStore()), 2).feature(Directories) is None
