"""Variants, the handshake elsewhere, mirrors, versions by URL, engines' layouts, the cache of a host."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.delta.models import copies, equal, model, train
from wstore.errors import IntegrityError, InvalidArgument
from wstore.path import StoragePath
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Shard, Subscriber
from wstore_transports.delta.blockwise import BlockwiseFp8
from wstore_transports.errors import GroupFailed, NoRoot
from wstore_transports.versions import Root, layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights


def test_a_variant_is_a_chain_of_its_own(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    rng = np.random.default_rng(0)
    weights = {
        "layer.weight": rng.standard_normal((256, 384)).astype(np.float32),
        "layer.bias": rng.standard_normal(256).astype(np.float32),
    }
    fp8 = BlockwiseFp8()
    with Publisher(url, variants={"fp8": fp8}) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine, quantised = Subscriber(url), Subscriber(url, variant="fp8")
        state, small = engine.load(), quantised.load()
        assert sorted(small) == ["layer.bias", "layer.weight", "layer.weight_scale_inv"]
        for step in (1, 2):
            for array in weights.values():
                array *= 1 + rng.standard_normal(array.shape).astype(np.float32) * 1e-2
            with publisher.version(step) as version:
                for name, array in weights.items():
                    version.add(name, array)
            assert len(version.reports) == 2
            publisher.flush()
            engine.sync(state)
            quantised.sync(small)
            assert equal(state, weights)
            made = dict(fp8("layer.weight", weights["layer.weight"]))
            assert equal(small, {"layer.bias": weights["layer.bias"], **made})
    with pytest.raises(InvalidArgument, match="variant"):
        Subscriber(url, variant="../x")


def test_the_handshake_at_another_place(tmp_path: Path) -> None:
    place, data = (tmp_path / "hand").as_posix(), (tmp_path / "data").as_posix()
    weights = model()
    engine = Subscriber(place)
    with pytest.raises(NoRoot):
        engine.latest()
    with Publisher(place, data_url=data) as publisher:
        publisher.publish(0, weights)
        done = publisher.flush()
        assert done is not None
        engine.wait(timeout=10)
        state = engine.load()
        train(weights, 1)
        publisher.publish(1, weights)
        done = publisher.flush()
        assert done is not None
        engine.sync(state)
        assert equal(state, weights)
        assert equal(Subscriber.at(done.url).load(), weights)
    assert not (tmp_path / "hand" / "data").exists()
    other = Publisher((tmp_path / "other").as_posix())
    other.publish(0, weights)
    other.close()
    pointer = tmp_path / "hand" / layout.POINTER
    pointer.write_bytes(pointer.read_bytes().replace(b"/data", b"/other"))
    with pytest.raises(IntegrityError):
        Subscriber(place).latest()


def test_a_version_by_url_waits_for_it(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = model()
    with pytest.raises(InvalidArgument, match="URL@N"):
        Subscriber.at(url)
    with Publisher(url) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber.at(f"{url}@3")
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(weights_digest(engine.load())))
        thread.start()
        time.sleep(0.1)
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        thread.join()
        assert found == [weights_digest(weights)]
        assert engine.held == 3


def test_engines_ask_for_cuts_from_the_next_anchor_on(tmp_path: Path) -> None:
    """The engine's rows are blocks of their own then, and an engine that lags goes across the change."""
    url = tmp_path.as_posix()
    weights = {"w": np.zeros((600, 500), np.float32), "b": np.zeros(5, np.float32)}
    rng = np.random.default_rng(0)

    def step(publisher: Publisher, number: int) -> None:
        for array in weights.values():
            array += rng.standard_normal(array.shape).astype(np.float32)
        publisher.publish(number, weights)
        publisher.flush()

    with Publisher(url, anchor_every=2) as publisher:
        step(publisher, 0)
        whole, half = Subscriber(url), Subscriber(url)
        held = whole.load()
        part: Weights = half.load(box={"w": (slice(0, 250),)})
        state = {"w": Shard(part["w"], (600, 500), (0, 0)), "b": part["b"]}
        half.register(state, "engine-0")
        lag = Subscriber(url)
        old = lag.load()
        for number in range(1, 6):
            step(publisher, number)
            half.sync(state)
            whole.sync(held)
            assert equal(held, weights)
            assert part["w"].tobytes() == weights["w"][:250].tobytes()
        lag.sync(old)
        assert equal(old, weights)
        assert equal(Subscriber(url).load(), weights)
    newest = Root.open(StoragePath(url)).latest().manifest()
    assert [block.extent for block in newest.tensors["w"].blocks] == [[250, 500], [350, 500]]


