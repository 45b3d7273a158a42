"""Sessions and attempts: fencing, several ranks, what must not be committed, and how a wait ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from wstore.errors import (
    AccessDenied,
    Cancelled,
    IntegrityError,
    InvalidArgument,
    Unavailable,
    WaitTimeout,
)
from wstore.path import StoragePath
from wstore.stores.wrap import Fault, Faults, fail
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.checkpoint import CheckpointReader
from wstore_transports.errors import AttemptAborted, Fenced, PublisherLost, RootError, RunEnded
from wstore_transports.versions import Block, ObjectRef, Root, Spec, Tensor
from wstore_transports.versions.documents import Abort, Weights
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.errors import WStoreError
    from wstore.stores.memory import MemoryStore
    from wstore_transports.versions import Attempt, PublishSession, Version

    Publish = Callable[[PublishSession, int], Version]
    Write = Callable[[Attempt, int], None]


def again(root: Root) -> Root:
    return Root.open(root.path)


def test_versions_grow_and_steps_are_labels(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session:
        versions = [publish(session, step) for step in (5, 5, 2)]
    assert [v.number for v in versions] == [2, 3, 4]
    assert [v.step for v in again(root).versions()] == [5, 5, 2]
    assert again(root).latest().record == versions[-1].record


def test_what_no_document_can_say_is_refused_and_the_root_goes_on(
    root: Root, publish: Publish
) -> None:
    with pytest.raises(InvalidArgument, match="launch"):
        again(root).begin_session("run", launch="x" * 201)
    with root.begin_session("run") as session:
        for step in (-(1 << 53) - 1, 1 << 60):
            with pytest.raises(InvalidArgument, match="step"):
                session.open_attempt(step)
        with pytest.raises(InvalidArgument, match="base"):
            session.open_attempt(1, kind="delta", base=-1)
        session.open_attempt(1 << 53)
        published = publish(session, 7)
    assert again(root).latest().record == published.record


def test_an_older_session_is_fenced(root: Root, write: Write, publish: Publish) -> None:
    old = root.begin_session("run")
    attempt = old.open_attempt(1)
    write(attempt, 1)
    with again(root).begin_session("run") as new:
        with pytest.raises(Fenced):
            attempt.commit(timeout=5)
        with pytest.raises(Fenced):
            old.open_attempt(2)
        assert publish(new, 3).number == 3
    old.close()


def test_ranks_meet_through_the_store_alone(root: Root, write: Write) -> None:
    ranks, versions, errors = 4, [], []

    def work(rank: int) -> None:
        try:
            mine = again(root)
            kind = {"ranks": ranks, "launch": "job-1"}
            if rank == 0:
                session = mine.begin_session("run", ranks=ranks, launch="job-1")
            else:
                session = mine.join_session(
                    "run", rank=rank, ranks=ranks, launch=str(kind["launch"]), timeout=60
                )
            for step in range(3):
                with session.open_attempt(step, timeout=60) as attempt:
                    write(attempt, step)
                    versions.append(attempt.commit(timeout=60).number)
            session.close()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(versions) == [2] * ranks + [3] * ranks + [4] * ranks
    tensor = root.latest().manifest().tensors["w"]
    assert [block.origin for block in tensor.blocks] == [[rank, 0] for rank in range(ranks)]


def two_ranks(root: Root) -> tuple[PublishSession, PublishSession]:
    zero = root.begin_session("run", ranks=2, launch="job")
    one = again(root).join_session("run", rank=1, ranks=2, launch="job", timeout=5)
    return zero, one


def test_a_rank_that_gives_up_is_named_and_the_next_attempt_works(root: Root, write: Write) -> None:
    zero, one = two_ranks(root)
    first, other = zero.open_attempt(1), one.open_attempt(1)
    write(first, 1)
    other.abort("disk full")
    with pytest.raises(AttemptAborted, match="rank 1 gave up: disk full"):
        first.commit(timeout=5)
    with pytest.raises(AttemptAborted, match="disk full"):
        other.commit(timeout=5)
    first, other = zero.open_attempt(2), one.open_attempt(2)
    assert isinstance(zero.last, Abort)
    assert isinstance(one.last, Abort)
    write(other, 2)
    write(first, 2)
    assert first.commit(timeout=5).number == other.commit(timeout=5).number
    zero.close()


def test_a_missing_rank_is_named(root: Root, write: Write) -> None:
    zero, _ = two_ranks(root)
    attempt = zero.open_attempt(1)
    write(attempt, 1)
    with pytest.raises(WaitTimeout, match=r"no done marker of 1 of 2 ranks: 1"):
        attempt.commit(timeout=0.1)
    zero.close()


def test_an_attempt_left_open_is_settled_by_the_next(root: Root, write: Write) -> None:
    with root.begin_session("run") as session:
        session.open_attempt(1)
        second = session.open_attempt(2)
        assert isinstance(session.last, Abort)
        write(second, 2)
        second.commit(timeout=5)
        session.open_attempt(3)
        assert isinstance(session.last, Weights)
        session.end()
        with pytest.raises(RootError):
            session.open_attempt(4)


def test_several_ranks_need_a_launch(root: Root) -> None:
    with pytest.raises(InvalidArgument, match="launch"):
        root.begin_session("run", ranks=2)
    with pytest.raises(InvalidArgument, match="run"):
        root.begin_session("../run")


def test_ranks_that_disagree_are_told(root: Root) -> None:
    zero, one = two_ranks(root)
    zero.open_attempt(1)
    with pytest.raises(InvalidArgument, match="rank 0 opened"):
        one.open_attempt(2)
    zero.close()


def contribution(attempt: Attempt, **changes: object) -> tuple[list[ObjectRef], dict[str, Tensor]]:
    name = f"r{attempt.rank:05d}.bin"
    attempt.path(name).write_file(b"\0" * 16)
    digest = hash_of(b"\0" * 16)
    block = Block(
        origin=[0, 0], extent=[1, 4], object=0, offset=0, nbytes=16, hash=digest, digest="0" * 32
    )
    block = msgspec.structs.replace(block, **changes)
    ref = ObjectRef(name=attempt.object_name(name), size=16, hash=digest)
    return [ref], {"w": Tensor(dtype="I32", shape=[1, 4], blocks=[block])}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"extent": [1, 3], "nbytes": 12}, "hold 3 of its 4 elements"),
        ({"origin": [0, 1]}, "not a box"),
        ({"nbytes": 12}, "has 12 bytes"),
        ({"offset": 8}, "leaves its object"),
        ({"object": 1}, "lies in object 1 of 1"),
        ({"hash": ""}, "no hash"),
        ({"digest": ""}, "no digest"),
        ({"encoding": "same"}, "belongs in a delta"),
    ],
)
def test_what_is_not_whole_is_not_committed(
    root: Root, changes: dict[str, object], why: str
) -> None:
    with root.begin_session("run") as session:
        attempt = session.open_attempt(1)
        attempt.done(*contribution(attempt, **changes))
        with pytest.raises(AttemptAborted, match=why):
            attempt.commit(timeout=5)
    assert again(root).log.known.standing.latest == 0


def test_the_inventory_must_be_whole(root: Root) -> None:
    spec = Spec(dtype="I32", shape=[1, 4])
    with root.begin_session("run") as session:
        attempt = session.open_attempt(1, inventory={"w": spec, "lm_head": spec})
        attempt.done(*contribution(attempt))
        with pytest.raises(
            AttemptAborted, match=r"1 tensors of the inventory are missing.*lm_head"
        ):
            attempt.commit(timeout=5)


def test_an_object_that_was_not_written_is_found_before_done(root: Root) -> None:
    with root.begin_session("run") as session:
        attempt = session.open_attempt(1)
        objects, tensors = contribution(attempt)
        attempt.path("r00000.bin").remove()
        with pytest.raises(IntegrityError, match="never written"):
            attempt.done(objects, tensors)


def test_a_shared_object_that_is_gone_is_found_before_done(root: Root, publish: Publish) -> None:
    with root.begin_session("run") as session:
        publish(session, 1)
        attempt = session.open_attempt(2)
        shared = attempt.shared()
        assert shared is not None
        root.object(shared.objects[0].name).remove()
        with pytest.raises(IntegrityError, match="of an earlier version is missing"):
            attempt.done(shared.objects, shared.tensors)


def test_a_rank_writes_only_its_own_names(root: Root) -> None:
    with root.begin_session("run") as session:
        attempt = session.open_attempt(1)
        for name in ("r00001.x", "x", "r00000.done.json", "r00000./x", "open.json"):
            with pytest.raises(InvalidArgument):
                attempt.path(name)


def test_an_exception_inside_aborts(root: Root) -> None:
    with root.begin_session("run") as session:
        with pytest.raises(KeyError), session.open_attempt(1) as attempt:
            raise KeyError("trainer")
        assert isinstance(attempt.outcome(), Abort)


def test_a_wait_ends_in_the_way_that_fits(root: Root, publish: Publish) -> None:
    with pytest.raises(WaitTimeout):
        root.wait(timeout=0.05)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        root.wait(timeout=5, cancel=cancel)
    session = root.begin_session("run", interval_s=3600)
    version = publish(session, 1)
    assert again(root).wait(timeout=5).number == version.number
    with pytest.raises(PublisherLost):
        again(root).wait(version.number, timeout=60, dead_after_s=0.05)
    session.end()
    with pytest.raises(RunEnded):
        again(root).wait(version.number, timeout=60)


def test_a_wait_outlasts_a_store_that_is_away_for_a_while(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run") as session:
        version = publish(session, 1)

    def reader(error: WStoreError, times: int) -> Root:
        fault = Fault(
            fail(lambda: error), lambda call: call.key.startswith("root/log/"), times=times
        )
        return Root.open(StoragePath(root.path.url, store=Faults(store, [fault])))

    assert reader(Unavailable("busy"), 3).wait(timeout=60).number == version.number
    with pytest.raises(WaitTimeout, match="busy"):
        reader(Unavailable("busy"), 10**9).wait(timeout=0.05)
    with pytest.raises(AccessDenied):
        reader(AccessDenied("no"), 1).wait(timeout=60)


def test_the_publisher_knows_its_manifest_and_reads_none(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    """What it committed it can go on from, though nobody could read it; readers still check it."""
    with root.begin_session("run") as session:
        version = publish(session, 1)
        stored = again(root).latest().manifest()
        assert version.manifest() == stored
        store.delete(f"root/{version.record.manifest.name}")
        with session.open_attempt(2) as attempt:
            assert attempt.shared() == stored
        with pytest.raises(IntegrityError, match="missing"):
            again(root).latest().manifest()


def test_the_session_counter_moves(root: Root, store: MemoryStore) -> None:
    with root.begin_session("run", interval_s=0.01):
        key = "root/sessions/000000000001.json"
        first = bytes(store.read(key, 0, 1000).data)
        moved = StoragePath("memory://test/root/sessions/000000000001.json", store=store)
        while moved.read_bytes() == first:
            pass


class Hung(Wrapper):
    """A way to a store that answers nothing from the log once it is told to hang."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()
        self.released = False

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        if not self.gate.is_set():
            self.gate.wait(30)
            self.released = True
        return run()


