"""The race between clients: what is timed, how often, in which order, and what is kept of it.

All contenders of a case run in one process, in a new random order each round; figures are medians over
the rounds. CPU seconds are those of this process alone (user and system). Checking the outcome is never
part of a timed section.
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from wstore.stores.base import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contender(Generic[T]):
    """One client in a race: `run` is timed; `check` gets what it returned and raises if it is wrong."""

    client: str
    run: Callable[[], T]
    check: Callable[[T], None]


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one client in one case.

    `loops_per_s` is what the busy threads got, summed; the CPU seconds then include theirs.
    """

    case: str
    client: str
    mib: float
    rounds: int
    wall_s: float
    wall_min_s: float
    wall_max_s: float
    mib_per_s: float
    cpu_s_per_gib: float
    loops_per_s: float = 0.0


class BusyThreads:
    """Threads that run pure Python, as an engine that serves does, and count their loops."""

    def __init__(self, count: int) -> None:
        self._counts = [0] * count
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._spin, args=(i,)) for i in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def loops(self) -> int:
        return sum(self._counts)

    def _spin(self, index: int) -> None:
        while not self._stop.is_set():
            done = 0
            for _ in range(1000):
                done += 1
            self._counts[index] += done


@dataclass(frozen=True, slots=True)
class _Sample:
    wall_s: float
    cpu_s: float
    loops_per_s: float


def race(
    case: str,
    contenders: Sequence[Contender[T]],
    *,
    nbytes: int,
    rounds: int,
    seed: int,
    busy_threads: int = 0,
    warm_up: bool = True,
) -> dict[str, Row]:
    """Run every contender once untimed (connections, caches), then `rounds` times in random order.

    Args:
        busy_threads: how many run beside them.
        warm_up: False for what takes too long to run twice.
    """
    order = random.Random(seed)
    samples: dict[str, list[_Sample]] = {contender.client: [] for contender in contenders}
    for contender in contenders if warm_up else ():
        contender.check(contender.run())
    for number in range(rounds):
        note(f"{case}: round {number + 1} of {rounds}")
        for contender in order.sample(list(contenders), len(contenders)):
            samples[contender.client].append(_timed(contender, busy_threads))
    return {client: _row(case, client, nbytes, taken) for client, taken in samples.items()}


def _timed(contender: Contender[T], busy_threads: int) -> _Sample:
    with BusyThreads(busy_threads) as busy:
        loops, cpu, start = busy.loops, cpu_seconds(), time.perf_counter()
        result = contender.run()
        wall = time.perf_counter() - start
        sample = _Sample(wall, cpu_seconds() - cpu, (busy.loops - loops) / wall)
    contender.check(result)
    return sample


def cpu_seconds() -> float:
    """User and system CPU seconds of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _row(case: str, client: str, nbytes: int, samples: Sequence[_Sample]) -> Row:
    walls = [sample.wall_s for sample in samples]
    wall = statistics.median(walls)
    return Row(
        case,
        client,
        mib=nbytes / MiB,
        rounds=len(samples),
        wall_s=wall,
        wall_min_s=min(walls),
        wall_max_s=max(walls),
        mib_per_s=nbytes / MiB / wall,
        cpu_s_per_gib=statistics.median(sample.cpu_s for sample in samples) * GiB / nbytes,
        loops_per_s=statistics.median(sample.loops_per_s for sample in samples),
    )


def note(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)
