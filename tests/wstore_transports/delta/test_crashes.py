"""Ranks, engines, collectors and the server itself, killed with -9 at random moments.

Each run: never a wrong tensor, never a half-applied state, never a hang; every version in the log, and what
each survivor ends on, is what the trainer had at that step.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.wstore_transports.delta.crash_run import CrashRun, Length, Places
from tests.wstore_transports.test_killed_server import Server
from wstore.testing.fuse_mounts import DEVICE, fuse_is_missing, two_mounts
from wstore.testing.servers import seaweed_server

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.servers import SeaweedEndpoint


class CrashingServer:
    """A SeaweedFS that is killed and comes back with its data, as often as wanted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Server] = []

    def crash(self, chance: random.Random) -> None:
        server = Server(self._directory)
        server.kill()
        time.sleep(chance.uniform(0.1, 1.0))
        server.start_again()
        self._started.append(server)

    def close(self) -> None:
        for server in self._started:
            server.close()


@contextmanager
def seaweed_that_crashes(directory: Path) -> Iterator[tuple[SeaweedEndpoint, CrashingServer]]:
    with seaweed_server(directory) as endpoint:
        server = CrashingServer(directory)
        try:
            yield endpoint, server
        finally:
            server.close()


LONG = Length(versions=6, kills=6)


@pytest.fixture(scope="module")
def crashing(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SeaweedEndpoint, CrashingServer]]:
    with seaweed_that_crashes(tmp_path_factory.mktemp("crashing")) as both:
        yield both


@pytest.fixture(scope="module")
def two_hosts(
    crashing: tuple[SeaweedEndpoint, CrashingServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path, CrashingServer]]:
    if fuse_is_missing():
        pytest.skip(f"{DEVICE} is missing: no tests on shared mounts")
    endpoint, server = crashing
    with two_mounts(endpoint.filer, tmp_path_factory.mktemp("mounts")) as (first, second):
        yield first.path, second.path, server


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_crashes_on_posix(tmp_path: Path, seed: int) -> None:
    _crash_on_posix(tmp_path, seed, Length(versions=3, kills=2))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 200))
def test_100_crash_runs_on_posix(tmp_path: Path, seed: int) -> None:
    _crash_on_posix(tmp_path, seed, LONG)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(200, 260))
def test_60_crash_runs_on_s3(
    crashing: tuple[SeaweedEndpoint, CrashingServer],
    tmp_path: Path,
    seed: int,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
) -> None:
    endpoint, server = crashing
    s3_environment(endpoint)
    url = f"s3://{bucket(endpoint)}/root"
    places = Places(url, url, endpoint.applied_to({}), server.crash)
    CrashRun(places, tmp_path / "files", seed).run(replace(LONG, crash_server=seed % 5 == 0))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(300, 340))
def test_40_crash_runs_on_two_mounts(
    two_hosts: tuple[Path, Path, CrashingServer], tmp_path: Path, seed: int
) -> None:
    """Rank 0 on one host, the others on both."""
    first, second, server = two_hosts
    name = f"run-{seed}"
    (first / name).mkdir()
    places = Places(
        (first / name).as_posix(), (second / name).as_posix(), {}, server.crash, exclusive=False
    )
    CrashRun(places, tmp_path / "files", seed).run(replace(LONG, crash_server=seed % 5 == 0))


def _crash_on_posix(directory: Path, seed: int, length: Length) -> None:
    url = (directory / "root").as_posix()
    CrashRun(Places(url, url), directory / "files", seed).run(length)
