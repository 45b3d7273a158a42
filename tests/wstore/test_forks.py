"""A child forked after the parent used a client reads with connections of its own. (Other clients: beside
their own tests.)"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.children import wait_for
from wstore import StoragePath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.fault_server import FaultServer
    from wstore.testing.s3_requests import S3Endpoint

DATA = bytes(range(256)) * 40


@pytest.fixture(params=["http", pytest.param("s3fs", marks=pytest.mark.long)])
def path(request: pytest.FixtureRequest, s3_environment: UseEndpoint) -> Iterator[StoragePath]:
    """An object, reached by a client that has been used in this process."""
    if request.param == "http":
        server: FaultServer = request.getfixturevalue("fault_server")
        server.put("k", DATA)
        found = StoragePath(f"{server.endpoint.url}/{server.bucket}/k")
    else:
        moto: S3Endpoint = request.getfixturevalue("moto")
        bucket: MakeBucket = request.getfixturevalue("bucket")
        s3_environment(moto)
        found = StoragePath(f"s3://{bucket(moto)}/k", client="fsspec")
        found.write_bytes(DATA)
    assert found.read_range(5, 10) == DATA[5:15]
    yield found
    found.store.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_reads(path: StoragePath, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            (tmp_path / "child").write_bytes(path.read_bytes() + path.read_range(7, 3))
        finally:
            os._exit(0)
    for _ in range(3):
        assert path.read_bytes() == DATA  # beside the child, on the parent's own connections
    wait_for(child)
    assert (tmp_path / "child").read_bytes() == DATA + DATA[7:10]
