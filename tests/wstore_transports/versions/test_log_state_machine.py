"""The whole protocol under a state machine: publish from two ranks, crash at any write, lose and delay
answers, two publishers, lagging and dying readers, damaged heads, and collections, all interleaved.

What the log and the objects hold is judged by `oracle`, which shares no code with what it judges.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.wstore_transports.versions.oracle import COLUMNS, ROWS, Content, Oracle
from tests.wstore_transports.versions.troubled_store import Crash, Trouble, TroubledStore
from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_codecs.digest import digest_block
from wstore_transports.errors import AttemptAborted, Fenced, NoVersion
from wstore_transports.versions import (
    Attempt,
    Block,
    Lease,
    ObjectRef,
    PublishSession,
    Retention,
    Root,
    Tensor,
    Version,
    collect,
    create,
    head,
    parallel,
)
from wstore_transports.versions.sealing import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


KINDS = ["crash before", "crash after", "lost answer", "lost request", "late"]
TROUBLES = st.just(Trouble()) | st.builds(Trouble, st.sampled_from(KINDS), st.integers(1, 14))


@dataclass
class Process:
    """A publisher of two ranks, each with its own view of the log."""

    store: TroubledStore
    sessions: list[PublishSession] = field(default_factory=list)
    pending: list[Attempt] = field(default_factory=list)


@dataclass
class Reader:
    root: Root
    lease: Lease
    version: Version
    content: Content


def rank_rows(rank: int) -> slice:
    return slice(0, 1) if rank == 0 else slice(1, ROWS)


def write_rank(attempt: Attempt, content: Content, previous: Content | None) -> None:
    """One rank's part: its rows of every tensor, shared where the version before has the same."""
    shared = attempt.shared()
    objects: list[ObjectRef] = []
    tensors: dict[str, Tensor] = {}
    for name, array in content.items():
        rows = rank_rows(attempt.rank)
        part = np.ascontiguousarray(array[rows])
        data = part.tobytes()
        ref = None
        if shared and previous is not None and np.array_equal(previous[name][rows], part):
            old = next(b for b in shared.tensors[name].blocks if b.origin[0] == rows.start)
            ref = shared.objects[old.object]
        if ref is None:
            own = f"r{attempt.rank:05d}.{name}"
            attempt.path(own).write_file(data)
            ref = ObjectRef(name=attempt.object_name(own), size=len(data), hash=hash_of(data))
        objects.append(ref)
        tensors[name] = Tensor(
            dtype="I32",
            shape=[ROWS, COLUMNS],
            blocks=[
                Block(
                    origin=[rows.start, 0],
                    extent=[rows.stop - rows.start, COLUMNS],
                    object=len(objects) - 1,
                    offset=0,
                    nbytes=len(data),
                    hash=hash_of(data),
                    digest=digest_block(part, array.shape, (rows.start, 0)).hex,
                )
            ],
        )
    attempt.done(objects, tensors)


def same(a: Content, b: Content) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def read(version: Version) -> Content:
    """What an engine gets, through the public names only."""
    manifest = version.manifest()
    found: Content = {}
    for name, tensor in manifest.tensors.items():
        out = np.full(tensor.shape, -1, "<i4")
        for block in tensor.blocks:
            data = version.object(manifest.objects[block.object].name).read_bytes()
            assert hash_of(data) == block.hash
            out[block.origin[0] : block.origin[0] + block.extent[0]] = np.frombuffer(
                data, "<i4"
            ).reshape(block.extent)
        found[name] = out
    return found


