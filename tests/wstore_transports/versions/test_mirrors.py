"""Readers of several mirrors: what is taken from the next one, what is waited for, and what is refused."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wstore.errors import (
    AccessDenied,
    Cancelled,
    ConnectionFailed,
    IntegrityError,
    InvalidArgument,
    StoreTimeout,
    WaitTimeout,
    WStoreError,
)
from wstore.path import StoragePath
from wstore.stores import registry
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.base import Call, Wrapper
from wstore.stores.wrap.limit import Limit
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.errors import (
    DifferentRoots,
    MirrorsFailed,
    NotARoot,
    NoVersion,
    PublisherLost,
    RunEnded,
    VersionGone,
)
from wstore_transports.versions import Mirrors, Retention, Root, collect, mirror_look, mirror_site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore_codecs.tensors import Array


CONFIG = b'{"layers": 2}'


class Mirror(Wrapper):
    """A store that counts calls and fails as long as it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(MemoryStore(name))
        self.failure: Callable[[Call], WStoreError | None] = lambda call: None
        self.calls: list[Call] = []
        self.place = StoragePath(f"memory://{name}/root", store=self)

    def around(self, call: Call, run: Callable[[], object]) -> object:  # type: ignore[override]
        self.calls.append(call)
        error = self.failure(call)
        if error is not None:
            raise error
        return run()

    def down(self, make: Callable[[], WStoreError] = lambda: ConnectionFailed("away")) -> None:
        """From now on every call fails."""
        self.failure = lambda call: make()

    def up(self) -> None:
        self.failure = lambda call: None

    def names(self, part: str) -> list[str]:
        return [e.key for e in self.inner.list("root/", recursive=True) if part in e.key]

    def damage(self, part: str, at: int = -8) -> None:
        """Flip a bit in every object whose name has `part`."""
        for key in self.names(part):
            data = bytearray(self.inner.read(key, 0, 1 << 30).data)
            data[at] ^= 1
            self.inner.write(key, memoryview(data))

    def take(self, source: Mirror, *, records: int = 10**6, data: str = "") -> None:
        """Copy from another mirror as a mirroring job does: the log last, here up to a record."""
        for part in (f"/data/{data}", "wstore.json", "/log/"):
            for key in source.names(part):
                if part != "/log/" or int(key[-17:-5]) <= records:
                    self.inner.write(key, source.inner.read(key, 0, 1 << 30).data)


@dataclass
class Trio:
    """A source with two versions, a complete mirror of it, and an empty place."""

    source: Mirror = field(default_factory=lambda: Mirror("source"))
    copy: Mirror = field(default_factory=lambda: Mirror("copy"))
    empty: Mirror = field(default_factory=lambda: Mirror("empty"))
    digests: dict[int, str] = field(default_factory=dict)

    def reader(self, *mirrors: Mirror, patience_s: float = 0.0) -> CheckpointReader:
        return CheckpointReader(Mirrors([m.place for m in mirrors], patience_s=patience_s))


def weights(value: int, tensors: int = 12) -> dict[str, Array]:
    return {f"t{i}": np.full(3000, value + i, np.int32) for i in range(tensors)}


