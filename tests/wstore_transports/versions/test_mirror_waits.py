"""Readers of several mirrors: one that is behind, what is waited for, and when a run has ended."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from tests.wstore_transports.versions.mirror_trio import Mirror, Trio
from wstore.errors import Cancelled, ConnectionFailed, InvalidArgument, WaitTimeout, WStoreError
from wstore_transports.checkpoint import weights_digest
from wstore_transports.errors import NoVersion, PublisherLost, RunEnded, VersionGone
from wstore_transports.versions import Mirrors, Retention, Root, collect, mirror_look

if TYPE_CHECKING:
    from wstore.stores.wrap.base import Call

# Behind


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


def test_never_older_than_what_was_seen(trio: Trio) -> None:
    first, second = sorted(trio.digests)
    trio.empty.take(trio.source, records=first)
    reader = trio.reader(trio.copy, trio.empty)
    assert reader.latest().number == second
    trio.copy.down()
    assert reader.latest().number == second


def test_a_version_seen_is_listed_while_its_mirror_is_away(trio: Trio) -> None:
    first, second = sorted(trio.digests)
    trio.empty.take(trio.source, records=first)
    reader = trio.reader(trio.copy, trio.empty)
    assert reader.latest().number == second
    trio.copy.down()
    assert [v.number for v in reader.versions()] == [first, second]


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


def test_no_version_yet(trio: Trio) -> None:
    Root.create(trio.empty.place)
    fresh = Mirror("fresh")
    fresh.take(trio.empty)
    reader = trio.reader(trio.empty, fresh)
    with pytest.raises(NoVersion):
        reader.latest()
    with pytest.raises(NoVersion):
        reader.load(7)


# Waits


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
    with pytest.raises(WaitTimeout) as away:
        reader.wait(max(trio.digests), timeout=0.1)
    assert "memory://empty/root: away" in str(away.value)
    assert "memory://two/root: away" in str(away.value)
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
