"""Trainers that are killed while they publish: readers only ever see whole versions."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore import StoragePath
from wstore.testing.s3_requests import pending_uploads
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.errors import NoVersion
from wstore_transports.versions import Retention, Root, collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.testing.s3_requests import S3Endpoint

PUBLISH = """
import sys, numpy as np
from wstore_codecs.digest import digest_block
from wstore_transports.checkpoint import CheckpointWriter
sizes = [int(sys.argv[2]), 250_000, 250_000, 250_000]
digest_block(np.zeros(sizes[0], np.int32))  # loads compiled code, if any: kills shall meet the rest
random = np.random.default_rng()
writer = CheckpointWriter(sys.argv[1], max_file_bytes=1 << 20)
print("ready", flush=True)
step = 0
while True:
    step += 1
    value = random.integers(1 << 30)
    writer.write(step, {f"w{i}": np.full(n, value + i, np.int32) for i, n in enumerate(sizes)})
"""

SMALL = 250_000
"""Elements of the first tensor: so few that a trainer starts quickly, without compiled code."""

IN_PIECES = 5_000_000
"""20 MB: a file that is uploaded in pieces."""


def _kill_writers(
    place: str, kills: int, *, other_host: str | None = None, elements: int = SMALL
) -> None:
    """Trainers publish to `place`, by the name that `other_host` has for it, and are killed."""
    seed = 11
    print("seed", seed)
    chance = random.Random(seed)
    reader = CheckpointReader(place)
    seen = 0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, other_host or place, str(elements)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            until = time.monotonic() + chance.uniform(0.1, 1.0)
            while time.monotonic() < until:
                seen = max(seen, _check_newest(reader, seen))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        seen = max(seen, _check_newest(reader, seen))
    with CheckpointWriter(place) as writer:
        report = writer.write(0, {"w0": np.zeros(3)})
    assert CheckpointReader(place).latest().number == report.version > seen
    _expect_all_debris_can_go(StoragePath(place))


def _expect_all_debris_can_go(place: StoragePath) -> None:
    """What the killed writers left is found by the sweep and by a collection, with no repair by hand."""
    place.sweep(older_than=-2)  # S3 tells whole seconds
    if place.is_local:
        assert not list(Path(place).rglob(".wstore-*"))
    root = Root.open(place)
    collect(root, Retention(1), pause=lambda _: None)
    left = {str(path.parent.name) for path in place.glob("data/*/*/*")}
    assert left == {root.latest().record.manifest.name.split("/")[-2]}


def _check_newest(reader: CheckpointReader, seen: int) -> int:
    """Load the newest version, verified; its tensors belong together; versions only grow."""
    try:
        version = reader.latest()
    except NoVersion:
        return seen
    weights = reader.load(version)
    values = {int(array[0]) - int(name[1:]) for name, array in weights.items()}
    assert len(weights) == 4
    assert len(values) == 1
    assert all((array == array[0]).all() for array in weights.values())
    assert weights_digest(weights) == version.digest
    assert version.number >= seen
    return version.number


@pytest.mark.long
@pytest.mark.timeout(900)
def test_30_killed_writers_on_another_host(shared: tuple[Path, Path]) -> None:
    _kill_writers(str(shared[0] / "root"), 30, other_host=str(shared[1] / "root"))


def test_killed_writers_leave_whole_versions_only(tmp_path: Path) -> None:
    _kill_writers(str(tmp_path / "root"), 1)


@pytest.mark.long
def test_100_killed_writers_on_posix(tmp_path: Path) -> None:
    _kill_writers(str(tmp_path / "root"), 100)


@pytest.mark.long
def test_100_killed_writers_on_s3(
    seaweed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    s3_environment: Callable[[S3Endpoint], None],
) -> None:
    s3_environment(seaweed)
    name = bucket(seaweed)
    _kill_writers(f"s3://{name}/killed", 100, elements=IN_PIECES)
    assert pending_uploads(seaweed, name) == []
