"""From schemes to stores: caching, configuration, entry points, fork."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING

import pytest

from wstore import InvalidPath, StoragePath
from wstore.stores import registry
from wstore.stores.memory import MemoryStore
from wstore.stores.registry import Scheme
from wstore.stores.wrap import Limit, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING = "WSTORE_TEST_SETTING"
plugin = Scheme(MemoryStore, configuration=lambda: os.environ.get(SETTING))
not_a_scheme = MemoryStore


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    points: list[EntryPoint] = []
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: EntryPoints(points).select(group=group)
    )
    monkeypatch.setattr(registry, "_registry", registry._Registry())
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.value.partition(":")[2]])
    return points


def point(name: str, attribute: str = "plugin") -> EntryPoint:
    return EntryPoint(name, f"fake:{attribute}", registry.GROUP)


def test_one_store_a_root() -> None:
    assert StoragePath("memory://r1/a").store is StoragePath("memory://r1/b").store
    assert StoragePath("memory://r1/a").store is not StoragePath("memory://r2/a").store
    assert StoragePath("/a").store is StoragePath("file:///b").store


def test_an_added_scheme_is_wrapped_and_follows_its_configuration(
    entry_points: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_points.append(point("plug"))
    path = StoragePath("plug://bucket/x")
    store = path.store
    assert isinstance(store, Limit)
    assert isinstance(store.inner, Retry)
    assert path.store is store
    monkeypatch.setenv(SETTING, "other")
    assert path.store is not store
    monkeypatch.delenv(SETTING)
    assert path.store is store


def test_a_configuration_is_read_again_only_when_its_variables_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str | None] = []

    def read(environment: Mapping[str, str]) -> str | None:
        reads.append(environment.get(SETTING))
        return reads[-1]

    remembered = registry.Remembered(read)
    assert (remembered(), remembered()) == (None, None)
    monkeypatch.setenv(SETTING, "a")
    assert (remembered(), remembered()) == ("a", "a")
    monkeypatch.setenv("WSTORE_TEST_UNRELATED", "x")
    assert remembered() == "a"
    monkeypatch.delenv(SETTING)
    assert remembered() is None
    assert reads == [None, "a", None]


def test_two_providers_of_one_scheme_are_an_error(entry_points: list[EntryPoint]) -> None:
    entry_points += [point("plug"), point("plug", "not_a_scheme")]
    with pytest.raises(InvalidPath, match="two packages"):
        StoragePath("plug://bucket/x")


def test_a_built_in_scheme_is_not_replaced(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("s3"))
    with pytest.raises(InvalidPath, match="two packages"):
        StoragePath("plug://bucket/x")


def test_an_entry_point_that_is_no_scheme(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("plug", "not_a_scheme"))
    with pytest.raises(InvalidPath, match="not a wstore"):
        _ = StoragePath("plug://bucket/x").store


def test_unknown_schemes_list_the_added_ones(entry_points: list[EntryPoint]) -> None:
    entry_points.append(point("plug"))
    with pytest.raises(InvalidPath, match="https, memory, plug, s3"):
        StoragePath("nosuch://x/y")


def test_a_forked_child_opens_its_own() -> None:
    path = StoragePath("memory://forked/x")
    path.write_bytes(b"parent")
    parents = registry._registry
    child = os.fork()
    if child == 0:
        fine = registry._registry is not parents and path.read_bytes() == b"parent"
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
