"""Fixtures of the tests of `WStoreFileSystem`: one of its own each, and places to use it on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath
from wstore.fsspec import WStoreFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsspec import AbstractFileSystem

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


_numbers = itertools.count()


@pytest.fixture
def fs() -> Iterator[AbstractFileSystem]:
    yield WStoreFileSystem()
    WStoreFileSystem.clear_instance_cache()


@pytest.fixture
def memory() -> StoragePath:
    return StoragePath(f"memory://fsspec-{next(_numbers)}/base")


@pytest.fixture(scope="module")
def s3_bucket(seaweed: S3Endpoint, bucket: MakeBucket) -> str:
    return bucket(seaweed)


@pytest.fixture(params=["posix", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_environment: UseEndpoint
) -> StoragePath:
    if request.param == "posix":
        return StoragePath(tmp_path / "base")
    s3_environment(request.getfixturevalue("seaweed"))
    return StoragePath(f"s3://{request.getfixturevalue('s3_bucket')}/fs-{next(_numbers)}")
