"""Checkpoints on a real S3 server, and what holds on every store: beside a collection, after a fork."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.errors import ForkedProcess
from wstore.path import StoragePath
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.errors import VersionGone
from wstore_transports.versions import Retention, Root, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore.testing.s3_requests import S3Endpoint


def test_versions_on_s3(
    seaweed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    s3_environment: Callable[[S3Endpoint], None],
    tmp_path: Path,
) -> None:
    s3_environment(seaweed)
    root = f"s3://{bucket(seaweed)}/run"
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((700, 1000)).astype(np.float32) for i in range(3)}
    with CheckpointWriter(root) as writer:
        writer.write(0, weights)
        weights["w1"] += 1
        report = writer.write(1, weights)
    reader = CheckpointReader(root)
    assert weights_digest(reader.load()) == report.digest
    out = {name: np.zeros_like(array) for name, array in weights.items()}
    reader.load(out=out, budget=4 << 20)
    assert weights_digest(out) == report.digest
    local = reader.download(None, tmp_path / "local")
    assert weights_digest(CheckpointReader(str(local)).load()) == report.digest


@pytest.mark.parametrize(
    "base", ["local", pytest.param("seaweed", marks=pytest.mark.long)], indirect=True
)
def test_a_lagging_reader_beside_collections(base: StoragePath) -> None:
    """Right weights or `VersionGone`, whatever is collected meanwhile."""
    Root.create(base, lease_s=0.2)
    chance, stop = random.Random(5), threading.Event()
    reader, lags = CheckpointReader(base), []

    def read() -> None:
        while not stop.is_set():
            lags.append(
                expect_right_or_gone(reader, reader.latest().number, chance.uniform(0, 0.3))
            )

    with CheckpointWriter(base) as writer, ThreadPoolExecutor(1) as pool:
        first = writer.write(0, content(0)).version
        reading = pool.submit(read)
        try:
            for step in range(1, 5):
                writer.write(step, content(step))
                collect(Root.open(base), Retention(1))
        finally:
            stop.set()
        reading.result()
    assert lags
    assert not expect_right_or_gone(reader, first, 0)
    assert expect_right_or_gone(reader, reader.latest().number, 0)


def content(step: int) -> dict[str, np.ndarray]:
    return {f"w{i}": np.full(30_000, step + i) for i in range(3)}


def expect_right_or_gone(reader: CheckpointReader, number: int, lag_s: float) -> bool:
    """Load a version that was the newest a moment ago; whether it was still there."""
    time.sleep(lag_s)
    try:
        weights = reader.load(number)
    except VersionGone:
        return False
    values = {int(array[0]) - int(name[1:]) for name, array in weights.items()}
    assert len(values) == 1
    assert all((array == array[0]).all() for array in weights.values())
    return True


def test_a_fork_in_the_middle_of_transfers(
    seaweed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    s3_environment: Callable[[S3Endpoint], None],
) -> None:
    """The child loads, or is told at once that it cannot; the parent's transfers go on."""
    s3_environment(seaweed)
    root = StoragePath(f"s3://{bucket(seaweed)}/run")
    with CheckpointWriter(root) as writer:
        report = writer.write(0, {"w": np.arange(200_000)})
    reader, stop = CheckpointReader(root), threading.Event()
    digests: set[str] = set()

    def transfer(number: int) -> None:
        while not stop.is_set():
            digests.add(weights_digest(reader.load(report.version)))
            (root / f"other{number}").write_file(bytes(6 << 20), piece_size=5 << 20)

    threads = [threading.Thread(target=transfer, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        assert exit_code_of_child(lambda: load_in_child(reader, root, report.digest)) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert digests == {report.digest}


def load_in_child(reader: CheckpointReader, root: StoragePath, digest: str) -> bool:
    for used in (reader, CheckpointReader(root)):
        began = time.monotonic()
        try:
            if weights_digest(used.load()) != digest:
                return False
        except ForkedProcess:
            if time.monotonic() - began > 1.0:
                return False
    return True


def exit_code_of_child(call: Callable[[], bool]) -> int:
    """0: the call returned True in a forked child. A hang ends the child, not the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if call() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]
