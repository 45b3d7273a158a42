"""Retention, leases and collections."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from wstore.errors import IntegrityError, InvalidArgument
from wstore.path import StoragePath
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.errors import VersionGone
from wstore_transports.versions import Retention, Root, collect, plan_gc
from wstore_transports.versions.documents import Anchor, Floor, ObjectRef, Standing, Weights
from wstore_transports.versions.garbage import find_garbage
from wstore_transports.versions.log import stand
from wstore_transports.versions.retention import decide
from wstore_transports.versions.standing import LogState

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.memory import MemoryStore
    from wstore_transports.versions import Attempt, Lease, PublishSession, Version
    from wstore_transports.versions.log import Tip

    Publish = Callable[[PublishSession, int], Version]
    Write = Callable[[Attempt, int], None]


def weights(number: int, base: int, anchors: int) -> Weights:
    return Weights(
        root="0" * 32,
        number=number,
        prev="0" * 32,
        after=Standing(anchors=anchors),
        run="run",
        attempt="1.0123456789abcdef",
        epoch=1,
        step=0,
        kind="delta" if base else "full",
        base=base,
        digest="0" * 32,
        manifest=ObjectRef(name="data/m", size=1, hash="0" * 32),
        nbytes=1,
    )


def anchor(number: int, version: int, anchors: int) -> Anchor:
    return Anchor(
        root="0" * 32,
        number=number,
        prev="0" * 32,
        after=Standing(anchors=anchors),
        version=version,
        epoch=1,
        manifest=ObjectRef(name="data/m", size=1, hash="0" * 32),
        nbytes=1,
    )


# Two anchors and the deltas that build on them: 2 <- 3 <- 4, 5 <- 6 <- 7.
CHAIN = {
    n: weights(n, base, anchors)
    for n, base, anchors in [(2, 0, 1), (3, 2, 1), (4, 3, 1), (5, 0, 2), (6, 5, 2), (7, 6, 2)]
}


@pytest.mark.parametrize(
    ("retention", "leased", "stays"),
    [
        (Retention(1), [], [5, 6, 7]),
        (Retention(3), [], [5, 6, 7]),
        (Retention(4), [], [2, 3, 4, 5, 6, 7]),
        (Retention(1), [3], [2, 3, 5, 6, 7]),
        (Retention(1), None, [2, 3, 4, 5, 6, 7]),
        (Retention(1), [99], [5, 6, 7]),
        (Retention(1, keep_every_anchor=2), [], [2, 5, 6, 7]),
    ],
)
def test_what_stays(retention: Retention, leased: list[int] | None, stays: list[int]) -> None:
    fates = decide(LogState(7, Standing(), CHAIN, {}), retention, leased)
    assert [fate.number for fate in fates if fate.stays] == stays
    assert all(fate.reason for fate in fates)


@pytest.mark.parametrize(
    ("retention", "leased", "stays"),
    [
        (Retention(1), [], [6, 7]),
        (Retention(2), [], [6, 7]),
        (Retention(3), [], [3, 4, 5, 6, 7]),
        (Retention(1), [4], [3, 4, 6, 7]),
        (Retention(1, keep_every_anchor=1), [], [2, 3, 6, 7]),
        (Retention(1, keep_every_anchor=2), [], [2, 6, 7]),
    ],
)
def test_a_chain_ends_at_a_version_that_got_an_anchor(
    retention: Retention, leased: list[int], stays: list[int]
) -> None:
    """2 <- 3 <- 4 <- 5 <- 6 <- 7, where 3 and 6 got whole weights later."""
    chain = {n: weights(n, 0 if n == 2 else n - 1, 1) for n in range(2, 8)}
    anchors = {3: anchor(13, 3, anchors=2), 6: anchor(16, 6, anchors=3)}
    fates = decide(LogState(20, Standing(), chain, anchors), retention, leased)
    assert [fate.number for fate in fates if fate.stays] == stays


@pytest.mark.parametrize(
    "settings",
    [{"keep_last": 0}, {"keep_every_anchor": 0}, {"keep_last": 2, "max_staleness": 8}],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        Retention(**settings)


def names(store: MemoryStore) -> set[str]:
    return {entry.key for entry in store.list("root/data/", recursive=True)}


def test_a_plan_writes_nothing_and_a_collection_does_it(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run") as session:
        for step in range(5):
            publish(session, step)
    before = {entry.key for entry in store.list("root/", recursive=True)}
    plan = plan_gc(root, Retention(2))
    assert {entry.key for entry in store.list("root/", recursive=True)} == before
    report = collect(root, Retention(2))
    assert {going.name for going in plan.objects} == {going.name for going in report.deleted}
    assert [v.number for v in root.versions()] == [5, 6]
    assert len(names(store)) == 2 * 4
    assert root.latest().manifest().tensors
    with pytest.raises(VersionGone):
        root.version(3)
    again = collect(root, Retention(2))
    assert (again.floor, again.deleted) == (None, ())


def test_a_leased_version_stays_until_it_is_released(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session:
        for step in range(4):
            publish(session, step)
    with root.lease("engine", interval_s=0.01) as lease:
        lease.only(2)
        held = root.version(2)
        collect(root, Retention(1))
        assert held.manifest().tensors
        assert [v.number for v in root.versions()] == [2, 5]
    collect(root, Retention(1))
    assert [v.number for v in root.versions()] == [5]
    with pytest.raises(VersionGone):
        held.manifest()


def test_a_lease_taken_after_the_decision_still_protects(root: Root, publish: Publish) -> None:
    """The reader saw the version before the floor, and its lease before the deletion."""
    with root.begin_session("run") as session:
        for step in range(3):
            publish(session, step)
    reader = Root.open(root.path)
    held = reader.version(2)
    with reader.lease("late", interval_s=0.01) as lease:
        lease.only(2)
        leases_at_start = collect(root, Retention(1), pause=lambda _: lease.only(2))
        assert leases_at_start.floor is not None
        assert held.manifest().tensors


def test_a_dead_lease_does_not_hold_for_ever(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session:
        for step in range(3):
            publish(session, step)
    lease = root.lease("dead", interval_s=3600)
    lease.only(2)
    report = collect(root, Retention(1))
    assert [v.number for v in root.versions()] == [4]
    assert report.deleted
    lease.release()


def test_dead_leases_and_old_counters_are_swept_without_other_garbage(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    for step in range(2):
        with root.begin_session("run") as session:
            publish(session, step)
    root.lease("dead", interval_s=3600).only(root.latest().number)
    with root.lease("alive", interval_s=0.005) as lease:
        lease.only(root.latest().number)
        assert not collect(root, Retention(9)).deleted
        assert [key[:12] for key in keys(store, "leases")] == ["leases/alive"]
        assert len(keys(store, "sessions")) == 1


def keys(store: MemoryStore, part: str) -> list[str]:
    return [entry.key[5:] for entry in store.list(f"root/{part}/", recursive=True)]


def test_moving_to_a_version_that_is_gone(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session, root.lease("engine", interval_s=3600) as lease:
        for step in range(3):
            publish(session, step)
        lease.only(4)
        collect(Root.open(root.path), Retention(1))
        with pytest.raises(VersionGone):
            lease.hold(2)
        assert lease.versions == frozenset({4})


def test_a_joiner_stops_a_collection_and_says_who(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session:
        for step in range(3):
            publish(session, step)
        session.open_attempt(9)
        session.open_attempt(10)  # the one before is garbage now
    with root.lease("joiner", interval_s=0.005):
        report = collect(root, Retention(1))
    assert report.joining == ("joiner",)
    assert not report.deleted
    assert len(root.versions()) == 3


def test_what_another_collection_lets_go_meanwhile_has_its_own_wait(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    """While one collection waits, a reader joins and chooses a version that another one, which looked
    at the leases before, lets go."""
    with root.begin_session("run") as session:
        publish(session, 1)
        publish(session, 2)
    reader, other = Root.open(root.path), Root.open(root.path)
    joined: list[tuple[Lease, Version]] = []

    def meanwhile(_: float) -> None:
        joined.append((reader.lease("late", interval_s=0.005), reader.latest()))
        with other.begin_session("run") as session:
            newest = publish(session, 3).number

        def let_go(tip: Tip) -> Floor:
            name, number, prev = other.log.base_fields(tip)
            floor = Floor(root=name, number=number, prev=prev, after=tip.standing, floor=newest)
            return stand(tip, floor)

        other.log.append(let_go)

    assert collect(root, Retention(1), pause=meanwhile).deleted
    lease, chosen = joined[0]
    assert chosen.step == 2
    with lease:
        lease.only(chosen.number)
        assert chosen.manifest().tensors
    collect(root, Retention(1))
    assert not any(chosen.record.attempt in name for name in names(store))


def test_attempts_are_swept_by_what_the_log_says(
    root: Root, store: MemoryStore, publish: Publish, write: Write
) -> None:
    with root.begin_session("run") as session:
        publish(session, 1)
        dead = session.open_attempt(2)
        write(dead, 2)
        live = session.open_attempt(3)
        write(live, 3)
        collect(root, Retention(1))
        left = {key.split("/")[3] for key in names(store)}
        assert dead.directory.name not in left
        assert live.directory.name in left
        assert live.commit(timeout=5).manifest().tensors
        last = session.open_attempt(4)
    with Root.open(root.path).begin_session("run") as other:
        publish(other, 5)
        collect(root, Retention(1))
    left = {key.split("/")[3] for key in names(store)}
    assert last.directory.name not in left
    assert len(left) == 1


def test_a_session_that_began_after_the_log_was_read_is_left_alone(
    root: Root, publish: Publish, write: Write
) -> None:
    """Between reading the log and listing the objects a new publisher may have come."""
    with root.begin_session("run") as session:
        publish(session, 1)
    seen = root.log.state()
    with Root.open(root.path).begin_session("run") as other:
        live = other.open_attempt(2)
        write(live, 2)
        assert find_garbage(root.place, seen.versions, seen.standing, protected={}) == []
        assert live.commit(timeout=5).manifest().tensors


def test_foreign_names_are_never_touched(root: Root, store: MemoryStore, publish: Publish) -> None:
    foreign = ["root/data/notes.txt", "root/data/run/keep/x", "root/model.safetensors", "other/x"]
    for key in foreign:
        store.write(key, memoryview(b"mine"))
    with root.begin_session("run") as session:
        for step in range(3):
            publish(session, step)
    collect(root, Retention(1))
    assert all(store.stat(key).size == 4 for key in foreign)


def test_nothing_is_deleted_without_the_marker_or_a_manifest(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run") as session:
        for step in range(3):
            publish(session, step)
    before = names(store)
    kept = root.latest().record.manifest.name
    manifest = bytes(store.read(f"root/{kept}", 0, 1 << 20).data)
    store.delete(f"root/{kept}")
    with pytest.raises(IntegrityError, match="missing"):
        collect(root, Retention(1))
    store.write(f"root/{kept}", memoryview(manifest))
    store.delete("root/wstore.json")
    with pytest.raises(IntegrityError, match="marker"):
        collect(root, Retention(1))
    assert names(store) == before


def test_a_release_is_not_held_up_by_a_renewal_that_hangs(
    store: MemoryStore, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wstore_transports.versions.heartbeat._CLOSE_S", 0.02)
    monkeypatch.setattr("wstore_transports.versions.leases._RELEASE_S", 0.02)
    gate, hanging = threading.Event(), threading.Event()

    class Hanging(Wrapper):
        armed = False

        def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
            if self.armed and call.op == "write":
                hanging.set()
                assert gate.wait(30)
            return run()

    way = Hanging(store)
    lease = Root.open(StoragePath(root.path.url, store=way)).lease("engine", interval_s=0.01)
    way.armed = True
    try:
        assert hanging.wait(30)
        lease.release()
        lease.release()
        assert keys(store, "leases")
    finally:
        gate.set()
    deadline = time.monotonic() + 30
    while keys(store, "leases"):  # removed after the write that came late
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_probes_left_behind_are_swept_once_they_are_old(
    root: Root, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, other = f"root/probe-{'0a' * 16}", "root/probe-mine"
    for key in (left, other):
        store.write(key, memoryview(b"first"))

    def there() -> set[str]:
        return {entry.key for entry in store.list("root/", recursive=False)}

    collect(root, Retention(1))
    assert {left, other} <= there()
    monkeypatch.setattr("wstore_transports.versions.garbage.PROBE_S", 0.0)
    collect(root, Retention(1))
    assert left not in there()
    assert other in there()


def test_a_session_that_begins_during_a_collection_keeps_its_announcements(
    root: Root, write: Write
) -> None:
    """The trainer starts anew while a collection of many versions waits: its ranks must find each other."""
    with root.begin_session("run", ranks=2, launch="a") as zero:
        one = root.join_session("run", rank=1, ranks=2, launch="a", timeout=9)
        for value in range(3):
            attempts = [session.open_attempt(value, timeout=9) for session in (zero, one)]
            for attempt in attempts:
                write(attempt, value)
            for attempt in attempts:
                attempt.commit(timeout=9)

    def start_again(seconds: float) -> None:
        started.append(root.begin_session("run", ranks=2, launch="b"))
        started[0].open_attempt(3)

    started: list[PublishSession] = []
    reader = Root.open(root.path)
    with reader.lease("reader", interval_s=3600):  # so that the collection waits
        collect(reader, Retention(3), pause=start_again)
    with started[0]:
        other = root.join_session("run", rank=1, ranks=2, launch="b", timeout=9)
        assert other.open_attempt(3, timeout=0).opened.index == 1
