"""What one engine asks of the store for one delta, with more trainer ranks and more engines."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.delta_actors import Actor, Engine, together
from benchmarks.delta_model import TINY, Model
from benchmarks.racing import note
from wstore_transports.checkpoint.pieces import Shard
from wstore_transports.delta.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Scaling:
    """Medians over engines and versions.

    Attributes:
        requests: of one engine for one version, all kinds.
        nbytes: that it read, documents too.
        parts: objects of the version.
    """

    ranks: int
    engines: int
    requests: float
    nbytes: float
    parts: int


class Rank:
    """One of several trainer ranks; each holds its rows of every matrix."""

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        self._model = Model(TINY, seed)
        self._rank, self._ranks = rank, ranks
        self._publisher: Publisher | None = None

    def open(self, url: str) -> None:
        """Enter the root with the other ranks."""
        self._publisher = Publisher(
            url, rank=self._rank, world_size=self._ranks, launch="bench", anchor_every=1000
        )

    def publish(self) -> tuple[int, int]:
        """(version, parts) of one more version."""
        self._model.step()
        publisher = self._publisher
        assert publisher is not None
        publisher.publish(0, {name: self._part(name) for name in self._model.weights})
        report = publisher.flush()
        assert report is not None
        parts = len(publisher.root.version(report.version).manifest().objects)
        return report.version, parts

    def close(self) -> None:
        """End the run."""
        if self._publisher is not None:
            self._publisher.close()

    def _part(self, name: str) -> Shard:
        array = self._model.weights[name]
        shape = tuple(array.shape)
        if len(shape) == 1:
            return Shard(array, shape, (0,))
        first = shape[0] * self._rank // self._ranks
        last = shape[0] * (self._rank + 1) // self._ranks
        return Shard(array[first:last], shape, (first, 0))


def measure(url: str, counts: Sequence[int], seed: int) -> list[Scaling]:
    """More ranks with two engines, and more engines with two ranks."""
    found = []
    with ExitStack() as engines_stack:
        engines = [engines_stack.enter_context(Actor(Engine)) for _ in range(max(counts))]
        for ranks in counts:
            many = counts if ranks == counts[0] else counts[:1]
            with ExitStack() as stack:
                trainers = [
                    stack.enter_context(Actor(Rank, rank, ranks, seed)) for rank in range(ranks)
                ]
                for count in many:
                    note(f"{ranks} ranks, {count} engines")
                    place = f"{url}/{ranks}-{count}"
                    found.append(_one(place, trainers, engines[:count]))
    return found


def _one(url: str, trainers: Sequence[Actor[Rank]], engines: Sequence[Actor[Engine]]) -> Scaling:
    together(trainers, Rank.open, url)
    together(trainers, Rank.publish)
    together(engines, Engine.load, url)
    together(engines, Engine.counted)
    requests: list[int] = []
    nbytes: list[int] = []
    parts = 0
    for _ in range(ROUNDS):
        _, parts = together(trainers, Rank.publish)[0]
        together(engines, Engine.sync)
        for asked, read in together(engines, Engine.counted):
            requests.append(asked)
            nbytes.append(read)
    together(trainers, Rank.close)
    return Scaling(
        len(trainers), len(engines), statistics.median(requests), statistics.median(nbytes), parts
    )
