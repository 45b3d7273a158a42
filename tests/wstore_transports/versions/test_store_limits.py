"""Roots on stores with limits of their own: conditions that are ignored, one overwrite a second."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from wstore.errors import UnsupportedOperation
from wstore.path import StoragePath
from wstore.stores.base import Expect
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.gcs.store import GcsStore
from wstore.stores.memory import MemoryStore
from wstore.stores.s3 import S3Config, S3Store
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import IgnoredConditions
from wstore_transports.checkpoint.reader import leased_snapshot
from wstore_transports.versions import Root, layout
from wstore_transports.versions.heartbeat import OverwritePace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore.stores.base import Capabilities, ObjectInfo, Store
    from wstore_transports.versions import PublishSession, Version

PACE_S = 0.3


class Slow(MemoryStore):
    """Memory of which a key may be overwritten once in `PACE_S`, and that counts who does not wait."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.written: dict[str, list[float]] = {}
        self.too_soon: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, overwrite_interval_s=PACE_S)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        times = self.written.setdefault(key, [])
        if times and time.monotonic() - times[-1] < PACE_S:
            self.too_soon.append(key)
        info = super().write(key, data, expect=expect, write_id=write_id)
        times.append(time.monotonic())
        return info


@pytest.fixture(params=["s3", "gs"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[FaultServer, StoragePath]]:
    """A server of each kind, and a path on it."""
    kind = request.param
    with FaultServer(service=FakeGcs() if kind == "gs" else None) as server:
        store: Store = (
            GcsStore(server.bucket, GcsConfig(endpoint=server.url, anonymous=True))
            if kind == "gs"
            else S3Store(server.bucket, S3Config.from_environment(server.endpoint.environment()))
        )
        yield server, StoragePath(f"{kind}://{server.bucket}/root", store=store)


def test_a_server_that_ignores_conditions_gets_no_root(
    served: tuple[FaultServer, StoragePath],
) -> None:
    server, path = served
    server.script(IgnoredConditions(), times=FOREVER)
    with pytest.raises(UnsupportedOperation, match="ignores preconditions") as caught:
        Root.create(path)
    assert caught.value.url == path.url
    assert list(path.rglob("*")) == []


def test_a_root_that_moved_to_such_a_server_gets_no_publisher(
    served: tuple[FaultServer, StoragePath], publish: Callable[[PublishSession, int], Version]
) -> None:
    """Readers are served; the proof is asked for once in the life of a root object."""
    server, path = served
    root = Root.create(path)
    with root.begin_session("run") as session:
        publish(session, 1)
    probes = [e for e in server.requests("PUT") if "/probe-" in e.request.key]
    assert len(probes) == 2
    server.script(IgnoredConditions(), times=FOREVER)
    again = Root.open(path)
    with pytest.raises(UnsupportedOperation, match="ignores preconditions"):
        again.begin_session("run")
    assert again.latest().step == 1


def test_the_head_the_counter_and_leases_keep_the_stores_pace(
    publish: Callable[[PublishSession, int], Version],
) -> None:
    store = Slow()
    path = StoragePath("memory://slow/root", store=store)
    root = Root.create(path, lease_s=30)
    with root.begin_session("run", interval_s=0.05) as session:
        first = publish(session, 1)
        with root.lease("reader") as lease:
            lease.only(first.number)
            lease.everything()
        publish(session, 2)
    moving = [
        [len(times) for key, times in store.written.items() if name in key]
        for name in (layout.HEAD, "sessions/", "leases/")
    ]
    assert all(count >= 2 for (count,) in moving), moving
    assert [key for key in store.too_soon if "/probe-" not in key] == []


def test_without_a_limit_nobody_waits(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr(time, "sleep", refuse)
    pace = OverwritePace(StoragePath("memory://test/x", store=store))
    for _ in range(3):
        with pace:
            pass


def test_a_load_does_not_wait_for_its_lease_to_narrow(
    publish: Callable[[PublishSession, int], Version],
) -> None:
    store = Slow()
    path = StoragePath("memory://slow/root", store=store)
    root = Root.create(path, lease_s=30)
    with root.begin_session("run") as session:
        first = publish(session, 1)

    def writes() -> list[int]:
        return [len(times) for key, times in store.written.items() if "leases/" in key]

    with leased_snapshot(path, None):
        assert writes() == [1]
    with root.lease("reader") as lease:
        lease.narrow(first.number)
        assert lease.versions is None
        deadline = time.monotonic() + 30
        while lease.versions is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert lease.versions == {first.number}
        lease.narrow(7)
        lease.hold(first.number)  # what comes later must not undo this
        assert lease.versions == {first.number, 7}
    assert [key for key in store.too_soon if "/probe-" not in key] == []