@pytest.fixture
def trio() -> Trio:
    trio = Trio()
    Root.create(trio.source.place, lease_s=0.2)
    with CheckpointWriter(trio.source.place, max_file_bytes=30_000, keep=None) as writer:
        for step in range(2):
            report = writer.write(step, weights(100 * step), files={"config.json": CONFIG})
            trio.digests[report.version] = report.digest
    trio.copy.take(trio.source)
    trio.source.calls.clear()
    return trio


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough that no test sees its end, unless it sets it."""
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 60.0)


@pytest.mark.parametrize(
    "make",
    [lambda: ConnectionFailed("away"), lambda: AccessDenied("no"), lambda: StoreTimeout("slow")],
)
def test_what_one_mirror_does_not_serve_comes_from_the_next(
    trio: Trio, tmp_path: Path, make: Callable[[], WStoreError], caplog: pytest.LogCaptureFixture
) -> None:
    trio.source.down(make)
    reader = trio.reader(trio.source, trio.copy)
    newest = reader.latest()
    assert weights_digest(reader.load()) == newest.digest == trio.digests[newest.number]
    out = {name: np.zeros_like(array) for name, array in weights(0).items()}
    reader.load(out=out, verify="after")
    assert weights_digest(out) == newest.digest
    local = reader.download(None, tmp_path / "local")
    assert (local / "config.json").read_bytes() == CONFIG
    assert [v.number for v in reader.versions()] == sorted(trio.digests)
    # A mirror that failed is not asked for each object anew.
    assert len(trio.source.calls) == 1
    told = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert any("memory://source/root" in record.getMessage() for record in told)


def test_a_mirror_that_dies_in_the_middle_of_a_load(trio: Trio) -> None:
    reads = 0

    def failure(call: Call) -> WStoreError | None:
        nonlocal reads
        reads += call.op == "read" and "safetensors" in call.key
        return ConnectionFailed("died") if reads > 2 else None

    trio.source.failure = failure
    reader = trio.reader(trio.source, trio.copy)
    assert weights_digest(reader.load()) == reader.latest().digest
    assert reads > 2


@pytest.mark.parametrize("what", ["safetensors", "manifest.json", "/log/", "config.json"])
def test_a_corrupt_mirror_is_named_and_not_believed(
    trio: Trio, what: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    trio.source.damage(what, at=-3)
    reader = trio.reader(trio.source, trio.copy)
    local = reader.download(None, tmp_path / "local")
    assert weights_digest(CheckpointReader(str(local)).load()) == max(trio.digests.items())[1]
    assert (local / "config.json").read_bytes() == CONFIG
    told = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert told
    assert all("memory://source/root" in line for line in told)
    assert not any("memory://copy/root" in line.partition(" ")[0] for line in told)


def test_damage_without_another_copy_names_every_place(trio: Trio) -> None:
    for mirror in (trio.source, trio.copy):
        mirror.damage("safetensors")
    with pytest.raises(IntegrityError) as caught:
        trio.reader(trio.source, trio.copy).load()
    assert "memory://source/root/data" in str(caught.value)
    assert "memory://copy/root/data" in str(caught.value)


def test_each_kind_of_failure_is_in_the_error(trio: Trio) -> None:
    trio.source.down(lambda: AccessDenied("not for you"))
    trio.copy.down()
    with pytest.raises(MirrorsFailed) as caught:
        trio.reader(trio.source, trio.copy, trio.empty).load()
    for cause in ("source/root: not for you", "copy/root: away", "empty/root: there is no root"):
        assert cause in str(caught.value)
    trio.copy.down(lambda: AccessDenied("nor for you"))
    with pytest.raises(AccessDenied, match=r"source.*not for you.*copy.*nor for you"):
        trio.reader(trio.source, trio.copy).load()


def test_a_mirror_that_is_behind(trio: Trio) -> None:
    first, second = sorted(trio.digests)
    behind = trio.empty
    behind.take(trio.source, records=first)
    reader = trio.reader(behind, trio.copy)
    assert reader.latest().number == second
    assert [v.number for v in reader.versions()] == [first, second]
    assert weights_digest(reader.load(second)) == trio.digests[second]
    assert weights_digest(reader.load(first)) == trio.digests[first]
    assert reader.wait(first, timeout=30).number == second
    with pytest.raises(RunEnded):
        reader.wait(second, timeout=30)


def test_never_older_than_what_was_seen(trio: Trio) -> None:
    first, second = sorted(trio.digests)
    trio.empty.take(trio.source, records=first)
    reader = trio.reader(trio.copy, trio.empty)
    assert reader.latest().number == second
    trio.copy.down()
    assert reader.latest().number == second


def test_what_no_mirror_has_yet_is_waited_for(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror that showed the version goes away; the other one still gets it."""
    first, second = sorted(trio.digests)
    behind = trio.empty
    behind.take(trio.source, records=first, data="nothing-yet")
    reader = trio.reader(trio.copy, behind, patience_s=30.0)
    mirrors = reader._mirrors
    assert mirrors is not None
    version = reader.latest()
    manifest = mirrors.manifest(version)
    trio.copy.down()
    threading.Timer(0.3, lambda: behind.take(trio.source)).start()
    for ref in manifest.objects:
        data = mirrors.copies(version, ref.name).read(lambda path: path.read_bytes())
        assert len(data) == ref.size
    assert version.number == second


