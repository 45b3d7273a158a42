"""Every Store runs the whole suite: POSIX, memory, S3 on three servers, each wrapper over memory."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore.errors import NotFound
from wstore.stores.memory import MemoryStore
from wstore.stores.posix_store import PosixStore
from wstore.stores.s3.config import S3Config
from wstore.stores.s3.store import S3Store
from wstore.stores.wrap import Faults, Latency, Limit, Retry, RetryPolicy, Trace
from wstore.testing.conformance import CHECKS, StoreUnderTest
from wstore.testing.fault_server import FaultServer
from wstore.testing.s3_requests import S3Endpoint, get_object, put_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import MakeBucket
    from wstore.stores.base import Store


class Conformance:
    """The suite as test methods; a subclass brings the fixture `place` and nothing else."""


def _test_of(check: Callable[[StoreUnderTest], None]) -> Callable[..., None]:
    def test(self: Conformance, place: StoreUnderTest) -> None:
        check(place)

    test.__doc__ = check.__doc__
    return test


for _check in CHECKS:
    setattr(Conformance, _check.__name__.replace("check_", "test_", 1), _test_of(_check))


class TestPosix(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreUnderTest:
        prefix = str(tmp_path)[1:] + "/"
        return StoreUnderTest(PosixStore, _file_get, _file_put, prefix, flat=False, processes=True)


class TestPosixBelowARoot(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreUnderTest:
        return StoreUnderTest(
            partial(PosixStore, str(tmp_path)),
            lambda key: _file_get(f"{tmp_path}/{key}"),
            lambda key, data: _file_put(f"{tmp_path}/{key}", data),
            "sub/",
            flat=False,
        )


class TestMemory(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: store)


class TestRetry(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(Retry)


class TestLimit(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Limit(store, 3))


class TestTrace(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Trace(store, lambda record: None))


class TestFaults(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(Faults)


class TestLatency(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Latency(store, fixed_s=1e-5))


class TestAllWrappers(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Limit(Retry(Faults(Latency(store))), 3))


class TestS3AsAwsHasIt(Conformance):
    """The fault server without a fault: AWS's answers where the other two servers differ."""

    @pytest.fixture
    def place(self) -> Iterator[StoreUnderTest]:
        with (
            FaultServer(min_piece=5 << 20) as server,
            _s3(server.endpoint, server.bucket) as place,
        ):
            yield replace(place, raw_get=server.get, raw_put=server.put)


class TestS3OnMoto(Conformance):
    """Under `Retry`: moto answers 500 when an object is replaced while it is read. A short one: moto
    also answers 500, for ever, where an upload is completed that was aborted."""

    @pytest.fixture
    def place(self, moto: S3Endpoint, bucket: MakeBucket) -> Iterator[StoreUnderTest]:
        with _s3(moto, bucket(moto)) as place:
            yield replace(
                place,
                open=lambda: Retry(place.open(), RetryPolicy(deadline_s=5)),
                many=60,
                mangled="\n",
                tells_age=False,
            )


class TestS3OnSeaweed(Conformance):
    @pytest.fixture
    def place(self, seaweed: S3Endpoint, bucket: MakeBucket) -> Iterator[StoreUnderTest]:
        with _s3(seaweed, bucket(seaweed)) as place:
            yield replace(place, flat=False, many=60, mangled="\\")


def _over_memory(wrap: Callable[[MemoryStore], Store]) -> StoreUnderTest:
    inner = MemoryStore("suite")

    def get(key: str) -> bytes | None:
        try:
            return bytes(inner.read(key, 0, 1 << 40).data)
        except NotFound:
            return None

    def put(key: str, data: bytes) -> None:
        inner.write(key, memoryview(data))

    return StoreUnderTest(lambda: wrap(inner), get, put, "")


@contextmanager
def _s3(endpoint: S3Endpoint, bucket: str) -> Iterator[StoreUnderTest]:
    config = S3Config.from_environment(endpoint.environment())
    with ExitStack() as opened:

        def open_store() -> S3Store:
            store = S3Store(bucket, config)
            opened.callback(store.close)
            return store

        get, put = partial(get_object, endpoint, bucket), partial(put_object, endpoint, bucket)
        yield StoreUnderTest(open_store, get, put, "deep/prefix/", rounds=1)


def _file_get(key: str) -> bytes | None:
    path = Path("/") / key
    return path.read_bytes() if path.is_file() else None


def _file_put(key: str, data: bytes) -> None:
    path = Path("/") / key
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"put-by-others-{threading.get_ident()}")
    unfinished.write_bytes(data)
    unfinished.rename(path)
