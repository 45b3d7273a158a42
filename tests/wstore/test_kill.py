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
    directory: StoragePath, kills: int, *, other_host: StoragePath | None = None
) -> None:
    """Writers of `directory`, by the name that `other_host` has for it, are killed and read after."""
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
    directory.sweep(older_than=0)
    assert directory.sweep(older_than=0) == [], "what was swept is gone"
    if directory.is_local:
        assert sorted(os.listdir(directory)) == ["large", "small"]
    large.write_file(b"next")
    assert large.read_bytes() == b"next"


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


@pytest.fixture(params=["posix", "seaweed"])
def directory(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
) -> StoragePath:
    if request.param == "posix":
        return StoragePath(tmp_path)
    endpoint: S3Endpoint = request.getfixturevalue("seaweed")
    s3_environment(endpoint)
    return StoragePath(f"s3://{bucket(endpoint)}/killed")


def test_killed_writers_leave_whole_objects(directory: StoragePath) -> None:
    kill_writers(directory, 3)


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.timeout(1200)
def test_killed_writers_on_another_host(shared: tuple[Path, Path], kills: int) -> None:
    kill_writers(StoragePath(shared[0]), kills, other_host=StoragePath(shared[1]))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_100_killed_writers_leave_whole_objects(directory: StoragePath) -> None:
    kill_writers(directory, 100)
