"""Whole weights that follow a version: when the log takes them, when it must not, and what readers find."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from wstore.errors import Cancelled, ConnectionFailed, IntegrityError, OutcomeUnknown, WaitTimeout
from wstore.path import StoragePath
from wstore.stores.wrap.faults import Fault, Faults, lose_answer
from wstore_codecs.digest import digest_block
from wstore_transports.delta.route import find_route
from wstore_transports.errors import AttemptAborted, Fenced, NoVersion, VersionGone
from wstore_transports.versions import (
    Block,
    ObjectRef,
    PublishSession,
    Retention,
    Root,
    Tensor,
    Version,
    collect,
    create,
)
from wstore_transports.versions.anchoring import Anchoring
from wstore_transports.versions.documents import Anchor, Done, Floor
from wstore_transports.versions.log import Tip, stand
from wstore_transports.versions.sealing import hash_of
from wstore_transports.versions.standing import EMPTY, BrokenLog, replay, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.memory import MemoryStore
    from wstore_transports.versions import Attempt
    from wstore_transports.versions.documents import Kind

COLUMNS = 4


def write(attempt: Attempt, value: int, *, write_to: Anchoring | Attempt, tail: str) -> None:
    """This rank's row of "w", filled with `value`, into an attempt or the anchor of what became of it."""
    row = np.full((1, COLUMNS), value, "<i4")
    data, name = row.tobytes(), f"r{attempt.rank:05d}.{tail}"
    write_to.path(name).write_file(data)
    block = Block(
        origin=[attempt.rank, 0],
        extent=[1, COLUMNS],
        object=0,
        offset=0,
        nbytes=len(data),
        hash=hash_of(data),
        digest=digest_block(row, (attempt.opened.ranks, COLUMNS), (attempt.rank, 0)).hex,
    )
    ref = ObjectRef(name=write_to.object_name(name), size=len(data), hash=hash_of(data))
    tensor = Tensor(dtype="I32", shape=[attempt.opened.ranks, COLUMNS], blocks=[block])
    write_to.done([ref], {"w": tensor})


class Trainer:
    """The ranks of a session, each with its own view of the log."""

    def __init__(self, store: MemoryStore, ranks: int = 1, launch: str = "start-1") -> None:
        place = StoragePath("memory://test/root", store=store)
        self.roots = [Root.create(place, lease_s=0.01) for _ in range(ranks)]
        first = self.roots[0].begin_session("run", ranks=ranks, launch=launch)
        rest = [
            self.roots[rank].join_session("run", rank=rank, ranks=ranks, launch=launch, timeout=9)
            for rank in range(1, ranks)
        ]
        self.sessions: list[PublishSession] = [first, *rest]

    def publish(self, value: int, base: int = 0) -> tuple[list[Attempt], Version]:
        """A version; a delta to `base` in name: what it holds is whole all the same."""
        kind: Kind = "delta" if base else "full"
        attempts = [s.open_attempt(value, kind=kind, base=base, timeout=9) for s in self.sessions]
        for attempt in attempts:
            write(attempt, value, write_to=attempt, tail="p0001")
        versions = [attempt.commit(timeout=9) for attempt in attempts]
        return attempts, versions[0]

    def chain(self, length: int) -> tuple[list[Attempt], Version]:
        """A full version and deltas after it, valued 0, 1, ...: the newest."""
        attempts, version = self.publish(0)
        for value in range(1, length):
            attempts, version = self.publish(value, base=version.number)
        return attempts, version

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def anchoring(attempts: list[Attempt], version: Version, value: int) -> Anchoring:
    """All ranks' parts of the anchor, written; that of rank 0."""
    parts = [Anchoring(attempt, version) for attempt in attempts]
    for attempt, part in zip(attempts, parts, strict=True):
        write(attempt, value, write_to=part, tail="a0001")
    return parts[0]


@pytest.fixture
def trainer(store: MemoryStore, root: Root) -> Trainer:
    return Trainer(store)