class RootMachine(RuleBasedStateMachine):
    """Two publishers, three readers, one lagging observer, one collector."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore("machine")
        self.late: list[Callable[[], object]] = []
        self.oracle = Oracle(self.store)
        Root.create(self.at(self.store), lease_s=1e-6)
        self.processes = [Process(TroubledStore(self.store, self.late)) for _ in range(2)]
        self.readers: dict[int, Reader] = {}
        self.observer = Root.open(self.at(self.store))
        self.contents: dict[str, Content] = {}  # by attempt: what was written
        self.acknowledged: set[str] = set()
        self.denied: set[str] = set()
        self.launches = 0

    @staticmethod
    def at(store: MemoryStore | TroubledStore) -> StoragePath:
        return StoragePath("memory://machine/root", store=store)

    # Publishing

    @initialize(values=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def start(self, values: list[int]) -> None:
        self.begin(0, Trouble())
        for value in values:
            self.publish(0, (value, 1), True, Trouble(), None, False)

    @rule(which=st.integers(0, 1), trouble=TROUBLES)
    def begin(self, which: int, trouble: Trouble) -> None:
        process = self.processes[which]
        self.kill(process)
        self.launches += 1
        process.store.trouble = replace(trouble)
        launch = f"launch-{self.launches}"
        try:
            roots = [Root.open(self.at(process.store)) for _ in range(2)]
            zero = roots[0].begin_session("run", ranks=2, launch=launch, interval_s=3600)
            process.sessions.append(zero)
            one = roots[1].join_session("run", rank=1, ranks=2, launch=launch, timeout=0)
            process.sessions.append(one)
        except (Crash, WStoreError):
            self.kill(process)
        process.store.trouble = Trouble()

    @precondition(lambda self: any(p.sessions for p in self.processes))
    @rule(
        which=st.integers(0, 1),
        values=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        share=st.booleans(),
        trouble=TROUBLES,
        give_up=st.sampled_from([None, None, None, 0, 1]),
        wait=st.booleans(),
    )
    def publish(
        self,
        which: int,
        values: tuple[int, int],
        share: bool,
        trouble: Trouble,
        give_up: int | None,
        wait: bool,
    ) -> None:
        process = self.processes[which]
        if not process.sessions:
            return
        process.store.trouble = replace(trouble)
        content = {
            name: np.full((ROWS, COLUMNS), value, "<i4")
            for name, value in zip("ab", values, strict=True)
        }
        with self.judged(process):
            process.pending = []
            for session in process.sessions:
                attempt = session.open_attempt(1, timeout=0)
                self.contents[attempt.opened.attempt] = content
                process.pending.append(attempt)
            previous = self.previous(process.pending[0]) if share else None
            for attempt in reversed(process.pending):
                if attempt.rank == give_up:
                    attempt.abort("on purpose")
                else:
                    write_rank(attempt, content, previous)
            if not wait:
                for attempt in process.pending:
                    self.commit(attempt)
        process.store.trouble = Trouble()

    @precondition(lambda self: any(p.pending for p in self.processes))
    @rule(which=st.integers(0, 1), trouble=TROUBLES)
    def finish(self, which: int, trouble: Trouble) -> None:
        """Commit what was written a while ago, or once more what may be committed already."""
        process = self.processes[which]
        process.store.trouble = replace(trouble)
        with self.judged(process):
            for attempt in process.pending:
                self.commit(attempt)
        process.store.trouble = Trouble()

    @contextlib.contextmanager
    def judged(self, process: Process) -> Iterator[None]:
        """Take note of what the publisher is told."""
        try:
            yield
        except Crash:
            self.kill(process)
        except Fenced:
            self.deny(process.pending)
            self.kill(process)
        except AttemptAborted:
            self.deny(process.pending)
        except WStoreError:
            pass  # undecided: the session finds out with its next attempt

    def commit(self, attempt: Attempt) -> None:
        version = attempt.commit(timeout=0)
        assert version.record.attempt == attempt.opened.attempt
        self.acknowledged.add(attempt.opened.attempt)

    def previous(self, attempt: Attempt) -> Content | None:
        record = self.oracle.committed().get(attempt.opened.shares)
        return self.contents[str(record["attempt"])] if record else None

    def deny(self, attempts: list[Attempt]) -> None:
        self.denied |= {attempt.opened.attempt for attempt in attempts}

    @staticmethod
    def kill(process: Process) -> None:
        for session in process.sessions:
            if session._heartbeat is not None:
                session._heartbeat.close()
        process.sessions = []
        process.pending = []

    @precondition(lambda self: self.late)
    @rule()
    def land(self) -> None:
        """A request that its sender gave up long ago reaches the store."""
        with contextlib.suppress(WStoreError):  # a create that came too late
            self.late.pop(0)()

    # Reading

    @rule(which=st.integers(0, 2))
    def join(self, which: int) -> None:
        self.die(which)
        root = Root.open(self.at(self.store))
        lease = root.lease(f"reader-{which}", interval_s=3600)
        try:
            version = root.latest()
        except NoVersion:
            lease.release()
            return
        lease.only(version.number)
        content = self.contents[version.record.attempt]
        self.readers[which] = Reader(root, lease, version, content)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2))
    def advance(self, which: int) -> None:
        reader = self.readers.get(which)
        if reader is None:
            return
        newest = reader.root.latest()
        reader.lease.hold(newest.number)
        reader.lease.only(newest.number)
        reader.version, reader.content = newest, self.contents[newest.record.attempt]

    @rule(which=st.integers(0, 2))
    def die(self, which: int) -> None:
        """A reader stops renewing, and says nothing."""
        reader = self.readers.pop(which, None)
        if reader is not None:
            reader.lease._heartbeat.close()

    @rule()
    def look(self) -> None:
        """An observer that may not have looked for long sees what the log holds now."""
        alive = self.oracle.alive()
        assert [v.number for v in self.observer.versions()] == sorted(alive)
        fresh = Root.open(self.at(self.store))
        assert [v.number for v in fresh.versions()] == sorted(alive)

    @precondition(lambda self: self.oracle.raw("head.json"))
    @rule(damage=st.sampled_from(["missing", "garbage", "other root", "behind", "cut"]))
    def damage_head(self, damage: str) -> None:
        log = self.oracle.log()
        root = json.loads(self.oracle.raw("wstore.json") or b"")["root"]
        number = len(log) // 2 or 1 if damage == "behind" else len(log)
        record = self.oracle.raw(f"log/{number:012d}.json") or b""
        fields = {
            "document": "head",
            "format": 1,
            "root": "0" * 32 if damage == "other root" else root,
            "number": number,
            "hash": xxhash.xxh3_128_hexdigest(record),
        }
        body = json.dumps(fields, separators=(",", ":")).encode()
        data = body[:-1] + f',"check":"{xxhash.xxh3_128_hexdigest(body)}"}}'.encode()
        if damage == "missing":
            self.store.delete("root/head.json")
        else:
            cut = {"garbage": 0, "cut": len(data) // 2}.get(damage, len(data))
            self.store.write("root/head.json", memoryview(data[:cut] or b"\xff garbage"))

    # Collecting

    @rule(
        keep=st.integers(1, 2),
        every=st.sampled_from([None, 2]),
        trouble=TROUBLES,
        sneak=st.booleans(),
    )
    def gc(self, keep: int, every: int | None, trouble: Trouble, sneak: bool) -> None:
        store = TroubledStore(self.store, self.late)
        root = Root.open(self.at(store))
        store.trouble = replace(trouble)
        if sneak:
            store.before_log_write = self.move_to_the_oldest
        with contextlib.suppress(Crash, WStoreError):
            collect(root, Retention(keep, every), pause=self.renew_leases)

    def move_to_the_oldest(self) -> None:
        """Between the decision and the floor, readers turn to a version that is about to go."""
        for reader in self.readers.values():
            oldest = reader.root.versions()[0]
            reader.lease.hold(oldest.number)
            reader.lease.only(oldest.number)
            reader.version, reader.content = oldest, self.contents[oldest.record.attempt]

    def renew_leases(self, seconds: float) -> None:
        for reader in self.readers.values():
            reader.lease.only(*reader.lease.versions or ())

    # What always holds

    @invariant()
    def log_and_content(self) -> None:
        committed, alive = self.oracle.committed(), self.oracle.alive()
        attempts = {str(record["attempt"]) for record in committed.values()}
        assert self.acknowledged <= attempts, "an acknowledged version is not in the log"
        assert not self.denied & attempts, "an attempt that was denied is in the log"
        for record in alive.values():
            assert same(self.oracle.content(record), self.contents[str(record["attempt"])])

    @invariant()
    def newest_is_found(self) -> None:
        alive = self.oracle.alive()
        root = Root.open(self.at(self.store))
        if not alive:
            with pytest.raises(NoVersion):
                root.latest()
            return
        latest = root.latest()
        assert latest.number == max(alive)
        assert same(read(latest), self.contents[latest.record.attempt])

    @invariant()
    def leased_versions_stay(self) -> None:
        for reader in self.readers.values():
            assert same(read(reader.version), reader.content)

    def teardown(self) -> None:
        for process in self.processes:
            self.kill(process)
        for which in list(self.readers):
            self.die(which)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    # One worker: a crash at the n-th request must always hit the same one.
    monkeypatch.setattr(parallel, "WORKERS", 1)
    # Nor may real time decide how many requests there are.
    monkeypatch.setattr(head, "MIN_INTERVAL_S", 0.0)
    logging.getLogger("wstore_transports").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("wstore_transports").setLevel(logging.NOTSET)


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RootMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_protocol_holds() -> None:
    run_machine(5, 25)


@pytest.mark.long
@pytest.mark.timeout(900)  # under two minutes on a machine with nothing else to do
def test_protocol_holds_for_long() -> None:
    run_machine(50, 50)
