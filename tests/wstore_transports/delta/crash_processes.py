"""The processes of a crash run: ranks of a trainer, engines, collectors. Each may be killed at any moment.

What they have to tell they append to files of their own, a line at a time. A process that hangs ends itself
and leaves the stacks of its threads there.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import logging
import os
import random
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.wstore_transports.delta.crash_model import differences, part_of
from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Subscriber
from wstore_transports.errors import (
    AttemptAborted,
    Fenced,
    NoRoot,
    NoVersion,
    PublisherLost,
    RunEnded,
    VersionGone,
)
from wstore_transports.versions import Retention, Root, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights
    from wstore_transports.delta.reports import ApplyReport

_log = logging.getLogger("wstore.crashes")

FENCED, GAVE_UP, WRONG = 11, 12, 13
"""Exit codes: another trainer took over; a rank that needs to be started again with the others; a check that
failed, which no process may end with."""

CODECS = ("auto", "auto:max", "context")
"""Of deltas, to choose from."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process needs to know.

    Attributes:
        place: the root's URL, as this process sees it.
        files: where it tells.
        name: of the process; its files begin with it.
        seed: of its own chances.
        environment: variables of the process.
        limit_s: after so many seconds it counts as hanging.
    """

    place: str
    files: Path
    name: str
    seed: int
    environment: dict[str, str]
    limit_s: float

    def tell(self, **fields: object) -> None:
        """One line, whole or not at all."""
        line = json.dumps(fields).encode() + b"\n"
        file = os.open(self.files / f"{self.name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line)
        finally:
            os.close(file)


@dataclass(frozen=True, slots=True)
class Ranks:
    """A start of a trainer.

    Attributes:
        rank, ranks, launch: as `Publisher` takes them.
        versions: how many to publish until it ends.
        codec, anchor_every, keep: as `Publisher` takes them.
        timeout_s: how long ranks wait for one another.
    """

    rank: int
    ranks: int
    launch: str
    versions: int
    codec: str
    anchor_every: int
    keep: int
    timeout_s: float


def run(work: Callable[[Job], None], job: Job) -> None:
    """The main function of each process."""
    log = (job.files / f"{job.name}.log").open("a")
    faulthandler.dump_traceback_later(job.limit_s, exit=True, file=log)
    os.environ.update(job.environment)
    logging.basicConfig(stream=log, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        work(job)
    except Fenced:
        os._exit(FENCED)
    except BaseException:  # noqa: BLE001
        traceback.print_exc(file=log)
        log.flush()
        os._exit(WRONG)
    log.flush()
    os._exit(0)  # without waiting for what only an interpreter's end would wait for


def _gives_up(job: Job, error: WStoreError) -> None:
    _log.info("gives up: %s: %s", type(error).__name__, error)
    logging.shutdown()
    os._exit(GAVE_UP)


@dataclass(frozen=True, slots=True)
class Trainer:
    """Publishes step after step, from the newest version on."""

    ranks: Ranks

    def __call__(self, job: Job) -> None:
        mine, chance = self.ranks, random.Random(job.seed)
        try:
            publisher = Publisher(
                job.place,
                rank=mine.rank,
                world_size=mine.ranks,
                launch=mine.launch,
                codec=mine.codec,
                anchor_every=mine.anchor_every,
                keep=mine.keep,
                threads=2,
                memory_bytes=chance.choice([1 << 16, 1 << 26]),
                timeout_s=mine.timeout_s,
            )
        except Fenced:
            raise
        except WStoreError as error:
            _gives_up(job, error)
            return
        step = 0
        try:
            newest = publisher.root.latest()
            step = newest.step + 1
            if random.Random(mine.launch).random() < 0.75:  # all ranks alike
                resumed = publisher.resume(part_of(newest.step, mine.rank, mine.ranks))
                assert resumed, f"version {newest.number} is not step {newest.step}"
        except NoVersion:
            pass
        except Fenced:
            raise
        except WStoreError as error:
            if not _may_pass(error):
                raise
            _gives_up(job, error)
        for _ in range(mine.versions):
            step = self._publish(job, publisher, step, flush=chance.random() < 0.6)
        self._flush(job, publisher)
        publisher.end()
        publisher.close()

    def _publish(self, job: Job, publisher: Publisher, step: int, *, flush: bool) -> int:
        """One version, until it is there or this rank cannot go on alone. The step that comes next."""
        mine = self.ranks
        for _ in range(20):
            try:
                publisher.publish(step, part_of(step, mine.rank, mine.ranks))
                if flush:
                    self._flush(job, publisher)
            except Fenced:
                raise
            except AttemptAborted as error:
                _log.info("again: %s", error)
            except WStoreError as error:
                if mine.ranks > 1 or not _may_pass(error):
                    _gives_up(job, error)
                _log.info("again: %s", error)
                time.sleep(0.05)
            else:
                return step + 1
            step = self._next_step(job, publisher)
        raise AssertionError(f"step {step} was not published in 20 tries")

    def _next_step(self, job: Job, publisher: Publisher) -> int:
        try:
            return publisher.root.latest().step + 1
        except NoVersion:
            return 0
        except WStoreError as error:
            _gives_up(job, error)
            raise

    @staticmethod
    def _flush(job: Job, publisher: Publisher) -> None:
        """Tell what this rank is told of the newest version: it must be in the log from now on."""
        report = publisher.flush()
        if report is not None:
            job.tell(version=report.version, step=report.step, digest=report.digest)


def _may_pass(error: WStoreError) -> bool:
    """A store that is away, as its client or, of a mount whose server was killed, its kernel says it."""
    cause = error.__cause__
    away = isinstance(cause, OSError) and cause.errno in (errno.EIO, errno.ENOTCONN)
    return error.retryable or away or isinstance(error, VersionGone)


@dataclass(frozen=True, slots=True)
class Engine:
    """Follows until the run ends, and checks what it holds after whatever happened.

    Attributes:
        cache: a directory that it shares with the other engine; "" for none.
    """

    cache: str = ""

    def __call__(self, job: Job) -> None:
        chance = random.Random(job.seed)
        engine = Subscriber(
            job.place,
            reader_id=job.name,
            shared_cache=self.cache or None,
            threads=2,
            memory_bytes=chance.choice([1 << 14, 1 << 26]),
            dead_after_s=chance.choice([0.3, 2.0]),
        )
        state, step = self._load(job, engine)
        while True:
            before = engine.held
            try:
                report = self._next(engine, state, chance)
            except RunEnded:
                break
            except (PublisherLost, TimeoutError, VersionGone) as error:
                _log.info("keeps what it has: %s", error)
            except WStoreError as error:
                if not _may_pass(error):
                    raise
                _log.info("keeps what it has: %s", error)
                time.sleep(0.05)
            else:
                assert report.version > before, "a version that is older than the one held"
                step = report.step
                assert weights_digest(state) == report.digest
                job.tell(version=report.version, step=step, digest=report.digest, n=report.versions)
            wrong = differences(state, step)
            assert not wrong, f"not the tensors of step {step}: {wrong}"
        job.tell(end=engine.held, step=step, digest=weights_digest(state))
        engine.close()

    @staticmethod
    def _next(engine: Subscriber, state: Weights, chance: random.Random) -> ApplyReport:
        if chance.random() < 0.7:
            return engine.sync(state, timeout=2)
        engine.wait(timeout=2)
        with_state = state if chance.random() < 0.5 else None
        return engine.apply(engine.prefetch(state=with_state), state)

    @staticmethod
    def _load(job: Job, engine: Subscriber) -> tuple[Weights, int]:
        while True:
            try:
                engine.wait(after=0, timeout=5)
                state = engine.load()
                step = engine.version(engine.held).step
            except (NoRoot, NoVersion, VersionGone, TimeoutError) as error:
                _log.info("not yet: %s", error)
            except WStoreError as error:
                if not _may_pass(error):
                    raise
                _log.info("not yet: %s", error)
                time.sleep(0.05)
            else:
                wrong = differences(state, step)
                assert not wrong, f"not the tensors of step {step}: {wrong}"
                job.tell(version=engine.held, step=step, digest=weights_digest(state), n=0)
                return state, step


@dataclass(frozen=True, slots=True)
class Collector:
    """Lets go of all that it may, again and again."""

    def __call__(self, job: Job) -> None:
        chance = random.Random(job.seed)
        while True:
            try:
                root = Root.open(StoragePath(job.place))
                report = collect(root, Retention(chance.randint(1, 2)))
                job.tell(floor=report.floor, deleted=len(report.deleted))
            except NoRoot:
                pass
            except WStoreError as error:
                if not _may_pass(error):
                    raise
                _log.info("later: %s", error)
            time.sleep(chance.uniform(0.0, 0.2))
