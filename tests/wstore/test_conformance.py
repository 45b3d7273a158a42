"""Every Store runs the whole suite: all of it in the quick tier on a disk, in memory and on one S3 server,
elsewhere the essentials there and the rest in the long tier.

But one: web servers are for reading only, and the suite writes. `test_http_store.py` has their reads.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import obstore
import pytest

from tests.wstore.conformance_classes import Conformance, EssentialsFirst
from tests.wstore.sftp_server import sftp_server
from wstore.errors import NotFound
from wstore.stores.fsspec.fsspec_store import FsspecStore
from wstore.stores.fsspec.gcs_store import GcsJsonStore
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.gcs.store import GcsStore
from wstore.stores.memory import MemoryStore
from wstore.stores.objects.azure import open_azure
from wstore.stores.objects.memory import client_of as obstore_memory
from wstore.stores.objects.memory import open_memory
from wstore.stores.posix_store import PosixStore
from wstore.stores.s3.config import S3Config
from wstore.stores.s3.environment import Secret
from wstore.stores.s3.store import S3Store
from wstore.stores.wrap import Faults, Latency, Limit, Retry, RetryPolicy, Trace
from wstore.testing.azurite import AzureEndpoint, create_container, get_blob, put_blob
from wstore.testing.conformance import StoreUnderTest
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FaultServer
from wstore.testing.gcs_requests import GcsEndpoint, get_gcs_object, put_gcs_object
from wstore.testing.s3_requests import S3Endpoint, get_object, put_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.stores.base import Store


_numbers = itertools.count()


class TestPosix(Conformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreUnderTest:
        prefix = str(tmp_path)[1:] + "/"
        return StoreUnderTest(PosixStore, _file_get, _file_put, prefix, flat=False, processes=True)


class TestPosixBelowARoot(EssentialsFirst):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreUnderTest:
        return StoreUnderTest(
            partial(PosixStore, str(tmp_path)),
            lambda key: _file_get(f"{tmp_path}/{key}"),
            lambda key, data: _file_put(f"{tmp_path}/{key}", data),
            "sub/",
            flat=False,
        )


class TestPosixOnASharedMount(EssentialsFirst):
    """What the store does on one host is checked on another, and others write there."""

    @pytest.fixture
    def place(self, shared: tuple[Path, Path]) -> StoreUnderTest:
        return _across(*shared)


@pytest.mark.long
class TestPosixOnTheOtherMount(Conformance):
    @pytest.fixture
    def place(self, shared: tuple[Path, Path]) -> StoreUnderTest:
        return _across(*reversed(shared))


class TestMemory(Conformance):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: store)


class TestRetry(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(Retry)


class TestLimit(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Limit(store, 3))


class TestTrace(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Trace(store, lambda record: None))


class TestFaults(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(Faults)


class TestLatency(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        return _over_memory(lambda store: Latency(store, fixed_s=1e-5))


class TestAllWrappers(EssentialsFirst):
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


@pytest.mark.long
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


class TestS3OnSeaweed(EssentialsFirst):
    """Also what stands for Google's interoperability mode (`AWS_ENDPOINT_URL` at Google, HMAC keys): the same
    code against another server, see `test_googles_interoperability_mode`."""

    @pytest.fixture
    def place(self, seaweed: S3Endpoint, bucket: MakeBucket) -> Iterator[StoreUnderTest]:
        with _s3(seaweed, bucket(seaweed)) as place:
            yield replace(place, flat=False, many=60, mangled="\\")


class TestObstoreMemory(EssentialsFirst):
    @pytest.fixture
    def place(self) -> StoreUnderTest:
        name = f"suite-{next(_numbers)}"
        client = obstore_memory(name)

        def get(key: str) -> bytes | None:
            try:
                return bytes(obstore.get(client, key).bytes())
            except FileNotFoundError:
                return None

        def put(key: str, data: bytes) -> None:
            obstore.put(client, key, data)

        return StoreUnderTest(
            lambda: open_memory(name), get, put, "deep/prefix/", flat=False, mangled="\t\n"
        )


@pytest.mark.long
class TestAzureOnAzurite(Conformance):
    @pytest.fixture
    def place(
        self, azurite: AzureEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[StoreUnderTest]:
        for name, value in azurite.environment().items():
            monkeypatch.setenv(name, value)
        container = f"suite-{next(_numbers)}"
        create_container(azurite, container)
        with ExitStack() as opened:

            def open_store() -> Store:
                store = open_azure("az", container)
                opened.callback(store.close)
                return store

            yield StoreUnderTest(
                open_store,
                partial(get_blob, azurite, container),
                partial(put_blob, azurite, container),
                "deep/prefix/",
                flat=False,
                many=20,
                rounds=1,
                mangled="\\\t\n",
                one_upload=True,
            )


class TestFsspecMemory(EssentialsFirst):
    """Under `Retry`: a read takes several requests, and starts over when the object was replaced."""

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest) -> StoreUnderTest:
        files, root = fsspec.filesystem("memory"), request.node.name

        def get(key: str) -> bytes | None:
            path = f"/{root}/{key}"
            return bytes(files.cat_file(path)) if files.isfile(path) else None

        def put(key: str, data: bytes) -> None:
            files.pipe_file(f"/{root}/{key}", data)

        def make() -> Retry:
            return Retry(FsspecStore("memory", root))

        return StoreUnderTest(make, get, put, "deep/", flat=False, many=60)


@pytest.mark.long
class TestFsspecSftp(Conformance):
    """Over a real server on real files. SFTP tells whole seconds: the back door is one later."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[str]:
        with sftp_server() as root:
            yield root

    @pytest.fixture
    def place(self, server: str, tmp_path: Path) -> Iterator[StoreUnderTest]:
        stores = [FsspecStore("sftp", server) for _ in range(2)]
        turns = itertools.cycle(stores)
        prefix = str(tmp_path)[1:] + "/"
        yield StoreUnderTest(
            lambda: next(turns), _file_get, _later_put, prefix, flat=False, many=40, rounds=1
        )
        for store in stores:
            store.close()