def test_a_store_that_hangs_holds_no_wait_beyond_its_end(root: Root, store: MemoryStore) -> None:
    hung = Hung(store)
    path = StoragePath(root.path.url, store=hung)
    reader, follower = Root.open(path), CheckpointReader(path)
    assert follower.root
    hung.gate.clear()
    try:
        with pytest.raises(WaitTimeout, match="no answer yet"):
            reader.wait(timeout=0.05)

        def cancelled(wait: Callable[[threading.Event], object]) -> None:
            cancel = threading.Event()
            threading.Timer(0.05, cancel.set).start()
            with pytest.raises(Cancelled):
                wait(cancel)

        cancelled(lambda c: reader.wait(timeout=60, cancel=c))
        cancelled(lambda c: follower.wait(timeout=60, cancel=c))
        cancelled(
            lambda c: reader.join_session("run", rank=1, ranks=2, launch="l", timeout=60, cancel=c)
        )
        assert not hung.released
    finally:
        hung.gate.set()


def test_a_copy_without_sessions_does_not_call_its_publisher_lost(
    root: Root, store: MemoryStore, publish: Publish
) -> None:
    with root.begin_session("run", interval_s=3600) as session:
        version = publish(session, 1)
        for entry in list(store.list("root/sessions/", recursive=True)):
            store.delete(entry.key)
        with pytest.raises(WaitTimeout):
            again(root).wait(version.number, timeout=0.3, dead_after_s=0.02)
        with pytest.raises(InvalidArgument, match="wait after -1"):
            again(root).wait(-1, timeout=5)
