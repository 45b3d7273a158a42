"""The cases of `delta.py` at one place: a store as a trainer and an engine reach it."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.delta_actors import Actor, Engine, Trainer
from benchmarks.delta_model import NOTHING
from benchmarks.delta_stages import Stages
from benchmarks.racing import note
from wstore.stores.base import MiB
from wstore_codecs.block import MAX_BLOCK_ELEMENTS
from wstore_transports.delta.spool import MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.delta_actors import Applied, Published
    from benchmarks.delta_model import Size
    from benchmarks.delta_stages import Sizes
    from benchmarks.racing import Row

BEHIND = 5
"""Versions that a late joiner is behind the anchor."""
PREFETCHES = 8
WAIT_S = (
    3.0  # so long an engine has waited when a version comes: it looks as rarely as it ever does
)

_BLOCKS = 4 * (os.cpu_count() or 1) * 2 * MAX_BLOCK_ELEMENTS
BUDGETS = {"trainer": MEMORY_BYTES + _BLOCKS, "engine": MEMORY_BYTES + 256 * MiB + _BLOCKS}
"""Bytes beside the weights (and the trainer's baseline): encoded weights, an engine's undo, and four blocks a
thread."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What took how long; `nbytes` where bytes moved."""

    place: str
    what: str
    rounds: int
    median_s: float
    least_s: float
    most_s: float
    nbytes: int = 0


class Place:
    """A root's home, and a trainer and an engine that use it.

    Attributes:
        extra: by "trainer" and "engine": the most bytes that following a version added.
    """

    def __init__(self, name: str, url: str, size: Size, rounds: int, seed: int) -> None:
        self.name = name
        self.url = url
        self.extra = {"trainer": 0, "engine": 0}
        self._size, self._rounds, self._seed = size, rounds, seed

    @contextmanager
    def actors(self) -> Iterator[None]:
        """Start both processes for the methods below."""
        note(f"{self.name}: starting a trainer and an engine")
        with (
            Actor(Trainer, self._size, self._seed) as self._trainer,
            Actor(Engine) as self._engine,
        ):
            yield

    def follow(self, *, versions: int) -> list[Timing]:
        """An engine follows, waiting for each version; then the engine's stages alone."""
        self._begin("follow")
        applied: list[tuple[Published, Applied]] = []
        for number in range(versions):
            note(f"{self.name}: version {number + 1} of {versions}")
            waiting = self._engine.begin(Engine.sync)
            self._trainer.do(Trainer.step)
            published = self._trainer.do(Trainer.publish)
            applied.append((published, waiting.result()))
        for published, reached in applied[1:]:  # the first also loads what all later ones use
            self.extra["trainer"] = max(self.extra["trainer"], published.extra)
            self.extra["engine"] = max(self.extra["engine"], reached.extra)
        totals = [reached.finished - published.started for published, reached in applied]
        nbytes = applied[-1][0].nbytes
        found = [
            self._timing("first delta", totals[:1]),
            self._timing("total", totals[1:], nbytes),
            self._timing("returned", [p.returned - p.started for p, _ in applied[1:]]),
            self._timing("committed", [p.committed - p.started for p, _ in applied[1:]]),
            self._timing("seen", [a.began - p.started for p, a in applied[1:]]),
            self._timing("pause", [a.seconds["apply"] for _, a in applied[1:]]),
        ]
        if len(totals) >= 10:
            found.append(self._timing("tenth delta", totals[9:10]))
        return [*found, *self._engine_alone()]

    @property
    def _late(self) -> str:
        return f"{self.url}/late"

    def late_joiner(self) -> list[Timing]:
        """An engine that joins some versions behind whole weights, and one that loads those alone."""
        url = self._late
        self._trainer.do(Trainer.open, url)
        anchor = self._trainer.do(Trainer.publish)
        for number in range(BEHIND):
            note(f"{self.name}: version {number + 1} of {BEHIND} for a late joiner")
            self._trainer.do(Trainer.step)
            self._trainer.do(Trainer.publish)
        late, alone = [], []
        for number in range(self._rounds):
            note(f"{self.name}: late joiner {number + 1} of {self._rounds}")
            late.append(_seconds(self._engine.do(Engine.load, url)))
            alone.append(_seconds(self._engine.do(Engine.load, url, anchor.version)))
        return [
            self._timing("late joiner", late),
            self._timing("anchor", alone, anchor.nbytes),
        ]

    def checkpoint(self) -> list[Timing]:
        """Full checkpoints of the same weights, read into the engine's live memory."""
        totals = []
        nbytes = 0
        for number in range(max(2, self._rounds // 2)):
            note(f"{self.name}: full checkpoint {number + 1}")
            url = f"{self.url}/checkpoint{number}"
            self._trainer.do(Trainer.step)
            waiting = self._engine.begin(Engine.read_checkpoint, url)
            written = self._trainer.do(Trainer.checkpoint, url)
            totals.append(waiting.result().finished - written.started)
            nbytes = written.nbytes
        return [self._timing("checkpoint", totals, nbytes)]

    def loops(self) -> list[Row]:
        """What a pure Python thread of the engine gets done beside reads of the last delta for the late joiner."""
        return list(self._engine.do(Engine.loops, self._late, max(5, self._rounds), self._seed))

    def beside_anchor(self) -> list[Timing]:
        """Prefetches of a version while the trainer uploads an anchor, and afterwards."""
        note(f"{self.name}: prefetches beside an anchor")
        self._begin("anchor", anchor_every=1)
        for _ in range(2):  # the anchor of a version goes with the delta after it
            self._trainer.do(Trainer.step)
            self._trainer.do(Trainer.publish)
        fetching = self._engine.begin(Engine.prefetches, PREFETCHES)
        anchored_at = self._trainer.do(Trainer.close)
        beside = [seconds for seconds, ended in fetching.result() if ended < anchored_at]
        without = [seconds for seconds, _ in self._engine.do(Engine.prefetches, PREFETCHES)]
        if not beside:
            raise SystemExit("the anchor was written before one prefetch had ended: give more data")
        return [
            self._timing("prefetch beside an anchor", beside),
            self._timing("prefetch", without),
        ]

    def _begin(self, name: str, anchor_every: int = 1000) -> None:
        """A root with whole weights that the engine has loaded."""
        url = f"{self.url}/{name}"
        self._trainer.do(Trainer.open, url, "auto", anchor_every)
        self._trainer.do(Trainer.publish)
        self._engine.do(Engine.load, url)

    def _engine_alone(self) -> list[Timing]:
        stages: dict[str, list[float]] = {"fetch": [], "check": [], "apply": []}
        for number in range(self._rounds):
            note(f"{self.name}: stages of the engine alone, {number + 1} of {self._rounds}")
            self._trainer.do(Trainer.step)
            self._trainer.do(Trainer.publish)
            reached = self._engine.do(Engine.sync)
            for stage, seconds in stages.items():
                seconds.append(reached.seconds[stage])
        return [self._timing(f"{stage} alone", seconds) for stage, seconds in stages.items()]

    def _timing(self, what: str, seconds: Sequence[float], nbytes: int = 0) -> Timing:
        return timing(self.name, what, seconds, nbytes)


def timing(place: str, what: str, seconds: Sequence[float], nbytes: int = 0) -> Timing:
    """The medians of one case."""
    middle = statistics.median(seconds)
    return Timing(place, what, len(seconds), middle, min(seconds), max(seconds), nbytes)


def sizes_of(size: Size, seed: int) -> list[Sizes]:
    """Bytes of a step of the model, and of one of a real AdamW run."""
    note("sizes")
    with Actor(Stages, size, seed) as stages:
        return [stages.do(Stages.sizes), stages.do(Stages.real_sizes)]


def stages_alone(size: Size, rounds: int, seed: int, places: Sequence[Place]) -> list[Timing]:
    """The trainer's stages and the wait for a commit, with nothing else running."""
    found = []
    with Actor(Stages, size, seed) as stages:
        note("encode and upload alone")
        encode = [stages.do(Stages.encode) for _ in range(rounds)]
        for place in places:
            upload = [stages.do(Stages.upload, f"{place.url}/alone{n}") for n in range(rounds)]
            found.append(timing(place.name, "encode alone", encode))
            found.append(timing(place.name, "upload alone", upload))
    with Actor(Trainer, NOTHING, seed) as trainer, Actor(Engine) as engine:
        for place in places:
            note(f"{place.name}: commit alone")
            found.append(_commit_alone(place, trainer, engine, rounds))
    return found


def _commit_alone(
    place: Place, trainer: Actor[Trainer], engine: Actor[Engine], rounds: int
) -> Timing:
    """From `publish` of a model of almost nothing until an engine that waits has seen it."""
    url = f"{place.url}/nothing"
    trainer.do(Trainer.open, url)
    trainer.do(Trainer.publish)
    engine.do(Engine.load, url)
    seconds = []
    for number in range(rounds + 1):
        waiting = engine.begin(Engine.sync)
        time.sleep(WAIT_S if number else 0.0)
        trainer.do(Trainer.step)
        published = trainer.do(Trainer.publish)
        seconds.append(waiting.result().began - published.started)
    return timing(place.name, "commit alone", seconds[1:])


def _seconds(applied: Applied) -> float:
    return applied.finished - applied.began
