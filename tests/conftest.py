"""Fixtures for every test: real servers started once a run on first use, buckets, the fault server."""

from __future__ import annotations

import gc
import itertools
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import settings

from wstore import StoragePath
from wstore.testing.azurite import AzureEndpoint, azurite_is_missing, azurite_server
from wstore.testing.fault_server import FaultServer
from wstore.testing.fuse_mounts import DEVICE, FuseMount, fuse_is_missing, two_mounts
from wstore.testing.gcs_requests import GcsEndpoint, create_gcs_bucket
from wstore.testing.s3_requests import S3Endpoint, create_bucket
from wstore.testing.servers import SeaweedEndpoint, gcs_server, moto_server, seaweed_server

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from wstore.testing.environments import Endpoint

_numbers = itertools.count()

# A busy machine is no failure: no deadline.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("full", deadline=None, max_examples=150)

LONG_TIMEOUT_S = 1800
"""The limit of a full count (kill runs, fuzzing), on a machine that is busy with others."""


def pytest_configure(config: pytest.Config) -> None:
    """Where long tests run, so do all examples of the others."""
    settings.load_profile("quick" if "not long" in config.option.markexpr else "full")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported modules and collected tests stay to the end: no search for garbage goes through them, which
    takes most of a second where a test calls `gc.collect`."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives long tests their own limit."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


class MakeBucket(Protocol):
    """Makes a bucket with a name that no other test of this run has, and returns the name."""

    def __call__(self, endpoint: S3Endpoint) -> str: ...


class UseEndpoint(Protocol):
    """Points this process's AWS_* variables at a server for the rest of the test."""

    def __call__(self, endpoint: S3Endpoint) -> None: ...


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedEndpoint]:
    """SeaweedFS: real bytes, checks signatures and checksums, keeps keys as paths of files."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SFTP", "of the user")  # the name of a flag of weed, which must not see it
        endpoint = stack.enter_context(seaweed_server(tmp_path_factory.mktemp("seaweed")))
        patch.undo()
        yield endpoint


@pytest.fixture(scope="session")
def mounts(
    seaweed: SeaweedEndpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FuseMount, FuseMount]]:
    """Two FUSE mounts of one folder, as two hosts have them."""
    if fuse_is_missing():
        pytest.skip(f"{DEVICE} is missing: no tests on shared mounts")
    with two_mounts(seaweed.filer, tmp_path_factory.mktemp("mounts")) as both:
        yield both


@pytest.fixture
def shared(mounts: tuple[FuseMount, FuseMount]) -> tuple[Path, Path]:
    """A directory of the test's own, as seen on each of two hosts."""
    name = f"test-{next(_numbers)}"
    (mounts[0].path / name).mkdir()
    return mounts[0].path / name, mounts[1].path / name


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """moto: exact keys, limits of pieces; any credentials pass."""
    with moto_server(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureEndpoint]:
    """Microsoft's emulator of Azure; needs node."""
    if missing := azurite_is_missing():
        pytest.skip(f"{missing}: no tests against Azure")
    with azurite_server(tmp_path_factory.mktemp("azurite")) as endpoint:
        yield endpoint


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    """An S3 server that misbehaves as the test scripts it; small pieces are accepted."""
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="session")
def bucket() -> MakeBucket:
    def make(endpoint: S3Endpoint) -> str:
        name = f"wstore-{os.getpid()}-{next(_numbers)}"
        create_bucket(endpoint, name)
        return name

    return make


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsEndpoint]:
    """fake-gcs-server: the JSON API; exact keys, generations, conditions; no credentials."""
    with gcs_server(tmp_path_factory.mktemp("gcs")) as endpoint:
        yield endpoint


@pytest.fixture
def gcs_bucket(gcs: GcsEndpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a fresh bucket; the environment points at its emulator for the rest of the test."""
    name = f"wstore-{os.getpid()}-{next(_numbers)}"
    create_gcs_bucket(gcs, name)
    _point_at(gcs, monkeypatch)
    return name


def _point_at(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own is left that leads elsewhere."""
    wanted = endpoint.applied_to(os.environ)
    for name in os.environ.keys() - wanted.keys():
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> UseEndpoint:
    def use(endpoint: S3Endpoint) -> None:
        _point_at(endpoint, monkeypatch)

    return use


@pytest.fixture(params=["local", "moto", pytest.param("seaweed", marks=pytest.mark.long)])
def base(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    s3_environment: UseEndpoint,
    bucket: MakeBucket,
) -> Iterator[StoragePath]:
    """A directory of its own, nothing in it yet: on disk, and on both S3 servers. A test may ask for
    "gcs" as well: the emulator of Google Cloud Storage."""
    if request.param == "local":
        (tmp_path / "base").mkdir()
        yield StoragePath(tmp_path / "base")
        return
    if request.param == "gcs":
        path = StoragePath(f"gs://{request.getfixturevalue('gcs_bucket')}") / "base"
        yield path
        path.store.close()
        return
    endpoint: S3Endpoint = request.getfixturevalue(request.param)
    s3_environment(endpoint)
    path = StoragePath(f"s3://{bucket(endpoint)}") / "base"
    yield path
    path.store.close()
