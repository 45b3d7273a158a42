"""The trainer's side: what it refuses, what it survives, how ranks work together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.delta.models import BF16, copies, equal, model, train
from wstore.errors import InvalidArgument
from wstore.path import StoragePath
from wstore_transports.delta import Publisher, Shard, Subscriber
from wstore_transports.errors import AttemptAborted, Fenced
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("norm"), "missing: norm"),
        (lambda w: w.update(extra=np.zeros(3, np.float32)), "'extra' is new"),
        (lambda w: w.update(norm=np.zeros(8, np.float32)), "norm"),
        (lambda w: w.update(norm=np.zeros(7)), "F64"),
        (lambda w: w.pop("head"), "'head', tied to 'embed', is missing"),
        (lambda w: w.update(head=w["embed"] + w["embed"]), "tied"),
        (lambda w: w.update({"": np.zeros(1)}), "name"),
    ],
)
def test_tensors_that_change_are_refused_and_full_begins_anew(
    tmp_path: Path, change: Callable[[Weights], object], message: str
) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        changed = copies(weights)
        change(changed)
        with pytest.raises(InvalidArgument, match=message):
            publisher.publish(1, changed)
        publisher.publish(2, weights)  # the chain goes on
        assert publisher.flush() is not None
        if "" not in changed:
            report = publisher.publish(3, changed, full=True)
            assert report.kind == "full"
            publisher.flush()
            assert equal(Subscriber(tmp_path.as_posix()).load(), changed)


def test_an_empty_model(tmp_path: Path) -> None:
    with Publisher(tmp_path.as_posix()) as publisher:
        with pytest.raises(InvalidArgument, match="no tensors"):
            publisher.publish(0, {})
        publisher.publish(0, {"empty": np.zeros((0, 4), BF16)})
        publisher.flush()
        report = publisher.publish(1, {"empty": np.zeros((0, 4), BF16)})
        assert (report.changed, report.nbytes) == (0, 0)
        publisher.flush()
    assert Subscriber(tmp_path.as_posix()).load()["empty"].shape == (0, 4)


def test_nan_and_signed_zeros(tmp_path: Path) -> None:
    weights: Weights = {"w": np.full((300, 300), np.nan, BF16), "z": np.zeros(70_000, np.float32)}
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        weights["z"][::7] = -0.0
        weights["w"].view(np.uint16)[5] ^= 0x7  # other NaN payloads
        publisher.publish(1, weights)
        publisher.flush()
        engine.sync(state)
        assert equal(state, weights)


def test_the_caller_may_change_tensors_at_once(tmp_path: Path) -> None:
    """What was published is what was there when `publish` was called, also for whole weights."""
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        for step in range(4):
            published = copies(weights)
            publisher.publish(step, weights)
            train(weights, step)
            publisher.flush()
            assert equal(Subscriber(tmp_path.as_posix()).load(), published)


def test_two_publishers_fence_each_other(tmp_path: Path) -> None:
    weights = model()
    first = Publisher(tmp_path.as_posix())
    first.publish(0, weights)
    first.flush()
    with Publisher(tmp_path.as_posix()) as second:
        train(weights, 1)
        with pytest.raises(Fenced):
            first.publish(1, weights)
        assert second.resume(model())
        report = second.publish(1, weights)
        assert report.kind == "delta"
        second.flush()
        assert equal(Subscriber(tmp_path.as_posix()).load(), weights)
    first.close()


def test_a_resumed_run_goes_on_only_from_what_was_published(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        assert not publisher.resume(weights)
        publisher.publish(0, weights)
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
    engine = Subscriber(tmp_path.as_posix())
    state = engine.load()
    with Publisher(tmp_path.as_posix()) as publisher:
        assert publisher.resume(copies(weights))
        train(weights, 2)
        assert publisher.publish(2, weights).kind == "delta"
        publisher.flush()
        assert engine.sync(state).versions == 1
        assert equal(state, weights)
    with Publisher(tmp_path.as_posix()) as publisher:
        other = copies(weights)
        other["norm"][0] += 1
        assert not publisher.resume(other)
        assert publisher.publish(3, weights).kind == "full"
        publisher.flush()
        engine.sync(state)
        assert equal(state, weights)


def ranks_of(url: str, world: int, work: Callable[[int, Publisher], None], launch: str) -> None:
    """Run each rank on a thread of its own, and raise what one raised."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Publisher(
                url, rank=rank, world_size=world, launch=launch, anchor_every=2, timeout_s=30
            ) as publisher:
                work(rank, publisher)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def shards(weights: Weights, rank: int, world: int) -> dict[str, object]:
    """Rows of the large tensor for each rank, the rest held by all."""
    rows = np.array_split(np.arange(len(weights["embed"])), world)[rank]
    mine: dict[str, object] = {n: a for n, a in weights.items() if n not in ("embed", "head")}
    piece = weights["embed"][rows[0] : rows[-1] + 1]
    mine["embed"] = Shard(piece, weights["embed"].shape, (int(rows[0]), 0))
    return mine