def test_what_is_gone_is_not_waited_for(trio: Trio) -> None:
    reader = trio.reader(trio.copy, trio.source, patience_s=60.0)
    first = min(trio.digests)
    version = reader.versions()[0]
    assert version.number == first
    for mirror in (trio.copy, trio.source):
        collect(Root.open(mirror.place), Retention(1), pause=lambda _: None)
    with pytest.raises(VersionGone, match=r"copy.*source"):
        reader.load(version)
    mirrors = reader._mirrors
    assert mirrors is not None
    with pytest.raises(VersionGone):
        mirrors.manifest(version)


def test_a_version_that_one_mirror_keeps_longer(trio: Trio) -> None:
    collect(Root.open(trio.source.place), Retention(1), pause=lambda _: None)
    first = min(trio.digests)
    assert weights_digest(trio.reader(trio.source, trio.copy).load(first)) == trio.digests[first]


def test_different_roots_are_refused(trio: Trio) -> None:
    Root.create(trio.empty.place)
    for pair in ((trio.source, trio.empty), (trio.empty, trio.source)):
        reader = trio.reader(*pair)
        for call in (reader.latest, reader.load, lambda r=reader: r.wait(timeout=5)):
            with pytest.raises(DifferentRoots, match="memory://") as caught:
                call()
            assert all(mirror.place.url in str(caught.value) for mirror in pair)


def test_mirrors_of_nothing_or_twice_the_same(trio: Trio) -> None:
    with pytest.raises(InvalidArgument):
        CheckpointReader([])
    with pytest.raises(InvalidArgument, match="each once"):
        CheckpointReader(["memory://a/b", "memory://a/b/"])
    with pytest.raises(NotARoot, match=r"memory://a/b.*memory://a/c"):
        CheckpointReader(["memory://a/b", "memory://a/c"]).latest()


