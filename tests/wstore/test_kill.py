"""Writers killed with -9 at random moments: readers see whole objects, the rest is swept."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from wstore import ObjectChanged, StoragePath
from wstore.stores.base import Multipart
from wstore.testing.s3_requests import pending_uploads

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

PIECE = 5 << 20
SIZE = 2 * PIECE + 12345

# Small objects by one request and large ones in pieces, each filled with one byte.
WRITE = """
import sys
from wstore import StoragePath
path, size, piece = StoragePath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
value = 0
while True:
    value = value % 255 + 1
    path.write_file(bytes([value]) * size, piece_size=piece)
    (path.parent / "small").write_bytes(bytes([value]) * 1000)
"""


def kill_writers(
    directory: StoragePath,
    kills: int,
    *,
    other_host: StoragePath | None = None,
    server: S3Endpoint | None = None,
) -> None:
    """Writers of `directory`, by the name that `other_host` has for it, are killed and read after.
    `server` is asked by requests of the test's own what is left there."""
    seed = 5
    print("seed", seed)
    chance = random.Random(seed)
    large, small = directory / "large", directory / "small"
    large.write_file(bytes(SIZE))
    small.write_bytes(bytes(1000))
    for _ in range(kills):
        written = (other_host or directory) / "large"
        command = [sys.executable, "-c", WRITE, written.url, str(SIZE), str(PIECE)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"ready\n"
                until = time.monotonic() + chance.uniform(0.0, 0.4)
                while time.monotonic() < until:
                    expect_whole(large, small)
            finally:
                writer.kill()
        expect_whole(large, small)
        assert [path.name for path in directory.iterdir()] == ["large", "small"]
    if other_host is not None:
        _until_hosts_agree(directory, other_host)
    assert directory.sweep() == [], "nothing here is a day old"
    if server is not None:
        _leave_an_upload(directory)
        bucket = directory.url.split("/")[2]
        assert pending_uploads(server, bucket) != []
        directory.sweep(older_than=-2)  # the service tells whole seconds
        assert pending_uploads(server, bucket) == [], "what was swept is gone"
    else:
        directory.sweep(older_than=0)
        assert sorted(os.listdir(directory)) == ["large", "small"]
    large.write_file(b"next")
    assert large.read_bytes() == b"next"


def _leave_an_upload(directory: StoragePath) -> None:
    """As a writer leaves it that is killed between two pieces."""
    store = directory.store.feature(Multipart)
    assert store is not None
    store.upload(f"{directory.key}/large").put(0, 0, memoryview(bytes(PIECE)))


def _until_hosts_agree(directory: StoragePath, other_host: StoragePath) -> None:
    """What the last writer left is seen here too."""
    deadline = time.monotonic() + 30
    while sorted(os.listdir(directory)) != sorted(os.listdir(other_host)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def expect_whole(large: StoragePath, small: StoragePath) -> None:
    """Each object is one write's, whole. A read that meets a replacement says so and is repeated."""
    for path, size in ((large, SIZE), (small, 1000)):
        data = read_one_content(path)
        assert len(data) == size
        assert data.count(data[0]) == size


def read_one_content(path: StoragePath) -> bytes:
    while True:
        try:
            return path.read_bytes()
        except ObjectChanged:
            continue


@pytest.fixture(params=["posix", pytest.param("seaweed", marks=pytest.mark.long)])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
) -> tuple[StoragePath, S3Endpoint | None]:
    """A directory, and the server that it is on."""
    if request.param == "posix":
        return StoragePath(tmp_path), None
    endpoint: S3Endpoint = request.getfixturevalue("seaweed")
    s3_environment(endpoint)
    return StoragePath(f"s3://{bucket(endpoint)}/killed"), endpoint


def test_killed_writers_leave_whole_objects(
    place: tuple[StoragePath, S3Endpoint | None],
) -> None:
    kill_writers(place[0], 2, server=place[1])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_30_killed_writers_on_another_host(shared: tuple[Path, Path]) -> None:
    kill_writers(StoragePath(shared[0]), 30, other_host=StoragePath(shared[1]))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_100_killed_writers_leave_whole_objects(
    place: tuple[StoragePath, S3Endpoint | None],
) -> None:
    kill_writers(place[0], 100, server=place[1])
