"""Processes whose main thread is interrupted at random moments, as by Ctrl-C, and goes on."""

from __future__ import annotations

import logging
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.wstore_transports.delta.crash_model import differences, digest_of, weights_of
from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Subscriber
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.wstore_transports.delta.crash_processes import Job

_log = logging.getLogger("wstore.crashes")


class Interrupter:
    """Raises KeyboardInterrupt at a random moment of a call that takes about so many seconds."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._usual_s = 0.05
        self._armed = False
        self.count = 0
        signal.signal(signal.SIGALRM, self._strike)

    def during(self, call: Callable[[], object]) -> None:
        """The call ends early, or not: `count` grows if it does."""
        started = time.monotonic()
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-4, 1.1 * self._usual_s))
            call()
            self._armed = False
        except KeyboardInterrupt:
            self.count += 1
        else:
            took_s = time.monotonic() - started
            self._usual_s += (took_s - self._usual_s) / 4
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _strike(self, signum: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class InterruptedEngine:
    """An engine that is interrupted while it comes to a version.

    Attributes:
        interrupts: how many.
        codec: of the deltas.
    """

    interrupts: int
    codec: str

    def __call__(self, job: Job) -> None:
        chance = random.Random(job.seed)
        interrupter = Interrupter(chance)
        with Publisher(job.place, codec=self.codec, anchor_every=3, threads=2) as publisher:
            publisher.publish(0, weights_of(0))
            publisher.flush()
            engine = Subscriber(job.place, threads=2, dead_after_s=600)
            state, at = engine.load(), 0
            step = 0
            while interrupter.count < self.interrupts:
                step += 1
                publisher.publish(step, weights_of(step), full=chance.random() < 0.2)
                publisher.flush()
                staged = engine.prefetch(state=state if chance.random() < 0.5 else None)
                interrupter.during(lambda: engine.apply(staged, state))  # noqa: B023
                held = engine.version(engine.held).step
                wrong = {one: differences(state, one) for one in (at, step)}
                assert not all(wrong.values()), f"neither step {at} nor {step}: {wrong}"
                assert not wrong[held], f"step {held} is held, and the memory is another: {wrong}"
                if held != step:
                    engine.sync(state)
                    assert not differences(state, step)
                at = step
            engine.close()
        job.tell(interrupts=interrupter.count, steps=step)


@dataclass(frozen=True, slots=True)
class InterruptedTrainer:
    """A trainer that is interrupted while it publishes, or waits for the commit, and goes on.

    Attributes:
        interrupts: how many.
    """

    interrupts: int

    def __call__(self, job: Job) -> None:
        chance = random.Random(job.seed)
        interrupter = Interrupter(chance)
        publisher = Publisher(job.place, anchor_every=3, threads=2, timeout_s=20)
        engine = Subscriber(job.place, threads=2, dead_after_s=600)
        publisher.publish(0, weights_of(0))
        publisher.flush()
        state = engine.load()
        step = 0
        while interrupter.count < self.interrupts:
            step += 1
            wait = chance.random() < 0.7

            def publish(wait: bool = wait, step: int = step) -> None:
                publisher.publish(step, weights_of(step))
                if wait:
                    publisher.flush()

            interrupter.during(publish)
            step += 1
            _insist(lambda: publisher.publish(step, weights_of(step)))  # noqa: B023
            _insist(publisher.flush)
            if engine.latest().step != step:  # it had been given up: said by one of those two
                _insist(lambda: publisher.publish(step, weights_of(step)))  # noqa: B023
                publisher.flush()
            report = engine.sync(state)
            assert report.step == step
            assert not differences(state, step)
        publisher.end()
        publisher.close()
        engine.close()
        _judge(job.place)
        job.tell(interrupts=interrupter.count, steps=step)


def _insist(call: Callable[[], object]) -> None:
    """It may say once what became of the version that was interrupted."""
    try:
        call()
    except WStoreError as error:
        _log.info("of the version before: %s", error)
        call()


def _judge(place: str) -> None:
    """Each version is right, and a delta to the one before."""
    root = Root.open(StoragePath(place))
    before = 0
    for version in root.versions():
        assert version.digest == digest_of(version.step)
        assert version.base in (0, before), f"version {version.number} branches off {version.base}"
        before = version.number
    for record in root.log.state().anchors.values():
        with Subscriber(place) as reader:
            loaded = reader.load(record.version)
        assert weights_digest(loaded) == root.version(record.version).digest