def test_layouts_of_an_earlier_run_are_not_used(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = {"w": np.zeros((600, 500), np.float32)}
    with Publisher(url) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engine = Subscriber(url)
        part = engine.load(box={"w": (slice(0, 250),)})
        engine.register({"w": Shard(part["w"], (600, 500), (0, 0))}, "engine-0")
    with Publisher(url, anchor_every=1) as publisher:
        for number in range(4):
            weights["w"] += 1
            publisher.publish(number, weights)
            publisher.flush()
    blocks = Root.open(StoragePath(url)).latest().manifest().tensors["w"].blocks
    assert len(blocks) == 1


class ThreadGroup:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.texts = [""] * size

    def rank(self, number: int) -> ThreadRank:
        return ThreadRank(self, number)


class ThreadRank:
    """One of them; a `Group`."""

    def __init__(self, group: ThreadGroup, number: int) -> None:
        self._group = group
        self.rank = number
        self.size = group.size

    def gather(self, text: str) -> list[str]:
        self._group.texts[self.rank] = text
        self._group.barrier.wait()
        found = list(self._group.texts)
        self._group.barrier.wait()
        return found


def test_ranks_of_an_engine_apply_together_or_not_at_all(tmp_path: Path) -> None:
    url = tmp_path.as_posix()
    weights = model()
    with Publisher(url) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        group = ThreadGroup(2)
        engines = [Subscriber(url, group=group.rank(number)) for number in range(2)]
        states = [Subscriber.load(engine) for engine in engines]
        train(weights, 1)
        publisher.publish(1, weights)
        publisher.flush()
        states[1]["norm"][0] += 1  # this rank cannot apply
        before = [copies(state) for state in states]
        errors = together(engines, states)
        assert [type(error) for error in errors] == [GroupFailed, IntegrityError]
        assert "rank 1: IntegrityError" in str(errors[0])
        assert all(map(equal, states, before))
        assert [engine.held for engine in engines] == [2, 2]
        states[1]["norm"][0] = model()["norm"][0]
        assert together(engines, states) == [None, None]
        assert all(equal(state, weights) for state in states)


def together(engines: list[Subscriber], states: Sequence[Weights]) -> list[BaseException | None]:
    """What each rank's `sync` raised."""
    errors: list[BaseException | None] = [None] * len(engines)

    def run(number: int) -> None:
        try:
            engines[number].sync(states[number], timeout=30)
        except BaseException as error:  # noqa: BLE001
            errors[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_engines_of_a_host_share_downloads(tmp_path: Path) -> None:
    url, cache = (tmp_path / "root").as_posix(), tmp_path / "cache"
    weights = model()
    with Publisher(url) as publisher:
        publisher.publish(0, weights)
        publisher.flush()
        engines = [Subscriber(url, shared_cache=cache) for _ in range(2)]
        states = [engine.load() for engine in engines]
        for step in (1, 2):
            train(weights, step)
            publisher.publish(step, weights)
            publisher.flush()
            assert together(engines, states) == [None, None]
            assert all(equal(state, weights) for state in states)
        # What is in the cache needs no store: the parts of the root are gone, and a third engine loads.
        for path in (tmp_path / "root" / "data").rglob("r00000.p*"):
            path.unlink()
        assert equal(Subscriber(url, shared_cache=cache).load(), weights)
