"""An S3 server that is killed in the middle of transfers, and comes back later at the same ports."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.errors import WStoreError
from wstore.path import StoragePath
from wstore.testing.servers import create_bucket, seaweed_server
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore.testing.s3_requests import S3Endpoint

PATTERN = bytes(range(251)) * 66_000  # about 16 MiB, and no piece of it like another


def server_process(directory: Path) -> int:
    """The pid of the `weed` that keeps its data there."""
    wanted = f"-dir={directory / 'data'}".encode()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in words and words[0].endswith(b"weed"):
            return int(file.parent.name)
    raise AssertionError("the server is not running")


class Server:
    """A SeaweedFS that can be killed, and started again as it was."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = server_process(directory)
        self._command = Path(f"/proc/{self._pid}/cmdline").read_bytes().split(b"\0")[:-1]
        self._again: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def start_again(self) -> None:
        with (self._directory / "again.log").open("ab") as log:
            self._again = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )

    def close(self) -> None:
        if self._again is not None:
            self._again.kill()
            self._again.wait()


@contextmanager
def killable_server(directory: Path) -> Iterator[tuple[Server, S3Endpoint]]:
    with seaweed_server(directory) as endpoint:
        server = Server(directory)
        try:
            yield server, endpoint
        finally:
            server.close()


def copy_root(source: StoragePath, target: StoragePath) -> None:
    """A mirror: the log last."""
    paths = [path for path in source.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: (path.parent.name == "log", path)):
        path.copy(target / path.relative_to(source))


def started(call: Callable[[], object], errors: list[WStoreError]) -> threading.Thread:
    def run() -> None:
        try:
            call()
        except WStoreError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.long
def test_transfers_and_mirrors_when_the_server_is_killed(
    tmp_path: Path, s3_environment: Callable[[S3Endpoint], None]
) -> None:
    with killable_server(tmp_path / "weed") as (server, endpoint):
        s3_environment(endpoint)
        create_bucket(endpoint, "killed")
        place = StoragePath("s3://killed")
        there, new = place / "there", place / "new"
        there.write_file(PATTERN)
        with CheckpointWriter(place / "run", max_file_bytes=2 << 20) as writer:
            weights = {f"w{i}": np.full(250_000, i, np.int64) for i in range(8)}
            report = writer.write(0, weights)
        copy_root(place / "run", StoragePath(tmp_path / "mirror"))
        reader = CheckpointReader([place / "run", tmp_path.joinpath("mirror").as_posix()])

        # In the middle of a load, while others read and write.
        errors: list[WStoreError] = []
        buffer = bytearray(len(PATTERN))
        reading = started(lambda: there.read_into(buffer), errors)
        writing = started(lambda: new.write_file(PATTERN, piece_size=5 << 20), errors)
        killed = threading.Event()

        def kill(done: int, total: int | None) -> None:
            if not killed.is_set():
                killed.set()
                server.kill()

        loaded = reader.load(progress=kill, budget=2 << 20)
        assert killed.is_set()
        assert weights_digest(loaded) == report.digest

        # Without the server, the mirror serves.
        assert reader.latest().number == report.version
        assert weights_digest(reader.load()) == report.digest
        assert reader.wait(timeout=30).digest == report.digest

        time.sleep(0.5)
        server.start_again()
        reading.join()
        writing.join()
        assert all(error.url.startswith("s3://killed/") for error in errors)
        assert bytes(buffer) == PATTERN or any("there" in str(error) for error in errors)
        assert there.read_bytes() == PATTERN
        if any("new" in str(error) for error in errors):
            assert not new.exists()
            new.write_file(PATTERN)
        assert new.read_bytes() == PATTERN
        assert weights_digest(CheckpointReader(place / "run").load()) == report.digest
