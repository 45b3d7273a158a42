"""The trainer and the engine of `delta.py`, each in a process of its own, as in real use.

Times are seconds of the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import ml_dtypes
import numpy as np

from benchmarks.delta_model import TIED, Model
from benchmarks.memory import peak, reset_peak
from benchmarks.racing import Contender, race
from wstore import StoragePath
from wstore.stores import registry
from wstore.stores.wrap import Retry, Trace
from wstore.urls import parse
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.delta.publisher import Publisher
from wstore_transports.delta.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from multiprocessing.connection import Connection
    from types import TracebackType

    from benchmarks.delta_model import Size
    from benchmarks.racing import Row
    from wstore.stores.wrap import TraceRecord
    from wstore_codecs.tensors import Array

A = TypeVar("A")
R = TypeVar("R")

REPEATS = 3
"""How often a version is read again while a thread runs beside: one time is short."""


@dataclass(frozen=True, slots=True)
class Published:
    """One version, as its trainer saw it. `extra` is the most memory that it added, in bytes."""

    version: int
    started: float
    returned: float
    committed: float
    nbytes: int
    seconds: Mapping[str, float]
    extra: int


@dataclass(frozen=True, slots=True)
class Applied:
    """One version in an engine's own memory; `began` once the engine had seen it committed."""

    version: int
    began: float
    finished: float
    nbytes: int
    seconds: Mapping[str, float]
    extra: int


class Trainer:
    """Holds the live weights, and publishes them."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Model(size, seed)
        self._publisher: Publisher | None = None

    def open(self, url: str, codec: str = "auto", anchor_every: int = 1000) -> None:
        """Publish under this root from now on."""
        self.close()
        self._publisher = Publisher(url, codec=codec, anchor_every=anchor_every)

    def step(self) -> None:
        """Change about 2 % of the elements."""
        self.model.step()

    def publish(self, full: bool = False) -> Published:
        """Publish one version, and wait until it is committed."""
        publisher = self._publisher
        assert publisher is not None
        before = reset_peak()
        started = time.monotonic()
        report = publisher.publish(0, self.model.weights, full=full)
        returned = time.monotonic()
        done = publisher.flush()
        assert done is not None
        seconds = {**report.seconds, **done.seconds}
        committed = time.monotonic() - done.seconds["advance"]
        extra = peak() - before
        return Published(done.version, started, returned, committed, done.nbytes, seconds, extra)

    def checkpoint(self, url: str) -> Published:
        """The same as a full checkpoint."""
        started = time.monotonic()
        with CheckpointWriter(url) as writer:
            done = writer.write(0, self.model.weights)
        now = time.monotonic()
        return Published(done.version, started, now, now, done.nbytes, {}, 0)

    def close(self) -> float:
        """End the run, once an anchor under way is written; when that was."""
        if self._publisher is not None:
            with self._publisher:
                self._publisher = None
        return time.monotonic()


class Engine:
    """Holds weights, and follows."""

    def __init__(self) -> None:
        self._subscriber = Subscriber("memory://none")
        self._state: dict[str, Array] = {}
        self.requests = 0
        self.nbytes = 0

    def load(self, url: str, version: int | None = None) -> Applied:
        """Begin to follow a root, in new memory."""
        self._subscriber.close()
        self._state = {}
        self._subscriber = Subscriber(StoragePath(url, store=self._counted(url)))
        began = time.monotonic()
        self._state = self._subscriber.load(version)
        ended = time.monotonic()
        self._check(self._subscriber.version(self._subscriber.held).digest)
        return Applied(self._subscriber.held, began, ended, 0, {}, 0)

    def sync(self) -> Applied:
        """Wait for the next version and apply it."""
        before = reset_peak()
        report = self._subscriber.sync(self._state)
        finished = time.monotonic()
        extra = peak() - before
        self._check(report.digest)
        stages = report.seconds
        began = finished - sum(stages[stage] for stage in ("fetch", "check", "apply"))
        return Applied(report.version, began, finished, report.fetched_nbytes, stages, extra)

    def prefetch(self) -> float:
        """Fetch and prove the newest version without applying it. Seconds."""
        started = time.monotonic()
        self._subscriber.prefetch(state=self._state).close()
        return time.monotonic() - started

    def prefetches(self, count: int) -> list[tuple[float, float]]:
        """The same so many times: (seconds, when it ended) of each."""
        return [(self.prefetch(), time.monotonic()) for _ in range(count)]

    def loops(self, url: str, rounds: int, seed: int) -> tuple[Row, Row]:
        """How fast one pure Python thread runs beside a prefetch (read, proven, decoded, checked against the
        weights), and beside boto3's bare reads of the same objects."""
        from benchmarks.peers import Boto3Objects

        self.load(url, self._subscriber.latest().number - 1)
        version = self._subscriber.latest()
        names = [ref.name for ref in version.manifest().objects]
        other = Boto3Objects([version.object(name).url for name in names])
        nbytes = REPEATS * version.record.nbytes

        def ours() -> int:
            for _ in range(REPEATS):
                self._subscriber.prefetch(version, state=self._state).close()
            return nbytes

        def theirs() -> int:
            return sum(sum(map(len, other.read())) for _ in range(REPEATS))

        def check(read: int) -> None:
            assert read == nbytes

        contenders = [Contender("wstore", ours, check), Contender(other.name, theirs, check)]
        rows = race("prefetch", contenders, nbytes=nbytes, rounds=rounds, seed=seed, busy_threads=1)
        return rows["wstore"], rows[other.name]

    def read_checkpoint(self, url: str) -> Applied:
        """Wait for a full checkpoint, and read it into the live weights."""
        reader = CheckpointReader(url)
        version = reader.wait()
        began = time.monotonic()
        reader.load(version, out=self._state)
        finished = time.monotonic()
        self._check(version.digest)
        return Applied(version.number, began, finished, version.record.nbytes, {}, 0)

    def empty(self, size: Size) -> None:
        """Hold memory of the model's shapes."""
        self._state = {n: np.zeros(shape, ml_dtypes.bfloat16) for n, shape in size.shapes()}
        self._state[TIED[0]] = self._state[TIED[1]]

    def counted(self) -> tuple[int, int]:
        """(requests, bytes read) since this was last asked."""
        found = self.requests, self.nbytes
        self.requests = self.nbytes = 0
        return found

    def close(self) -> None:
        """Give leases back."""
        self._subscriber.close()

    def _check(self, digest: str) -> None:
        if weights_digest(self._state) != digest:
            raise AssertionError("an engine's weights are not the published ones")

    def _counted(self, url: str) -> Retry:
        def count(record: TraceRecord) -> None:
            self.requests += 1
            self.nbytes += record.nbytes if record.call.op == "read" else 0

        return Retry(Trace(registry.bare_store(parse(url)), count))


