"""Readers of several mirrors: what is taken from the next one, and what is refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wstore_transports.versions.mirror_trio import CONFIG, Mirror, Trio, weights
from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    IntegrityError,
    InvalidArgument,
    StoreTimeout,
    WStoreError,
)
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.errors import DifferentRoots, MirrorsFailed, NotARoot
from wstore_transports.versions import Mirrors, Root, mirror_site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore.stores.wrap.base import Call


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


# Any mixture of failures


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


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.long)])
def test_any_sound_copy_is_found(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 60.0)
    logging.getLogger("wstore_transports").setLevel(logging.CRITICAL)
    try:
        check_any_sound_copy(count)
    finally:
        logging.getLogger("wstore_transports").setLevel(logging.NOTSET)