def test_a_wait_begins_before_there_is_a_root_and_outlives_the_preferred_mirror(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wstore_transports.versions.mirrors.LOOK_S", 0.05)
    one, two = trio.empty, Mirror("two")
    reader = trio.reader(one, two)
    with pytest.raises(WaitTimeout, match="no root"):
        reader.wait(timeout=0.05)
    threading.Timer(0.2, lambda: two.take(trio.source)).start()
    assert reader.wait(timeout=30).number == max(trio.digests)
    one.down()
    two.down()
    with pytest.raises(WaitTimeout, match=r"empty.*away.*two.*away"):
        reader.wait(max(trio.digests), timeout=0.1)
    two.up()
    with pytest.raises(WaitTimeout):  # the log that is seen has ended, but the other may go on
        reader.wait(max(trio.digests), timeout=0.3)
    one.up()
    with pytest.raises(RunEnded):
        trio.reader(one, two).wait(max(trio.digests), timeout=30)


def test_a_publisher_is_lost_only_when_every_mirror_says_so(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wstore_transports.versions.mirrors.LOOK_S", 0.02)
    session = Root.open(trio.source.place).begin_session("run", interval_s=3600)
    for key in trio.source.names("/sessions/"):
        trio.copy.inner.write(key, trio.source.inner.read(key, 0, 1 << 20).data)
    trio.copy.take(trio.source)
    newest = max(trio.digests)
    reader = trio.reader(trio.copy, trio.source)
    trio.source.down()
    with pytest.raises(WaitTimeout):
        reader.wait(newest, timeout=0.6)
    trio.source.up()
    with pytest.raises(PublisherLost):
        trio.reader(trio.copy, trio.source).wait(newest, timeout=30)
    session.close()


def test_a_lease_goes_where_it_can_be_written(trio: Trio) -> None:
    def read_only(call: Call) -> WStoreError | None:
        return AccessDenied("read only") if call.op in ("write", "delete") else None

    trio.source.failure = read_only
    mirrors = Mirrors([trio.source.place, trio.copy.place])
    with mirrors.lease("engine") as lease:
        assert trio.copy.names("/leases/engine")
        lease.only(min(trio.digests))
    assert not trio.copy.names("/leases/")
    trio.copy.failure = read_only
    reader = trio.reader(trio.source, trio.copy)
    assert weights_digest(reader.load()) == reader.latest().digest


def test_a_mirror_that_failed_is_tried_again_later(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 0.05)
    trio.source.down()
    reader = trio.reader(trio.source, trio.copy)
    reader.load()
    assert len(trio.source.calls) <= 12  # once a rest, and the rests double
    trio.source.up()
    time.sleep(1.0)
    trio.copy.calls.clear()
    reader.load(max(trio.digests))
    assert not any("safetensors" in call.key for call in trio.copy.calls)


def test_no_version_yet(trio: Trio) -> None:
    Root.create(trio.empty.place)
    fresh = Mirror("fresh")
    fresh.take(trio.empty)
    reader = trio.reader(trio.empty, fresh)
    with pytest.raises(NoVersion):
        reader.latest()
    with pytest.raises(NoVersion):
        reader.load(7)


def test_a_mirror_that_hangs_holds_up_nobody(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_look, "LATE_S", 0.1)
    gate, answered = threading.Event(), []

    def hang(call: Call) -> WStoreError | None:
        gate.wait(30)
        answered.append(call)
        return None

    trio.source.failure = hang
    try:
        reader = trio.reader(trio.source, trio.copy)
        assert weights_digest(reader.load()) == reader.latest().digest
        assert len(reader.versions()) == 2
        with pytest.raises(WaitTimeout):
            reader.wait(max(trio.digests), timeout=0.05)
        alone = trio.reader(trio.source)
        cancel = threading.Event()
        threading.Timer(0.05, cancel.set).start()
        with pytest.raises(Cancelled):
            alone.wait(timeout=60, cancel=cancel)
        assert not answered
    finally:
        gate.set()


def test_after_a_rest_one_request_tries(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 0.0)
    site = mirror_site.Site(trio.source.place)
    site.failed("", ConnectionFailed("away"))
    assert [site.admits("data/x"), site.admits("data/x"), site.admits("")] == [True, False, False]
    site.failed("", ConnectionFailed("still away"))
    assert [site.admits(""), site.admits("")] == [True, False]
    site.worked("data/x")
    assert [site.admits(""), site.admits("")] == [True, True]


def test_a_wait_at_a_mirror_that_fails_is_paced(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []

    def fail(*args: object, **kwargs: object) -> None:
        waits.append(args)
        raise ConnectionFailed("away")

    reader = trio.reader(trio.copy)
    monkeypatch.setattr(Root, "wait", fail)
    monkeypatch.setattr(Mirrors, "_judge", lambda *args: None)
    with pytest.raises(WaitTimeout, match="away"):
        reader.wait(max(trio.digests), timeout=0.2)
    assert 0 < len(waits) < 12
    with pytest.raises(InvalidArgument, match="wait after -1"):
        reader.wait(-1, timeout=5)


def test_a_version_seen_is_listed_while_its_mirror_is_away(trio: Trio) -> None:
    first, second = sorted(trio.digests)
    trio.empty.take(trio.source, records=first)
    reader = trio.reader(trio.copy, trio.empty)
    assert reader.latest().number == second
    trio.copy.down()
    assert [v.number for v in reader.versions()] == [first, second]


def test_a_mirror_that_is_behind_is_told_of_once(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = sorted(trio.digests)
    trio.empty.take(trio.source, records=first, data="nothing-yet")
    mirrors = Mirrors([trio.empty.place, trio.copy.place])
    version = mirrors.version(second)
    listed = mirrors.manifest(version).objects
    assert len(listed) > 2
    for ref in listed:
        mirrors.copies(version, ref.name).read(lambda path: path.read_bytes())
    told = [record for record in caplog.records if "memory://empty" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.INFO]
    assert len(mirrors._sites[0]._rests) == 1


def test_rests_that_ended_long_ago_are_forgotten(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 0.0)
    monkeypatch.setattr(mirror_site, "_FORGET_S", 0.0)
    site = mirror_site.Site(trio.source.place)
    for name in range(5):
        site.failed(f"data/{name}", IntegrityError("damaged"))
    assert len(site._rests) == 1


def test_a_remote_mirror_is_limited_and_uses_the_present_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = [MemoryStore("before"), MemoryStore("after")]
    for store in stores:
        store.write("root/x", memoryview(store.url.encode()))
    present = stores[:1]
    monkeypatch.setattr(registry, "bare_store", lambda location: present[0])
    path = mirror_site.Site(StoragePath("s3://bucket/root")).path / "x"
    assert isinstance(path.store, Limit)
    assert path.read_text() == "memory://before"
    present[0] = stores[1]
    assert path.read_text() == "memory://after"


STATES = st.sampled_from(["sound", "away", "denied"])
OBJECT = st.sampled_from(["sound", "sound", "damaged", "missing"])


def check_any_sound_copy(count: int) -> None:
    trio = Trio()
    with CheckpointWriter(trio.source.place, max_file_bytes=30_000) as writer:
        digest = writer.write(1, weights(5)).digest
    objects = trio.source.names("safetensors")
    objects = [key for key in objects if not key.endswith("index.json")]
    assert len(objects) >= 4

    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(
        st.lists(STATES, min_size=3, max_size=3),
        st.lists(
            st.lists(OBJECT, min_size=len(objects), max_size=len(objects)), min_size=3, max_size=3
        ),
    )
    def check(states: list[str], contents: list[list[str]]) -> None:
        mirrors = [Mirror(f"m{i}") for i in range(3)]
        for mirror, state, content in zip(mirrors, states, contents, strict=True):
            mirror.take(trio.source)
            for key, what in zip(objects, content, strict=True):
                if what == "missing":
                    mirror.inner.delete(key)
                elif what == "damaged":
                    mirror.damage(key)
            if state != "sound":
                mirror.down(
                    (lambda: AccessDenied("no"))
                    if state == "denied"
                    else (lambda: ConnectionFailed("away"))
                )
        there = [c for s, c in zip(states, contents, strict=True) if s == "sound"]
        possible = bool(there) and all("sound" in copies for copies in zip(*there, strict=True))
        reader = trio.reader(*mirrors)
        if possible:
            assert weights_digest(reader.load()) == digest
        else:
            with pytest.raises(WStoreError) as caught:
                reader.load()
            assert all(mirror.place.url in str(caught.value) for mirror in mirrors)
        # Whoever fails is let alone, but for a last try by each request that no other mirror can serve.
        most = 4 if possible else 4 + mirrors[0].capabilities.concurrency
        for mirror, state in zip(mirrors, states, strict=True):
            assert state == "sound" or len(mirror.calls) <= most

    check()


def test_any_sound_copy_is_found() -> None:
    logging.getLogger("wstore_transports").setLevel(logging.CRITICAL)
    try:
        check_any_sound_copy(30)
    finally:
        logging.getLogger("wstore_transports").setLevel(logging.NOTSET)