class Actor(Generic[A]):
    """An object in a process of its own, which ends with this context.

    Args:
        make: makes the object there; picklable, as all that is passed on.
    """

    def __init__(self, make: Callable[..., A], *arguments: object) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, call: Callable[..., R], *arguments: object) -> Pending[R]:
        """Call a method of the object; `Pending.result` waits for it."""
        self._ours.send((call.__name__, arguments))
        return Pending(self._ours)

    def do(self, call: Callable[..., R], *arguments: object) -> R:
        """Call a method and wait for what it returns."""
        return self.begin(call, *arguments).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._ours.send(("close", ()))
            Pending[None](self._ours).result()
        self._ours.close()
        self._process.terminate()
        self._process.join()


class Pending(Generic[R]):
    """What a call under way will return."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def result(self) -> R:
        """Wait for it. Raises RuntimeError with the other side's traceback."""
        done, result = self._connection.recv()
        if not done:
            raise RuntimeError(f"in the other process: {result}")
        found: R = result
        return found


def together(actors: Iterable[Actor[A]], call: Callable[..., R], *arguments: object) -> list[R]:
    """The same call on all of them at once."""
    calls = [actor.begin(call, *arguments) for actor in actors]
    return [one.result() for one in calls]


def _serve(connection: Connection, make: Callable[..., object], arguments: tuple[object]) -> None:
    served = make(*arguments)
    while True:
        try:
            name, given = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(served, name)(*given)))
        except BaseException:  # noqa: BLE001 - the other side raises it
            connection.send((False, traceback.format_exc()))
