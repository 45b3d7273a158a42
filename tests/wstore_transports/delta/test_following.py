"""A trainer and its engines over one root: every way from version to version."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.delta.models import copies, equal, model, train
from wstore.errors import IntegrityError, InvalidArgument, NoSpace, WaitTimeout
from wstore.path import StoragePath
from wstore_codecs.journal import Journal
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Shard, Subscriber
from wstore_transports.errors import PublisherLost, RunEnded, VersionGone
from wstore_transports.versions import Retention, Root, collect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights


def test_each_version_arrives_bit_for_bit(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix(), anchor_every=2) as publisher:
        publisher.publish(10, weights)
        first = publisher.flush()
        assert first is not None
        assert first.kind == "full"
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        assert equal(state, weights)
        assert state["head"] is state["embed"]
        for step in (11, 12, 12, 5):
            train(weights, step)
            report = publisher.publish(step, weights)
            assert (report.kind, report.base) == ("delta", engine.held)
            assert 0 < report.density < 0.1
            done = publisher.flush()
            assert done is not None
            applied = engine.sync(state)
            assert (applied.version, applied.step, applied.digest) == (
                done.version,
                step,
                done.digest,
            )
            assert equal(state, weights)
            assert weights_digest(state) == done.digest
    with pytest.raises(RunEnded):
        engine.wait(timeout=5)


@pytest.mark.parametrize("form", ["planes", "safetensors"])
def test_an_engine_that_lags_and_one_that_joins(tmp_path: Path, form: str) -> None:
    """Five versions in one pass, and whole weights with the deltas after them."""
    weights = model()
    with Publisher(tmp_path.as_posix(), anchor_every=3, anchor_codec=form) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        late = Subscriber(tmp_path.as_posix())
        state = late.load()
        for step in range(1, 6):
            train(weights, step)
            publisher.publish(step, weights)
            publisher.flush()
        report = late.sync(state)
        assert report.versions == 5
        assert equal(state, weights)
        joins = Subscriber(tmp_path.as_posix())
        assert equal(joins.load(), weights)
        other = Subscriber(tmp_path.as_posix())
        fresh = copies(model(1))
        assert other.sync(fresh).versions == 0
        assert equal(fresh, weights)
    root = Root.open(StoragePath(tmp_path.as_posix()))
    (anchor,) = root.log.state().anchors.values()
    names = [ref.name for ref in root.version(anchor.version).whole(anchor).objects]
    assert all(name.endswith(".safetensors") == (form == "safetensors") for name in names)
    for version in root.versions():
        loaded = Subscriber(tmp_path.as_posix()).load(version.number)
        assert weights_digest(loaded) == version.digest


def test_slices_names_and_tied_names_apart(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        part: Weights = engine.load(
            names=["embed", "norm"], box={"embed": (slice(100, 900), slice(3, 200))}
        )
        state: dict[str, object] = dict.fromkeys(name for name in weights if name != "head")
        state["norm"] = part["norm"]
        state["embed"] = Shard(part["embed"], (1000, 300), (100, 3))
        apart = Subscriber(tmp_path.as_posix())
        copy: Weights = apart.load()
        copy["head"] = copy["embed"].copy()
        for step in range(1, 4):
            train(weights, step)
            publisher.publish(step, weights)
            publisher.flush()
            engine.sync(state)  # type: ignore[arg-type]
            apart.sync(copy)
            assert part["embed"].tobytes() == weights["embed"][100:900, 3:200].tobytes()
            assert part["norm"].tobytes() == weights["norm"].tobytes()
            assert equal(copy, weights)


def test_nothing_changes_when_the_memory_is_not_what_is_held(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        staged = engine.prefetch()
        state["embed"][3, 4] += 1
        before = copies(state)
        with pytest.raises(IntegrityError, match="embed"):
            engine.apply(staged, state)
        assert equal(state, before)
        assert engine.held == 2
        state["embed"][...] = model()["embed"]
        engine.apply(staged, state)
        assert equal(state, weights)
        with pytest.raises(InvalidArgument, match="held"):
            engine.prefetch()


def test_undo_that_does_not_fit_is_refused_before_anything(tmp_path: Path) -> None:
    """`auto:max` deltas keep their changes for the undo; without room the weights stay."""
    weights = model()
    with Publisher(tmp_path.as_posix(), codec="context") as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix(), journal=Journal(memory_bytes=16))
        state = engine.load()
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        before = copies(state)
        with pytest.raises(NoSpace, match="undoing"):
            engine.sync(state)
        assert equal(state, before)
        roomy = Subscriber(tmp_path.as_posix(), journal=Journal(memory_bytes=16, spill=tmp_path))
        old = roomy.load(2)
        roomy.sync(old)
        assert equal(old, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm"), "without an entry: 'norm'"),
        (lambda state: state.update(extra=np.zeros(3)), "no tensor for: 'extra'"),
        (lambda state: state.update(norm=np.zeros(8, np.float32)), "norm"),
        (lambda state: state.update(norm=np.zeros(7)), "F64"),
    ],
)
def test_an_engine_with_other_tensors(tmp_path: Path, change: object, message: str) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        change(state)  # type: ignore[operator]
        with pytest.raises(InvalidArgument, match=message):
            engine.sync(state)


def test_version_gone_begins_again_from_an_anchor(tmp_path: Path) -> None:
    """A reader that was left behind by retention keeps its weights until it has the newest ones."""
    root = Root.create(StoragePath(tmp_path.as_posix()), lease_s=0.2)
    weights = model()
    with Publisher(tmp_path.as_posix(), anchor_every=2) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        for step in range(1, 7):
            train(weights, step)
            publisher.publish(step, weights)
            publisher.flush()
        collect(root, Retention(1))
        with pytest.raises(VersionGone):
            root.version(3)
        with pytest.raises(VersionGone):
            engine.sync(state, 3)
        assert equal(state, model())
        assert engine.sync(state).versions == 0
        assert equal(state, weights)


def test_parts_are_read_while_the_version_is_written(tmp_path: Path) -> None:
    """With the trainer in mid-version, the engine has read what is there; the rest comes with the commit."""
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        train(weights, 1, share=0.5)
        done = threading.Event()

        def follow() -> None:
            engine.sync(state, timeout=60)
            done.set()

        thread = threading.Thread(target=follow)
        with publisher.version(1) as version:
            thread.start()
            for name, array in weights.items():
                version.add(name, array)
            assert not done.wait(0.3)
        thread.join()
        assert equal(state, weights)
        assert version.report.kind == "delta"


def test_an_aborted_attempt_that_was_read_ahead_leaves_nothing(tmp_path: Path) -> None:
    weights = model()
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        state = engine.load()
        train(weights, 1)
        with pytest.raises(WaitTimeout):  # noqa: SIM117, PT012
            with publisher.version(1) as version:
                version.add("embed", weights["embed"])
                engine.sync(state, timeout=0.5)
        assert equal(state, model())
        train(weights, 2)
        publisher.publish(2, weights)
        publisher.flush()
        engine.sync(state)
        assert equal(state, weights)


def test_a_publisher_that_is_gone_is_told_from_one_that_has_ended(tmp_path: Path) -> None:
    weights = model()
    publisher = Publisher(tmp_path.as_posix())
    publisher.publish(0, weights)
    publisher.flush()
    publisher.close()
    engine = Subscriber(tmp_path.as_posix(), dead_after_s=0.3)
    state = engine.load()
    with pytest.raises(PublisherLost):
        engine.sync(state, timeout=30)
    assert equal(state, weights)
    with pytest.raises(PublisherLost):
        engine.wait(timeout=30)


def test_a_state_that_grows_is_filled(tmp_path: Path) -> None:
    """Deltas say nothing of a tensor that was not held before: it comes whole."""
    weights = {"a": np.zeros((300, 300), np.float32), "b": np.full((300, 300), 7, np.float32)}
    with Publisher(tmp_path.as_posix()) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(tmp_path.as_posix())
        a, b = np.ones((300, 300), np.float32), np.ones((300, 300), np.float32)
        engine.sync({"a": a, "b": None})
        weights["a"] += 1
        publisher.publish(1, weights)
        publisher.flush()
        engine.sync({"a": a, "b": b})
        assert equal({"a": a, "b": b}, weights)
        weights["a"] += 1
        publisher.publish(2, weights)
        publisher.flush()
        with pytest.raises(InvalidArgument, match="share memory"):
            Subscriber(tmp_path.as_posix()).sync({"a": a, "b": a})


def test_deltas_that_replace_all_need_no_room_for_undo_when_loading(tmp_path: Path) -> None:
    weights = {"w": np.zeros((300, 300), np.float32)}
    rng = np.random.default_rng(0)
    with Publisher(tmp_path.as_posix()) as publisher:
        for step in range(3):
            publisher.publish(step, weights)
            publisher.flush()
            weights["w"][...] = rng.standard_normal((300, 300))
        tight = Journal(memory_bytes=0)
        engine = Subscriber(tmp_path.as_posix(), journal=tight)
        state = engine.load()
        publisher.publish(3, weights)
        publisher.flush()
        with pytest.raises(NoSpace):
            engine.sync(state)
        engine = Subscriber(tmp_path.as_posix())
        assert engine.sync(state).version == publisher.root.latest().number
        assert equal(state, weights)
