"""Interrupts (Ctrl-C) in the middle of what an engine and a trainer do: all of it or nothing, and they go on."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tests.wstore_transports.delta.crash_model import weights_of
from tests.wstore_transports.delta.crash_processes import Job, run
from tests.wstore_transports.delta.crash_run import LOADED
from tests.wstore_transports.delta.interrupted_processes import (
    InterruptedEngine,
    InterruptedTrainer,
)
from tests.wstore_transports.forked import forked_after
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.base import Call, Wrapper
from wstore_transports.delta import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from wstore.stores.base import Store


def _run(work: Callable[[Job], None], place: str, files: Path, seed: int, limit_s: float) -> None:
    process = forked_after(LOADED).Process(
        target=run, args=(work, Job(place, files, "it", seed, {}, limit_s))
    )
    process.start()
    process.join(limit_s + 30)
    log = (files / "it.log").read_text()
    assert process.exitcode == 0, log[-6000:]


def test_an_engine_that_is_interrupted_holds_the_old_or_the_new(tmp_path: Path) -> None:
    _run(InterruptedEngine(3, "auto"), "memory://interrupted/engine", tmp_path, 1, 60)


def test_a_trainer_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    _run(InterruptedTrainer(3), "memory://interrupted/trainer", tmp_path, 1, 60)


class _Gate(Wrapper):
    """Holds the parts of versions back until it is opened."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self.open.set()

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        if call.op == "write" and ".p0" in call.key:
            assert self.open.wait(60)
        return run()


def test_a_flush_that_is_interrupted_may_be_called_again() -> None:
    """The version stays in flight: it is committed, and the next one is a delta to it."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    gate = _Gate(MemoryStore("interrupted"))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Publisher(StoragePath("memory://interrupted/root", store=gate)) as publisher:
            publisher.publish(0, weights_of(0))
            publisher.flush()
            for step in range(1, 4):
                gate.open.clear()
                publisher.publish(step, weights_of(step))
                for _ in range(2):
                    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                    with pytest.raises(KeyboardInterrupt):
                        publisher.flush()
                gate.open.set()
            publisher.flush()
            versions = publisher.root.versions()
            assert [version.step for version in versions] == [0, 1, 2, 3]
            numbers = [version.number for version in versions]
            assert [version.base for version in versions] == [0, *numbers[:-1]]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("codec", ["auto", "context"])
def test_an_engine_that_is_interrupted_often(tmp_path: Path, codec: str, seed: int) -> None:
    _run(InterruptedEngine(40, codec), f"memory://interrupted/{seed}", tmp_path, seed, 600)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_trainer_that_is_interrupted_often(tmp_path: Path, seed: int) -> None:
    _run(InterruptedTrainer(40), f"memory://interrupted/{seed}", tmp_path, seed, 600)
