"""zarr's own suite for stores, `zarr.testing.store.StoreTests`, over a store made of StoragePath.

All of it applies: nothing is skipped, and only what the suite asks of a subclass is defined here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests

from tests.wstore.zarr_store import StoragePathStore
from wstore import StoragePath

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

_numbers = itertools.count()


class Suite(StoreTests[StoragePathStore, cpu.Buffer]):
    """The suite with what it asks of a subclass; a further subclass brings `place`."""

    store_cls = StoragePathStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, place: StoragePath) -> dict[str, Any]:
        return {"path": place}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> StoragePathStore:
        return asyncio.run(StoragePathStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> StoragePathStore:
        return StoragePathStore(**store_kwargs)

    async def set(self, store: StoragePathStore, key: str, value: Buffer) -> None:
        (store.path / key).write_bytes(value.to_bytes())

    async def get(self, store: StoragePathStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.path / key).read_bytes())

    def test_store_repr(self, store: StoragePathStore) -> None:
        assert str(store.path) in repr(store)

    def test_store_supports_writes(self, store: StoragePathStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: StoragePathStore) -> None:
        assert store.supports_listing


def _in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


for _name, _test in inspect.getmembers(StoreTests, inspect.iscoroutinefunction):
    if _name.startswith("test_"):
        setattr(Suite, _name, _in_a_loop(_test))


# Of a disk and of S3 the quick tier has `fsspec/test_users.py`: arrays and groups.


@pytest.mark.long
class TestPosix(Suite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoragePath:
        return StoragePath(tmp_path)


class TestMemory(Suite):
    @pytest.fixture
    def place(self) -> StoragePath:
        return StoragePath(f"memory://zarr-suite-{next(_numbers)}/base")


@pytest.fixture(scope="module")
def s3_bucket(seaweed: S3Endpoint, bucket: MakeBucket) -> str:
    return bucket(seaweed)


@pytest.mark.long
class TestS3(Suite):
    @pytest.fixture
    def place(
        self, seaweed: S3Endpoint, s3_environment: UseEndpoint, s3_bucket: str
    ) -> StoragePath:
        s3_environment(seaweed)
        return StoragePath(f"s3://{s3_bucket}/base-{next(_numbers)}")
