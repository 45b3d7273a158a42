"""The one retry: what is repeated, how long, and how lost answers are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from wstore import errors
from wstore.stores.base import Copy, Expect, Multipart, Settle
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Fault, Faults, Retry, RetryPolicy, cut_body, fail, lose_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store
    from wstore.stores.wrap import Call
    from wstore.stores.wrap.faults import Action

DATA = bytes(range(200))
EVER = 1 << 30
F = TypeVar("F")


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Rig:
    """Retry(Faults(MemoryStore)) with a clock of its own; jitter is always its upper bound."""

    def __init__(self, deadline_s: float = 120.0) -> None:
        self.memory = MemoryStore("m")
        self.faults = Faults(self.memory)
        self.clock = Clock()
        self.store = self.around(self.faults, deadline_s)

    def around(self, store: Store, deadline_s: float = 120.0) -> Retry:
        return Retry(
            store,
            RetryPolicy(deadline_s, first_pause_s=1.0, longest_pause_s=8.0),
            sleep=self.clock.sleep,
            clock=lambda: self.clock.now,
            uniform=lambda low, high: high,
        )

    def add(self, op: str, action: Action, *, nth: int = 1, times: int = 1) -> None:
        self.faults.add(Fault(action, lambda call: call.op == op, nth, times))


def unavailable() -> errors.WStoreError:
    return errors.Unavailable("503")


def broken() -> errors.WStoreError:
    return errors.ConnectionFailed("reset")


def test_back_off_doubles_to_its_bound() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("stat", fail(unavailable), times=6)
    assert rig.store.stat("k").size == 200
    assert rig.clock.pauses == [1, 2, 4, 8, 8, 8]


def test_the_servers_wish_is_the_least_pause() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("read", fail(lambda: errors.Unavailable("429", retry_after_s=20.0)), times=2)
    assert bytes(rig.store.read("k", 0, 3).data) == DATA[:3]
    assert rig.clock.pauses == [21, 22]


def test_the_deadline_bounds_all_attempts() -> None:
    rig = Rig(deadline_s=10.0)
    rig.add("stat", fail(unavailable), times=EVER)
    with pytest.raises(errors.Unavailable) as raised:
        rig.store.stat("k")
    assert rig.clock.pauses == [1, 2, 4]
    assert "gave up stat after 7.0 s" in raised.value.__notes__[0]
    rig.clock.pauses.clear()
    rig.add("delete", fail(lambda: errors.Unavailable("429", retry_after_s=60.0)), times=EVER)
    with pytest.raises(errors.Unavailable):
        rig.store.delete("k")
    assert rig.clock.pauses == []


def test_the_deadline_counts_from_the_first_failure() -> None:
    """A write that broke after hours of sending is sent again."""
    rig = Rig()

    def long_and_broken(call: Call, run: Callable[[], object]) -> object:
        rig.clock.now += 10_000.0
        raise broken()

    rig.add("write", long_and_broken)
    assert rig.store.write("k", memoryview(DATA)) == rig.memory.stat("k")
    rig.add("write", long_and_broken)
    assert rig.store.write("l", memoryview(DATA), expect=Expect.ABSENT) == rig.memory.stat("l")
    rig.add("write", fail(unavailable), times=EVER)
    with pytest.raises(errors.Unavailable) as raised:
        rig.store.write("m", memoryview(DATA))
    assert "after 119.0 s of failures" in raised.value.__notes__[0]


def test_a_cut_that_brought_bytes_begins_the_deadline_anew() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))

    def slow_and_cut(call: Call, run: Callable[[], object]) -> object:
        rig.clock.now += 10_000.0
        return cut_body(1)(call, run)

    rig.add("read", slow_and_cut, times=5)
    assert bytes(rig.store.read("k", 0, 200).data) == DATA
    assert rig.clock.pauses == [1] * 5

    def slow_and_empty(call: Call, run: Callable[[], object]) -> object:
        rig.clock.now += 50.0
        return cut_body(0)(call, run)

    rig.add("read", slow_and_empty, times=EVER)
    rig.clock.pauses.clear()
    with pytest.raises(errors.BodyCut):
        rig.store.read("k", 0, 200)
    assert rig.clock.pauses == [1, 2, 4]


@pytest.mark.parametrize(
    "kind",
    [
        errors.NotFound,
        errors.AccessDenied,
        errors.PreconditionFailed,
        errors.ObjectChanged,
        errors.StoreError,
        errors.IntegrityError,
        KeyboardInterrupt,
    ],
)
def test_definite_errors_pass_at_once(kind: type[BaseException]) -> None:
    rig = Rig()
    rig.add("read", fail(lambda: kind("no")))
    with pytest.raises(kind):
        rig.store.read("k", 0, 1)
    assert rig.clock.pauses == []


@pytest.mark.parametrize("given", [True, False])
def test_a_cut_body_resumes_at_its_byte(given: bool) -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("read", cut_body(50), times=2)
    asked: list[tuple[int, int]] = []

    def watch(call: Call, run: Callable[[], object]) -> object:
        asked.append((call.offset, call.length))
        return run()

    outer = Faults(rig.faults, [Fault(watch, lambda call: True, times=EVER)])
    buffer = bytearray(150)
    read = rig.around(outer).read("k", 10, 150, buffer=memoryview(buffer) if given else None)
    assert asked == [(10, 150), (60, 100), (110, 50)]
    assert bytes(read.data) == DATA[10:160]
    assert read.info == rig.memory.stat("k")
    assert bytes(buffer) == (DATA[10:160] if given else bytes(150))


def test_a_cut_without_bytes_and_one_at_the_very_end() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("read", cut_body(0))
    rig.add("read", cut_body(200), nth=2)
    assert bytes(rig.store.read("k", 0, 200).data) == DATA
    assert len(rig.clock.pauses) == 1


def test_progress_resets_the_back_off() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("read", cut_body(1), times=100)
    assert bytes(rig.store.read("k", 0, 200).data) == DATA
    assert rig.clock.pauses == [1] * 100


def test_a_replaced_object_is_never_mixed_into_a_resumed_read() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))

    def cut_and_replace(call: Call, run: Callable[[], object]) -> object:
        try:
            return cut_body(50)(call, run)
        finally:
            rig.memory.write("k", memoryview(bytes(200)))

    rig.add("read", cut_and_replace)
    with pytest.raises(errors.ObjectChanged):
        rig.store.read("k", 0, 200)


def test_a_listing_goes_on_behind_what_it_gave() -> None:
    rig = Rig()
    keys = [f"p/{number:05}" for number in range(2500)]
    for key in keys:
        rig.memory.write(key, memoryview(b""))
    rig.add("list", fail(unavailable), nth=1)
    rig.add("list", lose_answer(broken), nth=3)
    assert [entry.key for entry in rig.store.list("p/", recursive=True)] == keys
    assert len(rig.clock.pauses) == 2


def test_own_create_whose_answer_was_lost_is_a_success() -> None:
    rig = Rig()
    rig.add("write", lose_answer(broken))
    info = rig.store.write("k", memoryview(DATA), expect=Expect.ABSENT)
    assert info == rig.memory.stat("k")
    tag = info.tag
    rig.add("write", lose_answer(broken))
    assert rig.store.write("k", memoryview(b"new"), expect=tag) == rig.memory.stat("k")
    assert rig.memory.stat("k").size == 3


def test_settling_itself_is_retried() -> None:
    rig = Rig()
    rig.add("write", lose_answer(broken))
    rig.add("wrote", fail(unavailable), times=2)
    rig.add("stat", fail(unavailable))
    info = rig.store.write("k", memoryview(DATA), expect=Expect.ABSENT, write_id="mine")
    assert info == rig.memory.stat("k")
    assert rig.memory.wrote("k", "mine")


@pytest.mark.parametrize("expect", [Expect.ABSENT, "m1"])
def test_somebody_elses_object_is_the_error(expect: Expect | str) -> None:
    rig = Rig()

    def another_is_faster(call: Call, run: Callable[[], object]) -> object:
        rig.memory.write("k", memoryview(b"theirs"), write_id="theirs")
        raise broken()

    if expect is not Expect.ABSENT:
        assert rig.memory.write("k", memoryview(b"first")).tag == expect
    rig.add("write", another_is_faster)
    with pytest.raises((errors.AlreadyExists, errors.PreconditionFailed)):
        rig.store.write("k", memoryview(b"mine"), expect=expect)
    assert bytes(rig.memory.read("k", 0, 99).data) == b"theirs"


def test_own_object_of_another_size_is_no_success() -> None:
    rig = Rig()

    def damage(call: Call, run: Callable[[], object]) -> object:
        rig.memory.write("k", memoryview(b"cut"), write_id="mine")
        raise broken()

    rig.add("write", damage)
    with pytest.raises(errors.IntegrityError, match=r"200 bytes were sent.* 3 are stored"):
        rig.store.write("k", memoryview(DATA), expect=Expect.ABSENT, write_id="mine")


def test_a_first_refusal_is_believed() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(b"theirs"))
    with pytest.raises(errors.AlreadyExists):
        rig.store.write("k", memoryview(b"mine"), expect=Expect.ABSENT)
    assert rig.clock.pauses == []


class WithoutSettle(Faults):
    """A store that keeps no write ids."""

    def feature(self, kind: type[F]) -> F | None:
        return None if kind is Settle else super().feature(kind)


def test_where_nobody_can_tell_the_outcome_is_unknown() -> None:
    rig = Rig()
    blind = WithoutSettle(rig.memory, [Fault(lose_answer(broken), lambda call: call.op == "write")])
    with pytest.raises(errors.OutcomeUnknown):
        rig.around(blind).write("k", memoryview(DATA), expect=Expect.ABSENT)
    assert rig.memory.stat("k").size == 200


def test_a_refused_repeat_says_nothing_about_the_first_attempt() -> None:
    rig = Rig()
    rig.add("write", lose_answer(broken), nth=1)
    rig.add("write", fail(lambda: errors.AccessDenied("expired", url="memory://t/k")), nth=2)
    with pytest.raises(errors.OutcomeUnknown, match="expired"):
        rig.store.write("k", memoryview(DATA), expect=Expect.ABSENT)
    assert rig.memory.stat("k").size == 200


def test_delete_whose_answer_was_lost() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("delete", lose_answer(broken))
    rig.store.delete("k")
    with pytest.raises(errors.NotFound):
        rig.store.delete("k")


@pytest.mark.parametrize("op", ["upload", "put", "complete"])
def test_each_step_of_an_upload_is_retried(op: str) -> None:
    rig = Rig()
    rig.add(op, fail(unavailable), times=2)
    rig.add("put", lose_answer(broken), nth=4)
    multipart = rig.store.feature(Multipart)
    assert multipart is not None
    upload = multipart.upload("k")
    for number in range(4):
        upload.put(number, number * 50, memoryview(DATA)[number * 50 : number * 50 + 50])
    assert upload.complete().size == 200
    assert bytes(rig.memory.read("k", 0, 200).data) == DATA
    assert len(rig.clock.pauses) == 3


def test_features_are_retried_too() -> None:
    rig = Rig()
    rig.memory.write("k", memoryview(DATA))
    rig.add("copy", fail(unavailable))
    copies = rig.store.feature(Copy)
    assert copies is not None
    assert copies.copy("k", "l").size == 200
    assert len(rig.clock.pauses) == 1


def test_default_policy() -> None:
    assert RetryPolicy().deadline_s == 120.0