def opened(store: MemoryStore) -> Root:
    return Root.open(StoragePath("memory://test/root", store=store))


def whole_values(root: Root, version: Version) -> list[int]:
    """The rows of the whole weights that the log says a version has."""
    anchor = version.anchor()
    assert anchor is not None
    manifest = version.whole(anchor)
    assert manifest.digest == version.digest
    data = [version.object(ref.name).read_bytes() for ref in manifest.objects]
    return [int(np.frombuffer(one, "<i4")[0]) for one in data]


def test_several_ranks_make_an_anchor(store: MemoryStore, root: Root) -> None:
    trainer = Trainer(store, ranks=3)
    attempts, version = trainer.chain(3)
    assert version.anchor() is None
    late = Anchoring(attempts[2], version)
    for attempt in attempts[:2]:
        write(attempt, 2, write_to=Anchoring(attempt, version), tail="a0001")
    with pytest.raises(WaitTimeout, match="of 3 ranks: 2"):
        Anchoring(attempts[0], version).commit(timeout=0)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Anchoring(attempts[0], version).commit(timeout=9, cancel=stop)
    write(attempts[2], 2, write_to=late, tail="a0001")
    record = Anchoring(attempts[0], version).commit(timeout=9)
    assert record is not None
    assert (record.version, record.nbytes) == (version.number, 3 * 4 * COLUMNS)
    standing = root.log.refresh().standing
    assert (standing.anchor, standing.anchored_at) == (version.number, record.number)
    assert (standing.latest, standing.finished) == (version.number, version.number)
    assert standing.anchors == 2
    assert whole_values(root, root.version(version.number)) == [2, 2, 2]
    # It is no version: neither the newest, nor one of its own number.
    assert root.latest().number == version.number
    with pytest.raises(NoVersion):
        root.version(record.number)
    # The next attempt is not disturbed by the record that came between.
    assert trainer.publish(3, base=version.number)[1].base == version.number
    with pytest.raises(NoVersion, match="not a version"):
        root.version(record.number)
    trainer.close()


@pytest.mark.parametrize("wrong", [0, 7])
def test_wrong_weights_are_refused(trainer: Trainer, store: MemoryStore, wrong: int) -> None:
    """Another step's, as of a baseline that went astray: the digest shows it, and nothing is in the log."""
    attempts, version = trainer.chain(3)
    before = opened(store).log.refresh()
    with pytest.raises(AttemptAborted, match="digest"):
        anchoring(attempts, version, wrong).commit(timeout=9)
    assert opened(store).log.refresh() == before
    # The chain goes on, and the next anchor is taken.
    attempts, version = trainer.publish(3, base=version.number)
    assert anchoring(attempts, version, 3).commit(timeout=9) is not None
    trainer.close()


def test_a_rank_whose_part_is_missing_or_twice(store: MemoryStore, root: Root) -> None:
    trainer = Trainer(store, ranks=2)
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    (attempts[1].directory / "r00001.a0001").remove()
    with pytest.raises(IntegrityError, match="was never written"):
        Anchoring(attempts[1], version).done(
            [ObjectRef(name=attempts[1].object_name("r00001.a0001"), size=16, hash="0" * 32)], {}
        )
    attempts[1].mark("r00001.anchor.json", _done_of(attempts[0], rank=1))
    with pytest.raises(AttemptAborted, match="an anchor"):
        part.commit(timeout=9)
    assert root.log.refresh().standing.anchors == 1
    trainer.close()


def _done_of(attempt: Attempt, rank: int) -> Done:
    done = attempt._done
    assert done is not None
    return msgspec.structs.replace(done, rank=rank)


