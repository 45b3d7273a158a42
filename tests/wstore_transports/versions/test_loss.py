"""A root that has lost records or its marker is refused before anything is made worse; what only lags is not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from wstore.errors import NotFound
from wstore.path import StoragePath
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.errors import NotARoot, NoVersion, RecordMissing
from wstore_transports.versions import Retention, Root, collect, lag, plan_gc
from wstore_transports.versions.mirror_failures import AllFailed
from wstore_transports.versions.mirror_site import Site

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.memory import MemoryStore
    from wstore_transports.versions import PublishSession, Version

    Publish = Callable[[PublishSession, int], Version]


class Late(Wrapper):
    """Shows the objects of some names only to the fourth request for them, and listings at once."""

    def __init__(self, inner: MemoryStore, *names: str) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.left = dict.fromkeys((f"root/{name}" for name in names), 3)

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        with self._lock:
            hidden = call.op in ("read", "stat") and self.left.get(call.key, 0) > 0
            if hidden:
                self.left[call.key] -= 1
        if hidden:
            raise NotFound("not there yet", url=call.key)
        return run()


def at(store: object) -> StoragePath:
    return StoragePath("memory://test/root", store=store)  # type: ignore[arg-type]


def record(number: int) -> str:
    return f"log/{number:012d}.json"


def names(store: MemoryStore) -> set[str]:
    return {entry.key for entry in store.list("root/", recursive=True)}


@pytest.fixture
def published(root: Root, publish: Publish) -> Root:
    """Records 1 to 7: the fence, five versions, the end."""
    with root.begin_session("run") as session:
        for step in range(5):
            publish(session, step)
        session.end()
    return root


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "LAG_S", 0.0)


EVERYTHING = [record(number) for number in range(1, 8)]


@pytest.mark.usefixtures("published", "impatient")
@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (EVERYTHING, r"head\.json"),
        (EVERYTHING[-2:], r"head\.json"),
        ([*EVERYTHING, "head.json"], r"sessions/000000000001\.json"),
        ([record(1), "head.json"], "000000000001"),
        ([record(3), "head.json"], r"log/000000000003\.json.*record 4 is there"),
    ],
    ids=["log", "newest", "log and head", "first", "gap"],
)
def test_a_lost_log_is_neither_published_to_nor_collected(
    store: MemoryStore, lost: list[str], named: str
) -> None:
    for name in lost:
        store.delete(f"root/{name}")
    before = names(store)
    for act in (
        lambda root: root.begin_session("run"),
        lambda root: plan_gc(root, Retention(1)),
        lambda root: collect(root, Retention(1)),
    ):
        with pytest.raises(RecordMissing, match=named):
            act(Root.open(at(store)))
    assert names(store) == before


@pytest.mark.usefixtures("published", "impatient")
def test_a_log_begun_anew_under_an_old_head_is_refused(store: MemoryStore) -> None:
    head = bytes(store.read("root/head.json", 0, 1000).data)
    for name in [*EVERYTHING, "head.json", "sessions/000000000001.json"]:
        store.delete(f"root/{name}")
    for _ in range(8):  # the loss was accepted, and the root goes on
        Root.open(at(store)).begin_session("run").close()
    store.write("root/head.json", memoryview(head))
    with pytest.raises(RecordMissing, match=r"000000000007\.json.*another than the head names"):
        Root.open(at(store)).begin_session("run")


@pytest.mark.usefixtures("impatient")
def test_a_reader_tells_no_version_yet_from_a_lost_log(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run") as session:
        with pytest.raises(NoVersion):
            Root.open(at(store)).latest()
        assert Root.open(at(store)).versions() == []
        publish(session, 1)
    for number in (1, 2):
        store.delete(f"root/{record(number)}")
    reader = Root.open(at(store))
    with pytest.raises(RecordMissing, match=r"head\.json"):
        reader.latest()
    with pytest.raises(RecordMissing, match=r"head\.json"):
        reader.versions()
    # On a mirror that is being filled, that passes: the mirrors are asked again.
    assert AllFailed([(Site(at(store)), RecordMissing("not yet"))]).may_pass


@pytest.mark.usefixtures("published", "impatient")
def test_a_missing_record_in_the_middle_is_damage(store: MemoryStore) -> None:
    store.delete(f"root/{record(3)}")
    reader = Root.open(at(store))
    assert reader.latest().number == 6
    with pytest.raises(RecordMissing, match=r"000000000003\.json.*goes on to 7"):
        reader.versions()
    with pytest.raises(RecordMissing, match=r"000000000003\.json.*goes on to 7"):
        reader.version(3)


@pytest.mark.usefixtures("published")
def test_a_mount_that_lags_is_waited_for(store: MemoryStore, publish: Publish) -> None:
    """What was written first may be seen last; nothing is refused for that."""
    behind = Root.open(at(Late(store, record(6), record(7))))
    with behind.begin_session("run") as session:
        assert publish(session, 9).number == 9
    assert [v.number for v in Root.open(at(Late(store, record(3)))).versions()] == [
        2,
        3,
        4,
        5,
        6,
        9,
    ]
    assert Root.create(at(Late(store, "wstore.json"))).root_id == behind.root_id


@pytest.mark.usefixtures("published", "impatient")
def test_a_lost_marker_is_not_replaced(root: Root, store: MemoryStore) -> None:
    store.delete("root/wstore.json")
    before = names(store)
    with pytest.raises(NotARoot, match=rf"{root.root_id}.*marker of this root is lost"):
        Root.create(at(store))
    assert names(store) == before


def test_a_publisher_that_commits_beside_a_collection_hinders_it_not(
    root: Root, store: MemoryStore, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor is made for the place after one record, so it looks at no later one."""
    append = root.log.append
    with Root.open(at(store)).begin_session("run") as session:
        for step in range(3):
            publish(session, step)
        steps = iter([3, 4])

        def beside(draft: Callable[..., object]) -> object:
            def after_a_commit(tip: object) -> object:
                for step in steps:
                    publish(session, step)
                return draft(tip)

            return append(after_a_commit)  # type: ignore[type-var]

        monkeypatch.setattr(root.log, "append", beside)
        assert collect(root, Retention(1)).floor == 7
    assert [version.number for version in root.versions()] == [6]