def test_ranks_write_shards_and_store_replicas_once(tmp_path: Path) -> None:
    url, world = tmp_path.as_posix(), 3
    versions = [model()]
    for step in range(1, 5):
        versions.append(copies(versions[-1]))
        train(versions[-1], step)

    def work(rank: int, publisher: Publisher) -> None:
        for step, weights in enumerate(versions):
            publisher.publish(step, shards(weights, rank, world))  # type: ignore[arg-type]
            publisher.flush()

    ranks_of(url, world, work, "job-1")
    root = Root.open(StoragePath(url))
    found = root.versions()
    assert [version.kind for version in found] == ["full", *["delta"] * 4]
    engine = Subscriber(url)
    state = engine.load(found[0].number)
    engine.sync(state)
    del versions[-1]["head"]
    assert equal(state, versions[-1])
    assert equal(Subscriber(url).load(), versions[-1])
    assert root.log.state().anchors
    manifest = found[-1].manifest()
    owners = {
        manifest.objects[block.object].name.rpartition("/")[2][:6]
        for name, tensor in manifest.tensors.items()
        if name != "embed"
        for block in tensor.blocks
        if block.object >= 0
    }
    assert owners == {"r00000"}


def test_replicas_that_differ_fail_the_version(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = model()
    errors: list[str] = []

    def work(rank: int, publisher: Publisher) -> None:
        publisher.publish(0, shards(weights, rank, 2))  # type: ignore[arg-type]
        publisher.flush()
        mine = copies(weights)
        if rank:
            mine["norm"][2] += 1
        publisher.publish(1, shards(mine, rank, 2))  # type: ignore[arg-type]
        with pytest.raises(AttemptAborted, match=r"'norm'.*different bytes") as caught:
            publisher.flush()
        errors.append(str(caught.value))
        publisher.publish(2, shards(weights, rank, 2))  # type: ignore[arg-type]
        publisher.flush()

    ranks_of(url, 2, work, "job-2")
    assert len(errors) == 2
    del weights["head"]
    assert equal(Subscriber(url).load(), weights)
    assert [version.step for version in Root.open(StoragePath(url)).versions()] == [0, 2]


def test_a_rank_that_fails_fails_the_version_for_all(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = model()

    def work(rank: int, publisher: Publisher) -> None:
        publisher.publish(0, shards(weights, rank, 2))  # type: ignore[arg-type]
        publisher.flush()
        if rank:
            broken = shards(weights, rank, 2)
            del broken["norm"]
            with pytest.raises(InvalidArgument, match="norm"):
                publisher.publish(1, broken)  # type: ignore[arg-type]
        else:
            publisher.publish(1, shards(weights, rank, 2))  # type: ignore[arg-type]
            with pytest.raises(AttemptAborted, match="rank 1 gave up"):
                publisher.flush()
        publisher.publish(2, shards(weights, rank, 2))  # type: ignore[arg-type]
        publisher.flush()

    ranks_of(url, 2, work, "job-3")
    assert [version.step for version in Root.open(StoragePath(url)).versions()] == [0, 2]


def test_ranks_resume_together_or_begin_anew(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = model()

    def first(rank: int, publisher: Publisher) -> None:
        publisher.publish(0, shards(weights, rank, 2))  # type: ignore[arg-type]
        publisher.flush()

    ranks_of(url, 2, first, "job-4")
    after = copies(weights)
    train(after, 1)

    def again(rank: int, publisher: Publisher) -> None:
        assert publisher.resume(shards(weights, rank, 2))  # type: ignore[arg-type]
        report = publisher.publish(1, shards(after, rank, 2))  # type: ignore[arg-type]
        assert report.kind == "delta"
        publisher.flush()

    ranks_of(url, 2, again, "job-5")
    engine = Subscriber(url)
    state = engine.load(engine.latest().base)
    engine.sync(state)
    del after["head"]
    assert equal(state, after)

    def apart(rank: int, publisher: Publisher) -> None:
        mine = model(1) if rank else after
        assert publisher.resume(shards(mine, rank, 2)) == (rank == 0)  # type: ignore[arg-type]
        try:
            publisher.publish(2, shards(after, rank, 2))  # type: ignore[arg-type]
            publisher.flush()
        except AttemptAborted:
            pass
        publisher.publish(3, shards(after, rank, 2))  # type: ignore[arg-type]
        publisher.flush()

    ranks_of(url, 2, apart, "job-6")
    assert Subscriber(url).latest().kind == "full"
    assert equal(Subscriber(url).load(), after)


def test_an_anchor_proves_the_memory_not_what_is_remembered(tmp_path: Path) -> None:
    """A bit of the baseline that flips in a tensor which never changes reaches no reader."""
    weights = {"a": np.zeros((300, 300), np.float32), "b": np.zeros((300, 300), np.float32)}
    with Publisher(tmp_path.as_posix(), anchor_every=1) as publisher:
        publisher.publish(0, weights)
        weights["a"] += 1
        publisher.publish(1, weights)
        publisher.flush()
        baseline = publisher._chains[0]._baseline
        assert baseline is not None
        baseline.pieces["b"].array[0, 0] = 99
        weights["a"] += 1
        publisher.publish(2, weights)
    root = Root.open(StoragePath(tmp_path.as_posix()))
    assert not root.log.state().anchors
    del root
    first = Subscriber(tmp_path.as_posix()).load(3)
    assert first["b"][0, 0] == 0


def test_the_anchor_under_way_is_finished_before_the_end(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix(), anchor_every=1) as publisher:
        for step in range(3):
            train(weights, step)
            publisher.publish(step, weights)
        publisher.end()
        publisher.end()
    assert list(Root.open(StoragePath(tmp_path.as_posix())).log.state().anchors) == [3]
    with pytest.raises(InvalidArgument, match="closed"):
        publisher.publish(9, weights)


def test_resumed_ranks_may_hold_other_shards(tmp_path: Path) -> None:
    """Who stores what is decided anew: after one version that fails, whole weights come."""
    url = tmp_path.as_posix()
    weights = {name: np.full((300, 300), ord(name), np.float32) for name in "ab"}
    with Publisher(url) as publisher:
        publisher.publish(0, weights)
        publisher.flush()

    def work(rank: int, publisher: Publisher) -> None:
        mine = {"ab"[rank]: weights["ab"[rank]]}
        publisher.resume(mine)
        for step in (1, 2):
            try:
                publisher.publish(step, mine)
                publisher.flush()
            except AttemptAborted:
                assert step == 1

    ranks_of(url, 2, work, "job-7")
    assert Subscriber(url).latest().step == 2
    assert equal(Subscriber(url).load(), weights)


def test_resumed_ranks_that_lack_a_tensor_commit_nothing(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = {name: np.full((300, 300), ord(name), np.float32) for name in "abc"}

    def first(rank: int, publisher: Publisher) -> None:
        publisher.publish(0, {name: weights[name] for name in ("a", "bc")[rank]})
        publisher.flush()

    def again(rank: int, publisher: Publisher) -> None:
        mine = {"ab"[rank]: weights["ab"[rank]]}
        assert publisher.resume(mine)
        publisher.publish(1, mine)
        with pytest.raises(AttemptAborted, match=r"missing .'c'"):
            publisher.flush()

    ranks_of(url, 2, first, "job-8")
    ranks_of(url, 2, again, "job-9")
    assert Subscriber(url).latest().step == 0