@pytest.mark.long
class TestFsspecS3(Conformance):
    """s3fs. Its clients cost a second each to make, so one bucket and two stores serve all checks."""

    @pytest.fixture(scope="class")
    @classmethod
    def stores(cls, seaweed: S3Endpoint, bucket: MakeBucket) -> Iterator[list[FsspecStore]]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in seaweed.environment().items():
                patch.setenv(name, value)
            name = bucket(seaweed)
            stores = [FsspecStore("s3", name) for _ in range(2)]
            yield stores
            for store in stores:
                store.close()

    @pytest.fixture
    def place(
        self,
        seaweed: S3Endpoint,
        stores: list[FsspecStore],
        s3_environment: UseEndpoint,
        request: pytest.FixtureRequest,
    ) -> StoreUnderTest:
        s3_environment(seaweed)
        turns = itertools.cycle(stores)
        name = stores[0].url.removeprefix("s3://")
        get, put = partial(get_object, seaweed, name), partial(put_object, seaweed, name)
        prefix = f"{request.node.name}/"
        return StoreUnderTest(
            lambda: next(turns), get, put, prefix, flat=False, many=40, rounds=1, mangled="\\"
        )


class TestGcsJson(EssentialsFirst):
    @pytest.fixture
    def place(self, gcs: GcsEndpoint, gcs_bucket: str) -> Iterator[StoreUnderTest]:
        config = GcsConfig.from_environment()
        with ExitStack() as opened:

            def open_store() -> GcsJsonStore:
                store = GcsJsonStore(gcs_bucket, config)
                opened.callback(store.close)
                return store

            get = partial(get_gcs_object, gcs, gcs_bucket)
            put = partial(put_gcs_object, gcs, gcs_bucket)
            yield StoreUnderTest(open_store, get, put, "deep/prefix/", many=60, rounds=1)


class TestGcsXml(EssentialsFirst):
    """The stub checks the token, and Google's lower limit of pieces; no key holds a line break there."""

    @pytest.fixture
    def place(self) -> Iterator[StoreUnderTest]:
        service = FakeGcs(token="stub-token", min_piece=5 << 20)
        with FaultServer(service=service) as server, ExitStack() as opened:
            config = GcsConfig(endpoint=server.url, token=Secret("stub-token"))

            def open_store() -> GcsStore:
                store = GcsStore(server.bucket, config)
                opened.callback(store.close)
                return store

            yield StoreUnderTest(
                open_store, server.get, server.put, "deep/prefix/", rounds=1, mangled="\r\n"
            )


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


def _across(ours: Path, theirs: Path) -> StoreUnderTest:
    """Stores on our mount, the back door on theirs. The other host sees a change within a second, not
    at once: the back door waits until both agree."""

    def get(key: str) -> bytes | None:
        return _agreed(lambda: _file_get(f"{theirs}/{key}"), lambda: _file_get(f"{ours}/{key}"))

    def put(key: str, data: bytes) -> None:
        _file_put(f"{theirs}/{key}", data)
        _agreed(lambda: data, lambda: _file_get(f"{ours}/{key}"))

    return StoreUnderTest(
        partial(PosixStore, str(ours)), get, put, "sub/", flat=False, many=30, rounds=1
    )


def _agreed(one: Callable[[], bytes | None], other: Callable[[], bytes | None]) -> bytes | None:
    deadline = time.monotonic() + 10
    while (found := one()) != other() and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _file_get(key: str) -> bytes | None:
    path = Path("/") / key
    return path.read_bytes() if path.is_file() else None


def _file_put(key: str, data: bytes) -> None:
    path = Path("/") / key
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"put-by-others-{threading.get_ident()}")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def _later_put(key: str, data: bytes) -> None:
    """As `_file_put`, at least a second after what is there."""
    path = Path("/") / key
    before = path.stat().st_mtime if path.exists() else 0.0
    _file_put(key, data)
    if path.stat().st_mtime < before + 1:
        os.utime(path, (before + 1, before + 1))
