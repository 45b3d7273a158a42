"""1 GiB up, down, into memory and across: no transfer holds more than its budget (promise 3)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath

if TYPE_CHECKING:
    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

MEASURE = Path(__file__).parents[2] / "benchmarks" / "memory.py"
MiB = 1 << 20
SIZE = 1024 * MiB
BUDGET_MIB = 256
READ_INTO_MIB = 64


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["posix", "seaweed"])
def test_a_transfer_holds_no_more_than_its_budget(
    kind: str,
    tmp_path: Path,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
    request: pytest.FixtureRequest,
) -> None:
    place = StoragePath(tmp_path / "store")
    if kind == "seaweed":
        endpoint: S3Endpoint = request.getfixturevalue("seaweed")
        s3_environment(endpoint)
        place = StoragePath(f"s3://{bucket(endpoint)}/store")
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        for number in range(SIZE // MiB):
            file.write(bytes([number % 256]) * MiB)
    peaks = {"up": extra_mib("up", place / "large", source)}
    for action in ("down", "copy", "read_into"):
        peaks[action] = extra_mib(action, place / "large", target)
        if action != "read_into":
            assert target.stat().st_size == SIZE
            target.unlink()
    shutil.rmtree(tmp_path)
    print(kind, peaks)
    assert max(peaks.values()) <= BUDGET_MIB, peaks
    assert peaks["read_into"] <= READ_INTO_MIB, peaks


def extra_mib(action: str, path: StoragePath, local: Path) -> float:
    """What the transfer adds to a fresh process's resident memory at its peak, in MiB."""
    command = [sys.executable, str(MEASURE), action, path.url, str(local)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
