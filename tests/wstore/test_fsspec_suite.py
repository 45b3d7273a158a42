"""fsspec's own abstract tests over `WStoreFileSystem`, on local files, in memory and on S3: all pass.

What does not apply, and why:

- `abstract/mv.py`: its two tests name fsspec's local file system themselves.
- Tests on object stores that expect empty directories to stay: they ask the fixture
  `supports_empty_directories`, which is false there, and put a file into each.
- SeaweedFS as the S3 server: it keeps directories of its own and goes on listing one for a while after its
  last object is gone, and eleven tests look at once. The server here is moto, which has keys only.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.tests import abstract

from wstore.fsspec import WStoreFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

_numbers = itertools.count()


class Suite(
    abstract.AbstractCopyTests,
    abstract.AbstractGetTests,
    abstract.AbstractOpenTests,
    abstract.AbstractPipeTests,
    abstract.AbstractPutTests,
):
    """All that fsspec brings but `abstract/mv.py`, whose tests are of fsspec's local file system only."""


@pytest.fixture(scope="module")
def s3_bucket(moto: S3Endpoint, bucket: MakeBucket) -> str:
    return bucket(moto)


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is /dev/shm: the suite writes thousands of files, each with its fsyncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as found:
        yield Path(found)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self) -> WStoreFileSystem:
        return WStoreFileSystem()

    @pytest.fixture
    def local_path(self, directory: Path) -> str:
        (directory / "local").mkdir()
        return str(directory / "local")

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return os.path.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestMemory(Suite, Fixtures):
    @pytest.fixture
    def fs_path(self) -> str:
        return f"memory://fsspec-suite-{next(_numbers)}/base"


class Posix(Suite, Fixtures):
    @pytest.fixture
    def fs_path(self, directory: Path) -> str:
        (directory / "base").mkdir()
        return str(directory / "base")

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


# What the quick tier runs on a disk and on S3; all else, of which it has memory, is long.
QUICK = {
    "test_pipe_exclusive",
    "test_copy_file_to_existing_directory",
    "test_get_directory_recursive",
    "test_put_file_to_new_directory",
}


def _long(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        test(*args, **kwargs)

    marked: Callable[..., None] = pytest.mark.long(run)
    return marked


class S3(Suite, Fixtures):
    """On a server that keeps exact keys (see the module)."""

    @pytest.fixture
    def fs_path(self, moto: S3Endpoint, s3_environment: UseEndpoint, s3_bucket: str) -> str:
        s3_environment(moto)
        return f"s3://{s3_bucket}/base-{next(_numbers)}"


class TestPosix(Posix):
    """`Posix` with its marks."""


class TestS3(S3):
    """`S3` with its marks."""


for _marked, _plain in ((TestPosix, Posix), (TestS3, S3)):
    for _name in dir(_plain):
        if _name.startswith("test_") and _name not in QUICK:
            setattr(_marked, _name, _long(getattr(_plain, _name)))


def test_the_quick_names_are_tests() -> None:
    assert {name for name in QUICK if hasattr(S3, name)} == QUICK
