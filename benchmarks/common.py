"""What the benchmarks of stores share: the arguments, the server, the data, a process to measure memory."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.racing import note
from wstore.stores.base import GiB, MiB
from wstore.testing.environments import pointed_at
from wstore.testing.s3_requests import create_bucket
from wstore.testing.servers import seaweed_server

if TYPE_CHECKING:
    from collections.abc import Iterator


BUSY_THREADS = 4
REQUEST = 8 * MiB
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: rounds of each case, and sizes in bytes.

    Attributes:
        size: of the object that is read, and of local files.
        write_size: of the object that is written; SeaweedFS takes seven times as long to write as to
            read.
        busy_size: of what is read while threads run.
        memory_size: of the transfers whose memory is measured.
    """

    rounds: int
    size: int
    write_size: int
    busy_size: int
    memory_size: int


FULL = Scale(9, size=256 * MiB, write_size=256 * MiB, busy_size=64 * MiB, memory_size=GiB)
QUICK = Scale(8, size=16 * MiB, write_size=12 * MiB, busy_size=8 * MiB, memory_size=32 * MiB)


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's arguments."""

    scale: Scale
    url: str
    directory: Path
    json_to: str | None
    seed: int


def peak_extra_mib(action: str, *arguments: str) -> float:
    """The peak resident memory that one action adds in a fresh process (Linux), in MiB.

    See `benchmarks/memory.py` for the actions.
    """
    script = Path(__file__).with_name("memory.py")
    command = [sys.executable, str(script), action, *arguments]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output)


def random_bytes(seed: int, size: int) -> bytes:
    """`size` bytes that do not compress, always the same ones for one seed."""
    source = random.Random(seed)
    whole, rest = divmod(size, MiB)
    return b"".join([*(source.randbytes(MiB) for _ in range(whole)), source.randbytes(rest)])


def same(found: memoryview, wanted: memoryview) -> bool:
    """Whether two buffers hold the same bytes. Comparing memoryviews takes 50 times as long."""
    one, other = (np.frombuffer(buffer, np.uint8) for buffer in (found, wanted))
    return np.array_equal(one, other)


@contextmanager
def settings(description: str) -> Iterator[Settings]:
    """Parse the arguments, and start a server unless a URL is given. Its URL is a fresh prefix."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less data: under a minute")
    parser.add_argument("--rounds", type=int, help="rounds of each case (default 9, quick 8)")
    parser.add_argument("--url", help="s3://bucket/prefix to use, credentials from the environment")
    parser.add_argument("--server", choices=["s3"], default="s3", help="without --url: SeaweedFS")
    parser.add_argument("--directory", type=Path, help="for local files (default: a temporary one)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is stdout")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the order")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    if given.rounds:
        scale = replace(scale, rounds=given.rounds)
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="wstore-bench-") as temporary:
        directory = Path(temporary)
        made = Settings(scale, given.url or "", directory, given.json, given.seed)
        if given.url:
            yield replace(made, url=f"{given.url.rstrip('/')}/bench-{os.getpid()}")
            return
        note("starting SeaweedFS")
        (directory / "server").mkdir()
        with seaweed_server(directory / "server") as endpoint, pointed_at(endpoint):
            create_bucket(endpoint, "bench")
            yield replace(made, url=f"s3://bench/bench-{os.getpid()}")
