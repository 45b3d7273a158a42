"""One run of a trainer and its engines in which everything is killed at random, and the judge of it."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.wstore_transports.delta.crash_model import differences, digest_of
from tests.wstore_transports.delta.crash_processes import (
    CODECS,
    FENCED,
    GAVE_UP,
    Collector,
    Engine,
    Job,
    Ranks,
    Trainer,
    run,
)
from tests.wstore_transports.forked import forked_after
from wstore.path import StoragePath
from wstore_transports.delta import Subscriber
from wstore_transports.versions import Root
from wstore_transports.versions.documents import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path
    from typing import Any

LOADED = ["tests.wstore_transports.delta.crash_preload"]

LEASE_S = 0.4
"""Of the roots: so short that collections delete within a run."""

KILLED = -9
LIMIT_S = 200.0
"""After so many seconds a process of a run hangs; on an idle machine a run takes two or three."""


@dataclass(frozen=True, slots=True)
class Places:
    """One root, as each process sees it.

    Attributes:
        writer: as rank 0, the collector and the judge see it.
        other: as rank 1 and the second engine see it.
        environment: variables of all of them.
        crash_server: kills the server behind the places, and starts it again; None where there is none.
        exclusive: whether a log record is created only where there is none. Where not, only one process at
            a time may extend the log: no collector but the trainer's own, no rank 0 that was left behind.
    """

    writer: str
    other: str
    environment: Mapping[str, str] = field(default_factory=dict)
    crash_server: Callable[[random.Random], None] | None = None
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class Length:
    """How much must happen in a run: versions and kills (of ranks and engines), and one of the server."""

    versions: int
    kills: int
    crash_server: bool = False


@dataclass(slots=True, eq=False)
class Child:
    """A process, and what it may end with when nobody kills it."""

    name: str
    process: ForkServerProcess
    may_end: tuple[int, ...]
    killed: bool = False

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        self.killed = self.killed or self.alive
        self.process.kill()
        self.process.join(30)

    def ended_well(self) -> bool:
        code = self.process.exitcode
        return code in self.may_end or (self.killed and code == KILLED)


class CrashRun:
    """A trainer of one or two ranks, two engines, a collector."""

    def __init__(self, places: Places, files: Path, seed: int) -> None:
        self._places = places
        self._files = files
        self._chance = random.Random(seed)
        self._count = 0
        self._ranks: list[Child] = []
        self._engines: list[Child] = []
        self._collector: Child | None = None
        self._all: list[Child] = []
        self._world = self._chance.choice([1, 2])
        self._codec = self._chance.choice(CODECS)
        self._cache = str(files / "cache") if self._chance.random() < 0.3 else ""
        files.mkdir()

    def run(self, length: Length) -> None:
        """All of it. Raises AssertionError: whatever is not as it must be, with what the processes said."""
        root = Root.create(StoragePath(self._places.writer), lease_s=LEASE_S)
        try:
            self._start_trainer(10_000, timeout_s=3.0)
            for index in range(2):
                self._engines.append(self._start_engine(index))
            if self._places.exclusive:
                self._collector = self._start_collector()
            self._crash_things(root, length)
            self._finish()
            self._judge(root)
        except AssertionError as error:
            error.add_note(self._told())
            raise
        finally:
            for child in self._all:
                child.kill()
                child.process.close()

    # Processes

    def _start(
        self, name: str, place: str, work: Callable[[Job], None], may_end: tuple[int, ...]
    ) -> Child:
        self._count += 1
        name = f"{self._count:03d}-{name}"
        job = Job(
            place,
            self._files,
            name,
            self._chance.randrange(1 << 30),
            dict(self._places.environment),
            LIMIT_S,
        )
        process = forked_after(LOADED).Process(target=run, args=(work, job), name=name)
        process.start()
        child = Child(name, process, may_end)
        self._all.append(child)
        return child

    def _start_trainer(self, versions: int, *, timeout_s: float) -> None:
        launch, every, keep = (
            f"launch-{self._count}",
            self._chance.randint(1, 4),
            self._chance.randint(1, 3),
        )
        places = [self._places.writer, self._places.other]
        self._ranks = [
            self._start(
                f"rank-{rank}",
                places[rank],
                Trainer(
                    Ranks(rank, self._world, launch, versions, self._codec, every, keep, timeout_s)
                ),
                (0, FENCED, GAVE_UP),
            )
            for rank in range(self._world)
        ]

    def _start_engine(self, index: int) -> Child:
        place = [self._places.writer, self._places.other][index]
        return self._start(f"engine-{index}", place, Engine(self._cache), (0,))

    def _start_collector(self) -> Child:
        return self._start("collector", self._places.writer, Collector(), ())

    # Crashes

    def _crash_things(self, root: Root, length: Length) -> None:
        """At least so many versions and so many kills, and the server's in between."""
        chance, kills, crash_server = self._chance, 0, length.crash_server
        until = time.monotonic() + LIMIT_S
        while self._committed(root) < length.versions or kills < length.kills or crash_server:
            assert time.monotonic() < until, f"{self._committed(root)} versions, {kills} kills"
            time.sleep(chance.uniform(0.01, 0.2))
            if crash_server and kills > length.kills // 2 and self._places.crash_server is not None:
                self._places.crash_server(chance)
                crash_server = False
            rash = kills < length.kills  # later on only what has come far enough, and less often
            if rash or chance.random() < 0.2:
                kills += self._kill_one(rash=rash)
            self._watch()

    def _kill_one(self, *, rash: bool) -> bool:
        """Whether it was a rank or an engine. One that has told of nothing yet is mostly spared."""
        chance = self._chance
        match chance.choice(["rank", "engine", "collector"]):
            case "rank":
                child = chance.choice(self._ranks)
                if self._began(self._ranks[0]) or (rash and chance.random() < 0.1):
                    child.kill()
                    return True
            case "engine":
                index = chance.randrange(2)
                if self._began(self._engines[index]) or (rash and chance.random() < 0.1):
                    self._engines[index].kill()
                    self._engines[index] = self._start_engine(index)
                    return True
            case _:
                if self._collector is not None and self._began(self._collector):
                    self._collector.kill()
                    self._collector = self._start_collector()
        return False

    @staticmethod
    def _committed(root: Root) -> int:
        tip = root.log.refresh()
        return sum(isinstance(record, Weights) for record in root.log.records(1, tip.number))

    def _began(self, child: Child) -> bool:
        """Whether it has told of a version."""
        return (self._files / f"{child.name}.jsonl").exists()

    def _watch(self) -> None:
        """Nothing ends but by a kill or for a reason; a trainer that lost a rank is started anew."""
        for child in self._all:
            assert child.alive or child.ended_well(), f"{child.name}: {child.process.exitcode}"
        if not all(child.alive for child in self._ranks):
            self._leave_ranks()
            self._start_trainer(10_000, timeout_s=3.0)

    def _leave_ranks(self) -> None:
        """The ranks that are left find out by themselves, or are killed as a launcher does.

        One that has not begun to publish would take the root over from those that come next.
        """
        for rank, child in enumerate(self._ranks):
            alone = rank == 0 and not self._places.exclusive
            if alone or not self._began(child) or self._chance.random() < 0.5:
                child.kill()

    # The end

    def _finish(self) -> None:
        """A last trainer, in peace."""
        self._leave_ranks()
        self._start_trainer(2, timeout_s=60.0)
        until = time.monotonic() + LIMIT_S
        for child in (*self._ranks, *self._engines):
            child.process.join(max(0.0, until - time.monotonic()))
            assert child.process.exitcode == 0, f"{child.name}: {child.process.exitcode}"
        if self._collector is not None:
            self._collector.kill()
        for child in self._all:
            child.process.join(max(0.0, until - time.monotonic()))
            assert child.ended_well(), f"{child.name}: {child.process.exitcode}"

    def _judge(self, root: Root) -> None:
        records = root.log.records(1, root.log.refresh().number)
        committed = {r.number: r for r in records if isinstance(r, Weights)}
        for number, record in committed.items():
            assert record.digest == digest_of(record.step), f"version {number}"
        told = [line for child in self._all for line in self._lines(child)]
        for line in told:
            if "version" in line:
                record = committed[line["version"]]
                assert (record.step, record.digest) == (line["step"], line["digest"])
        newest = max(committed)
        assert root.latest().number == newest
        for child in self._engines:
            last = self._lines(child)[-1]
            assert (last["end"], last["digest"]) == (newest, committed[newest].digest)
        for version in root.versions():
            with Subscriber(self._places.writer) as reader:
                assert not differences(reader.load(version.number), version.step)

    def _lines(self, child: Child) -> list[dict[str, Any]]:
        file = self._files / f"{child.name}.jsonl"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().splitlines()]

    def _told(self) -> str:
        """The end of what each process that did not end well said."""
        said = []
        for child in self._all:
            log = self._files / f"{child.name}.log"
            if child.process.exitcode not in (KILLED, FENCED, GAVE_UP) and log.exists():
                code = child.process.exitcode
                said.append(f"--- {child.name} ({code})\n{log.read_text()[-4000:]}")
        return "\n".join(said)
