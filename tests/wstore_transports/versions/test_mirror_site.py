"""One mirror among several: how long it is let alone after it failed, and its store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wstore.errors import ConnectionFailed, IntegrityError
from wstore.path import StoragePath
from wstore.stores import registry
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.limit import Limit
from wstore_transports.versions import mirror_site

if TYPE_CHECKING:
    import pytest

    from tests.wstore_transports.versions.mirror_trio import Trio


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


def test_after_a_rest_one_request_tries(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_site, "FIRST_REST_S", 0.0)
    site = mirror_site.Site(trio.source.place)
    site.failed("", ConnectionFailed("away"))
    assert [site.admits("data/x"), site.admits("data/x"), site.admits("")] == [True, False, False]
    site.failed("", ConnectionFailed("still away"))
    assert [site.admits(""), site.admits("")] == [True, False]
    site.worked("data/x")
    assert [site.admits(""), site.admits("")] == [True, True]


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
