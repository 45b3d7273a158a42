"""The log: what is newest at what cost, hints that lie, and records that were tampered with."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    IntegrityError,
    NewerFormat,
    OutcomeUnknown,
)
from wstore.path import StoragePath
from wstore.stores.base import Capabilities
from wstore.stores.wrap.base import Call, Wrapper
from wstore.stores.wrap.faults import Fault, Faults, lose_answer
from wstore_transports.errors import NotARoot, NoVersion
from wstore_transports.versions import Root, create
from wstore_transports.versions.documents import Fence, Weights
from wstore_transports.versions.log import Tip, stand
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.memory import MemoryStore
    from wstore_transports.versions import PublishSession, Version

    Publish = Callable[[PublishSession, int], Version]


class Counting(Wrapper):
    """Counts requests by operation."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        self.calls[call.op] += 1
        return run()


def at(store: object) -> StoragePath:
    return StoragePath("memory://test/root", store=store)  # type: ignore[arg-type]


def fence(root: Root, run: str = "run") -> Fence:
    def draft(tip: Tip) -> Fence:
        root_id, number, prev = root.log.base_fields(tip)
        record = Fence(
            root=root_id, number=number, prev=prev, after=tip.standing, run=run, session="a" * 32
        )
        return stand(tip, record)

    return root.log.append(draft)


def edit(store: MemoryStore, name: str, **changes: object) -> None:
    """Rewrite a document with some members changed, and a check that fits."""
    raw = bytes(store.read(f"root/{name}", 0, 1 << 20).data)
    fields = json.loads(raw) | changes
    fields.pop("check")
    body = json.dumps(fields, separators=(",", ":")).encode()
    data = body[:-1] + f',"check":"{hash_of(body)}"}}'.encode()
    store.write(f"root/{name}", memoryview(data))


def test_the_newest_of_a_long_log_costs_a_handful_of_requests(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    for _ in range(400):
        fence(root)
    with root.begin_session("run") as session:
        publish(session, 1)
    counting = Counting(store)
    assert Root.open(at(counting)).latest().number == 402
    assert counting.calls.total() <= 4  # marker, head, record, the next one that is not there
    store.delete("root/head.json")
    counting = Counting(store)
    assert Root.open(at(counting)).latest().number == 402
    assert counting.calls.total() <= 2 + 2 * 10 + 3
    assert counting.calls["list"] == 0


def test_a_look_without_news_is_one_request(root: Root, store: MemoryStore) -> None:
    counting = Counting(store)
    follower = Root.open(at(counting))
    follower.log.refresh()
    counting.calls.clear()
    for _ in range(5):
        follower.log.refresh()
    assert counting.calls == {"read": 5}


@pytest.mark.parametrize("number", [1, 7, 10**6])
def test_a_wrong_head_is_only_a_hint(root: Root, store: MemoryStore, number: int) -> None:
    for _ in range(20):
        fence(root)
    edit(store, "head.json", number=number)
    assert Root.open(at(store)).log.refresh().number == 20


def test_a_far_lag_is_caught_up(root: Root, store: MemoryStore) -> None:
    follower = Root.open(at(store))
    assert follower.log.refresh().number == 0
    for count in range(1, 70):
        fence(root)
        if count % 23 == 0:
            assert follower.log.refresh().number == count


def test_a_record_edited_with_a_fitting_check_breaks_the_chain(
    root: Root, store: MemoryStore
) -> None:
    for _ in range(4):
        fence(root)
    edit(store, "log/000000000003.json", run="forged")
    with pytest.raises(IntegrityError, match=r"log/000000000004\.json.*`prev`"):
        Root.open(at(store)).log.state()


def test_a_record_under_a_wrong_number_is_found(root: Root, store: MemoryStore) -> None:
    fence(root)
    record = store.read("root/log/000000000001.json", 0, 1 << 20).data
    store.write("root/log/000000000002.json", record)
    with pytest.raises(IntegrityError, match="field `number` is 1"):
        Root.open(at(store)).log.refresh()


def test_a_record_that_breaks_the_rules_is_found(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run") as session:
        publish(session, 1)
    edit(store, "log/000000000002.json", epoch=0)
    follower = Root.open(at(store))
    store.delete("root/head.json")
    with pytest.raises(IntegrityError, match="field `epoch`"):
        follower.log.refresh()


def test_a_newer_record_stops_readers_and_publishers(root: Root, store: MemoryStore) -> None:
    fence(root)
    edit(store, "log/000000000001.json", format=2)
    fresh = Root.open(at(store))
    with pytest.raises(NewerFormat):
        fresh.latest()
    with pytest.raises(NewerFormat):
        fresh.begin_session("run")


def test_an_edited_manifest_is_found(root: Root, store: MemoryStore, publish: Publish) -> None:
    with root.begin_session("run") as session:
        version = publish(session, 1)
    edit(store, version.record.manifest.name, step=2)
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        root.latest().manifest()


def test_a_lost_answer_is_settled(
    root: Root, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    to_log = Fault(
        lose_answer(lambda: ConnectionFailed("lost")),
        when=lambda call: call.op == "write" and "/log/" in call.key,
    )
    troubled = Root.open(at(Faults(store, [to_log])))
    assert fence(troubled).number == 1
    assert root.log.refresh().number == 1


class Refusing(Wrapper):
    """Refuses writes of log records."""

    def __init__(self, inner: MemoryStore, error: Exception) -> None:
        super().__init__(inner)
        self.error = error

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        if call.op == "write" and "/log/" in call.key:
            raise self.error
        return run()


def test_refused_and_unknown_are_told_apart(
    root: Root, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    with pytest.raises(AccessDenied):
        fence(Root.open(at(Refusing(store, AccessDenied("no")))))
    with pytest.raises(OutcomeUnknown):
        fence(Root.open(at(Refusing(store, ConnectionFailed("gone")))))
    assert root.log.refresh().number == 0


class Plain(Wrapper):
    """A store that cannot create if absent."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=False, if_match=False)


def test_without_create_if_absent_one_publisher_works(
    store: MemoryStore, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    root = Root.create(at(Plain(store)))
    assert root.single_publisher
    assert "one at a time" not in caplog.text  # a reader need not know
    with root.begin_session("run") as session:
        assert "one at a time" in caplog.text
        assert [publish(session, i).number for i in range(3)] == [2, 3, 4]
    assert isinstance(root.log.read(4), Weights)


def test_odd_places_are_refused(store: MemoryStore) -> None:
    with pytest.raises(NotARoot, match="no root here"):
        Root.open(StoragePath("memory://test/nowhere", store=store))
    store.write("half/wstore.json", memoryview(b'{"format":1,'))
    with pytest.raises(NotARoot, match="damaged"):
        Root.open(StoragePath("memory://test/half", store=store))
    store.write("new/wstore.json", memoryview(b'{"format":9}'))
    with pytest.raises(NewerFormat):
        Root.open(StoragePath("memory://test/new", store=store))


def test_creating_twice_gives_one_root(root: Root, store: MemoryStore) -> None:
    assert Root.create(at(store)).root_id == root.root_id
    with pytest.raises(NoVersion):
        root.latest()
