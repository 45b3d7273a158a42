"""No mutated frame decodes to a wrong value, takes memory beyond the caps, or hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.wstore_codecs.frames import ALL_CODECS

ROOT = Path(__file__).parents[2]


def _run(codec: str, count: int, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.wstore_codecs.mutations", codec, str(count), str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, f"{codec}, seed {seed}: {done.returncode}\n{done.stderr[-3000:]}"
    refused = int(done.stdout.split()[1])
    assert refused > count * 0.9, done.stdout


@pytest.mark.parametrize("codec", ["context"])
def test_some_mutated_frames(codec: str) -> None:
    _run(codec, 100, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_10_000_mutated_frames(codec: str) -> None:
    _run(codec, 10_000, seed=2)