@pytest.mark.parametrize("when", ["before it was gathered", "as it was appended"])
def test_a_newer_full_version_makes_it_needless(
    trainer: Trainer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    if when == "as it was appended":
        _before_append(trainer.roots[0], monkeypatch, lambda: trainer.publish(5))
    else:
        trainer.publish(5)
    assert part.commit(timeout=9) is None
    standing = opened(store).log.refresh().standing
    assert standing.anchor == standing.latest > version.number
    assert not opened(store).log.state().anchors
    trainer.close()


@pytest.mark.parametrize("when", ["before it was gathered", "as it was appended"])
def test_another_publisher_ends_it(
    trainer: Trainer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    if when == "as it was appended":
        _before_append(trainer.roots[0], monkeypatch, lambda: Trainer(store, launch="b").close())
    else:
        Trainer(store, launch="b").close()
    with pytest.raises(Fenced, match="anchor of version"):
        part.commit(timeout=9)
    assert not opened(store).log.state().anchors
    trainer.close()


def _before_append(
    root: Root, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Something else comes just before the next append of this root's log."""
    append = root.log.append

    def late(draft: Callable[[Tip], Anchor]) -> Anchor:
        monkeypatch.setattr(root.log, "append", append)
        meanwhile()
        return append(draft)

    monkeypatch.setattr(root.log, "append", late)


def test_a_version_that_retention_let_go_gets_none(trainer: Trainer, store: MemoryStore) -> None:
    """Its objects may be deleted at any moment, so nobody may be led there."""
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    newest = trainer.publish(9)[1]
    root = opened(store)
    collect(root, Retention(1), pause=lambda _: None)
    assert [v.number for v in root.versions()] == [newest.number]
    assert part.commit(timeout=9) is None  # a newer one has whole weights
    # Without whole weights above it, the floor alone forbids it.
    trainer.roots[0].log.refresh()
    record = Anchor(
        root=root.root_id,
        number=1,
        prev="0" * 32,
        after=root.log.known.standing,
        version=version.number,
        epoch=version.record.epoch,
        manifest=version.record.manifest,
        nbytes=1,
    )
    with pytest.raises(BrokenLog, match="version"):
        step(root.log.known.standing, record)
    trainer.close()


def test_let_go_between_a_floor_that_keeps_older_ones(trainer: Trainer, store: MemoryStore) -> None:
    """A floor may keep older versions and let this one go: it is above the newest anchor, and gone."""
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    log = trainer.roots[0].log
    trainer.publish(2, base=2)

    def draft(tip: Tip) -> Floor:
        root_id, number, prev = log.base_fields(tip)
        floor = Floor(
            root=root_id,
            number=number,
            prev=prev,
            after=tip.standing,
            floor=version.number + 1,
            keep=[2],
        )
        return stand(tip, floor)

    log.append(draft)
    with pytest.raises(VersionGone, match="before its anchor"):
        part.commit(timeout=9)
    trainer.close()


def test_a_crash_before_the_record_leaves_nothing_that_counts(
    trainer: Trainer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start goes on; what was left lies with the version, and goes with it."""
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)

    def crash() -> None:
        raise KeyboardInterrupt

    _before_append(trainer.roots[0], monkeypatch, crash)
    with pytest.raises(KeyboardInterrupt):
        part.commit(timeout=9)
    trainer.close()
    root = opened(store)
    assert (attempts[0].directory / "anchor.json").exists()
    assert root.version(version.number).anchor() is None
    assert find_route(root.version(version.number), 0).deltas  # from the full one, as before
    again = Trainer(store, launch="b")
    newest = again.publish(5)[1]
    assert opened(store).log.refresh().standing.anchor == newest.number
    collect(root, Retention(1), pause=lambda _: None)
    assert not (attempts[0].directory / "anchor.json").exists()
    assert not list(root.path.glob(f"{attempts[0].name}/*"))
    again.close()


def test_an_answer_that_was_lost(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is there, or the caller is told that nobody knows; a second commit finds it done."""
    monkeypatch.setattr(create, "_PAUSES_S", (0.0, 0.0, 0.0))
    trainer = Trainer(store)
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    lost = lose_answer(lambda: ConnectionFailed("lost"))
    to_log = Fault(lost, when=lambda call: call.op == "write" and "/log/" in call.key)
    faults = Faults(store, [to_log])
    monkeypatch.setattr(
        trainer.roots[0].log, "_root", StoragePath("memory://test/root", store=faults)
    )
    try:
        record = part.commit(timeout=9)
    except OutcomeUnknown:
        record = None
    found = opened(store).log.state().anchors[version.number]
    assert record in (None, found)
    assert part.commit(timeout=9) is None
    assert len(opened(store).log.state().anchors) == 1
    trainer.close()


def test_a_reader_that_starts_at_the_floor_finds_an_anchor(
    trainer: Trainer, store: MemoryStore
) -> None:
    """The floor record names the anchor records below it of versions that are kept."""
    attempts, kept = trainer.chain(3)
    anchor = anchoring(attempts, kept, 2).commit(timeout=9)
    assert anchor is not None
    lease = opened(store).lease("reader", interval_s=3600)
    lease.only(kept.number)
    for value in (8, 9, 10):
        trainer.publish(value)
    root = opened(store)
    collect(root, Retention(1), pause=lambda _: lease.only(kept.number))
    tip = root.log.refresh()
    floor = root.log.read(tip.standing.floored_at)
    assert isinstance(floor, Floor)
    assert (floor.keep, floor.anchors) == ([kept.number], [anchor.number])
    assert anchor.number < floor.floor
    # One that has read everything, one that begins at the floor, and the pure reducer over all records.
    fresh = opened(store).log.state()
    assert fresh == trainer.roots[0].log.state()
    assert fresh == replay(EMPTY, root.log.records(1, tip.number))
    assert fresh.anchors == {kept.number: anchor}
    route = find_route(opened(store).version(kept.number), 0)
    assert route.whole is not None
    assert (route.whole.version.number, route.deltas) == (kept.number, ())
    assert whole_values(root, opened(store).version(kept.number)) == [2]
    # Once the reader is gone, so are both, and a later floor does not name the anchor.
    lease.release()
    collect(root, Retention(1), pause=lambda _: None)
    assert not opened(store).log.state().anchors
    assert opened(store).log.state() == replay(
        EMPTY, root.log.records(1, root.log.refresh().number)
    )
    trainer.close()


def test_an_anchor_above_the_floor_of_a_version_below_it(
    trainer: Trainer, store: MemoryStore
) -> None:
    """The record comes after the floor's first version: the reader meets it on its way."""
    attempts, version = trainer.chain(2)
    part = anchoring(attempts, version, 1)
    trainer.publish(2, base=version.number)
    anchor = part.commit(timeout=9)
    assert anchor is not None
    newest = trainer.publish(3, base=anchor.number - 1)[1]
    root = opened(store)
    collect(root, Retention(1), pause=lambda _: None)
    # The chain of the newest ends at the anchored version: the full one before it is gone.
    before = version.number + 1
    assert [v.number for v in root.versions()] == [version.number, before, newest.number]
    with pytest.raises(VersionGone):
        root.version(version.base)
    fresh = opened(store)
    assert fresh.log.state() == replay(EMPTY, root.log.records(1, root.log.refresh().number))
    route = find_route(fresh.latest(), 0)
    assert route.whole is not None
    assert route.whole.version.number == version.number
    assert [v.number for v in route.deltas] == [before, newest.number]
    trainer.close()


def test_keep_every_anchor_counts_them_in_the_order_of_the_log(
    trainer: Trainer, store: MemoryStore
) -> None:
    _, version = trainer.publish(0)
    numbers = [version.number]  # of versions with whole weights
    for value in range(1, 6):
        attempts, version = trainer.publish(value, base=version.number)
        if value % 2:
            assert anchoring(attempts, version, value).commit(timeout=9) is not None
            numbers.append(version.number)
    root = opened(store)
    collect(root, Retention(1, keep_every_anchor=2), pause=lambda _: None)
    stays = {v.number for v in root.versions()}
    assert stays == {numbers[0], numbers[2], version.number}
    assert version.number == numbers[3]
    assert opened(store).log.state() == replay(
        EMPTY, root.log.records(1, root.log.refresh().number)
    )
    trainer.close()
