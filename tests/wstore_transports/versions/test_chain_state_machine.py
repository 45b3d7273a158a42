"""Chains under a state machine: deltas, anchors that follow, floors that let bases go, a variant below the root,
a mirror that is behind, readers that lag; crashes and lost answers at any write, two publishers.

What the log and the objects hold is judged by `chain_oracle`, which shares no code with what it judges.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
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

from tests.wstore_transports.versions.chain_actors import (
    SIZE,
    Chain,
    Process,
    Reader,
    read_route,
    write_anchor,
    write_version,
)
from tests.wstore_transports.versions.chain_oracle import ChainOracle
from tests.wstore_transports.versions.troubled_store import Crash, Trouble, TroubledStore
from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore_transports.delta.route import find_route
from wstore_transports.errors import AttemptAborted, Fenced, NoVersion
from wstore_transports.mirroring import mirror
from wstore_transports.mirroring.mirror import Mirror
from wstore_transports.versions import Retention, Root, collect, create, head, parallel
from wstore_transports.versions.anchoring import Anchoring
from wstore_transports.versions.mirror_mark import read_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.wstore_transports.versions.chain_oracle import Content

MAIN, VARIANT, MIRROR = "root", "root/variants/v", "mirror"
CHAINS = (MAIN, VARIANT)

KINDS = ["crash before", "crash after", "lost answer", "lost request", "late"]
TROUBLES = st.just(Trouble()) | st.builds(Trouble, st.sampled_from(KINDS), st.integers(1, 16))
WHICH = st.integers(0, 1)


class ChainMachine(RuleBasedStateMachine):
    """Two trainers, three readers, one collector, one mirror."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore("machine")
        self.late: list[Callable[[], object]] = []
        self.oracles = {place: ChainOracle(self.store, place) for place in (*CHAINS, MIRROR)}
        for place in CHAINS:
            Root.create(self.at(place), lease_s=1e-6)
        self.trainers = [Process(TroubledStore(self.store, self.late)) for _ in range(2)]
        self.readers: dict[int, Reader] = {}
        self.contents: dict[str, Content] = {}  # by attempt: what was written
        self.acknowledged: set[str] = set()
        self.denied: set[str] = set()

    def at(self, place: str, store: TroubledStore | None = None) -> StoragePath:
        return StoragePath(f"memory://machine/{place}", store=store or self.store)

    # Publishing

    @initialize(values=st.lists(st.integers(0, 9), min_size=2, max_size=4))
    def start(self, values: list[int]) -> None:
        self.begin(0, Trouble(), False)
        for value in values:
            self.publish(0, value % SIZE, value, False, Trouble())

    @rule(which=WHICH, trouble=TROUBLES, resume=st.booleans())
    def begin(self, which: int, trouble: Trouble, resume: bool) -> None:
        """A trainer takes both roots over; it may go on from what is newest there."""
        trainer = self.trainers[which]
        self.kill(trainer)
        with self.troubled(trainer, trouble):
            for place in CHAINS:
                root = Root.open(self.at(place, trainer.store))
                chain = Chain(root.begin_session("run", interval_s=3600))
                trainer.chains.append(chain)
                with contextlib.suppress(NoVersion):
                    if resume:
                        chain.newest = root.latest()
                        chain.content = self.contents[chain.newest.record.attempt]
        if len(trainer.chains) < len(CHAINS):
            self.kill(trainer)

    @precondition(lambda self: any(t.chains for t in self.trainers))
    @rule(
        which=WHICH,
        at=st.integers(0, SIZE - 1),
        value=st.integers(0, 9),
        full=st.booleans(),
        trouble=TROUBLES,
    )
    def publish(self, which: int, at: int, value: int, full: bool, trouble: Trouble) -> None:
        """One step: the model, and its variant, which is its negative."""
        trainer = self.trainers[which]
        if not trainer.chains:
            return
        with self.troubled(trainer, trouble):
            for sign, chain in zip((1, -1), trainer.chains, strict=True):
                self._publish(chain, at, sign * value, full)

    def _publish(self, chain: Chain, at: int, value: int, full: bool) -> None:
        content = {name: list(values) for name, values in chain.content.items()}
        content = content or {"a": [0] * SIZE, "b": [1] * SIZE}
        content["ab"[value % 2]][at] = value
        base = 0 if full or chain.newest is None else chain.newest.number
        attempt = chain.session.open_attempt(1, kind="delta" if base else "full", base=base)
        self.contents[attempt.opened.attempt] = content
        try:
            write_version(attempt, content, chain.content)
            version = attempt.commit(timeout=0)
        except (Fenced, AttemptAborted):
            self.denied.add(attempt.opened.attempt)
            raise
        except WStoreError:
            chain.newest = None  # nobody knows: the next one is a full one
            raise
        assert version.base == base
        self.acknowledged.add(attempt.opened.attempt)
        chain.newest, chain.attempt, chain.content = version, attempt, content

    @precondition(lambda self: any(t.chains for t in self.trainers))
    @rule(which=WHICH, chain=WHICH, trouble=TROUBLES, wrong=st.integers(0, 9))
    def write_anchor(self, which: int, chain: int, trouble: Trouble, wrong: int) -> None:
        """Whole weights of the newest version, or (1 in 10) other ones; the record may come much later."""
        trainer = self.trainers[which]
        if not trainer.chains:
            return
        ours = trainer.chains[chain]
        if ours.newest is None or ours.attempt is None or ours.newest.kind == "full":
            return
        content = ours.content if wrong else {"a": [77] * SIZE, "b": [77] * SIZE}
        ours.anchoring = Anchoring(ours.attempt, ours.newest)
        with self.troubled(trainer, trouble):
            write_anchor(ours.anchoring, content)
            if not wrong:
                before = self.oracles[CHAINS[chain]].newest_anchor()
                with pytest.raises(AttemptAborted, match="digest"):
                    ours.anchoring.commit(timeout=0)
                assert self.oracles[CHAINS[chain]].newest_anchor() == before
                ours.anchoring = None

    @precondition(lambda self: any(c.anchoring for t in self.trainers for c in t.chains))
    @rule(which=WHICH, trouble=TROUBLES)
    def commit_anchor(self, which: int, trouble: Trouble) -> None:
        trainer = self.trainers[which]
        with self.troubled(trainer, trouble):
            for place, chain in zip(CHAINS, trainer.chains, strict=False):
                if chain.anchoring is None:
                    continue
                number = chain.anchoring.version.number
                record = chain.anchoring.commit(timeout=0)
                newest = self.oracles[place].newest_anchor()
                if record is not None:
                    assert newest[:2] == (number, record.number)
                assert newest[0] >= number
                chain.anchoring = None

    @contextlib.contextmanager
    def troubled(self, trainer: Process, trouble: Trouble) -> Iterator[None]:
        trainer.store.trouble = replace(trouble)
        try:
            yield
        except (Crash, Fenced):
            self.kill(trainer)
        except WStoreError:
            for chain in trainer.chains:
                chain.anchoring = None
        finally:
            trainer.store.trouble = Trouble()

    @staticmethod
    def kill(trainer: Process) -> None:
        for chain in trainer.chains:
            if chain.session._heartbeat is not None:
                chain.session._heartbeat.close()
        trainer.chains = []

    @precondition(lambda self: self.late)
    @rule()
    def land(self) -> None:
        """A request that its sender gave up long ago reaches the store."""
        with contextlib.suppress(WStoreError):
            self.late.pop(0)()

    # Reading

    @rule(which=st.integers(0, 2), place=st.sampled_from([MAIN, MAIN, VARIANT, MIRROR]))
    def join(self, which: int, place: str) -> None:
        """A reader that holds nothing chooses the newest version."""
        self.die(which)
        if not self.readable(place):
            return
        root = Root.open(self.at(place))
        self.readers[which] = Reader(root, root.lease(f"reader-{which}", interval_s=3600))
        self.choose(which, 0)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2), back=st.integers(0, 2))
    def choose(self, which: int, back: int) -> None:
        """As `Subscriber` does: everything is leased, the log read, a route found, that alone leased."""
        reader = self.readers.get(which)
        if reader is None or not self.readable(self.place_of(reader)):
            return
        reader.lease.everything()
        versions = reader.root.versions()
        if not versions:
            return
        target = versions[-1 - min(back, len(versions) - 1)]
        reader.route = find_route(target, reader.held)
        assert reader.route.start in (None, reader.held)
        assert (reader.route.start is None) == (reader.route.whole is not None)
        reader.lease.only(*reader.route.versions, *([reader.held] if reader.held else []))

    @precondition(lambda self: any(r.route for r in self.readers.values()))
    @rule(which=st.integers(0, 2))
    def advance(self, which: int) -> None:
        """It reads what it chose, which may be long ago: its lease has kept that."""
        reader = self.readers.get(which)
        if reader is None or reader.route is None:
            return
        target, route = reader.route.target, reader.route
        reader.content, reader.held, reader.route = (
            read_route(route, reader.content),
            target.number,
            None,
        )
        assert reader.content == self.contents[target.record.attempt]
        reader.lease.only(reader.held)

    @rule(which=st.integers(0, 2))
    def die(self, which: int) -> None:
        reader = self.readers.pop(which, None)
        if reader is not None:
            reader.lease._heartbeat.close()

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2))
    def lose_lease(self, which: int) -> None:
        """A reader that slept: what it holds may be let go, and it goes on all the same."""
        reader = self.readers.get(which)
        if reader is not None:
            reader.route = None
            reader.lease.only()

    def place_of(self, reader: Reader) -> str:
        return reader.root.path.url.removeprefix("memory://machine/")

    def readable(self, place: str) -> bool:
        """A mirror is filled in order: for a while its log may end before what makes sense of it."""
        if place != MIRROR:
            return True
        oracle = self.oracles[MIRROR]
        if oracle.raw("wstore.json") is None:
            return False
        root = Root.open(self.at(MIRROR))
        mark = read_mark(root.path, root.root_id)
        return mark is not None and len(oracle.log()) >= mark.through

    # Collecting and mirroring

    @rule(
        place=st.sampled_from([MAIN, MAIN, VARIANT]),
        keep=st.integers(1, 2),
        every=st.sampled_from([None, 2]),
        trouble=TROUBLES,
    )
    def gc(self, place: str, keep: int, every: int | None, trouble: Trouble) -> None:
        store = TroubledStore(self.store, self.late)
        root = Root.open(self.at(place, store))
        store.trouble = replace(trouble)
        with contextlib.suppress(Crash, WStoreError):
            collect(root, Retention(keep, every), pause=self.renew_leases)

    def renew_leases(self, seconds: float) -> None:
        for reader in self.readers.values():
            reader.lease.only(*reader.lease.versions or ())

    @rule(trouble=TROUBLES, tidy=st.booleans())
    def copy(self, trouble: Trouble, tidy: bool) -> None:
        """A pass of the mirror, which may be cut short: then it is behind."""
        store = TroubledStore(self.store, self.late)
        store.trouble = replace(trouble)
        with contextlib.suppress(Crash, WStoreError):
            copier = Mirror(self.at(MAIN), self.at(MIRROR, store))
            copier.copy()
            if tidy:
                copier.tidy(pause=self.renew_leases)

    # What always holds

    @invariant()
    def log_and_contents(self) -> None:
        attempts: set[str] = set()
        for place in CHAINS:
            oracle = self.oracles[place]
            attempts |= {str(record["attempt"]) for record in oracle.committed().values()}
            for number, record in oracle.alive().items():
                ways = oracle.contents(number)
                assert ways, f"version {number} of {place} cannot be read by anybody"
                assert all(way == self.contents[str(record["attempt"])] for way in ways)
        assert self.acknowledged <= attempts, "an acknowledged version is not in the log"
        assert not self.denied & attempts, "an attempt that was denied is in the log"

    @invariant()
    def what_the_log_means(self) -> None:
        """A reader that begins now, at the floor, knows what one does that has read each record."""
        for place in CHAINS:
            oracle = self.oracles[place]
            log = Root.open(self.at(place)).log
            state = log.state()
            assert sorted(state.versions) == sorted(oracle.alive())
            found = {n: a.number for n in state.versions if (a := state.anchor(n)) is not None}
            assert found == {n: r["number"] for n, r in oracle.anchors().items()}
            at = log.known.standing
            assert (at.anchor, at.anchored_at, at.anchors) == oracle.newest_anchor()

    @invariant()
    def anyone_can_join_anywhere(self) -> None:
        for place in filter(self.readable, self.oracles):
            root = Root.open(self.at(place))
            for version in root.versions():
                route = find_route(version, 0)
                assert route.whole is not None
                assert read_route(route, {}) == self.contents[version.record.attempt]

    @invariant()
    def the_mirror_is_a_beginning(self) -> None:
        source, copy = self.oracles[MAIN], self.oracles[MIRROR]
        for name in copy.names("log/"):
            assert copy.raw(name) == source.raw(name)

    def teardown(self) -> None:
        for trainer in self.trainers:
            self.kill(trainer)
        for which in list(self.readers):
            self.die(which)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    # One worker: a crash at the n-th request must always hit the same one.
    monkeypatch.setattr(parallel, "WORKERS", 1)
    monkeypatch.setattr(mirror, "CONCURRENCY", 1)
    # Nor may real time decide how many requests there are.
    monkeypatch.setattr(head, "MIN_INTERVAL_S", 0.0)
    names = ("wstore_transports", "wstore.mirror")
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    for name in names:
        logging.getLogger(name).setLevel(logging.NOTSET)


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ChainMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_chains_hold() -> None:
    run_machine(2, 15)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_chains_hold_for_long() -> None:
    run_machine(60, 50)
