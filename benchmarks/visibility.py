"""How soon a marker that one host wrote is seen by another that waits for it, and what the waiting costs.

    python benchmarks/visibility.py [--quick] [--json -]

Two FUSE mounts of one SeaweedFS folder stand for two hosts; beside them the same server through S3. A
process of its own waits for every marker before this one writes it, so its host has remembered that the
name is absent. Seconds are from the moment when the write had returned: then the server has it.
`probes_per_s` counts looks (each one `stat` of the store) over the whole wait.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.reporting import machine
from wstore import StoragePath
from wstore.stores import registry
from wstore.stores.wrap import Trace, TraceRecord
from wstore.testing.environments import pointed_at
from wstore.testing.fuse_mounts import two_mounts
from wstore.testing.servers import create_bucket, seaweed_server
from wstore.urls import parse

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

AT_ONCE = 20
FIRST_WRITE_S = 1.5
LAST_WRITE_S = 3.5
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One wait: when it ended by the machine's monotonic clock, how long it took, and its looks."""

    at: float
    waited_s: float
    looks: int


@dataclass(frozen=True, slots=True)
class Row:
    """All waits of one case."""

    case: str
    samples: int
    seen_median_s: float
    seen_worst_s: float
    probes_per_s: float
    waited_s: float


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 markers a case: under a minute")
    parser.add_argument("--rounds", type=int, help=f"of {AT_ONCE} markers (default 15, quick 5)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is stdout")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of writing")
    given = parser.parse_args()
    rounds = given.rounds or (5 if given.quick else 15)
    with tempfile.TemporaryDirectory(prefix="wstore-bench-") as temporary:
        directory = Path(temporary)
        (directory / "server").mkdir()
        with (
            seaweed_server(directory / "server") as endpoint,
            two_mounts(endpoint.filer, directory) as (ours, theirs),
            pointed_at(endpoint),
        ):
            create_bucket(endpoint, "bench")
            places = {"mount": (str(ours.path), str(theirs.path)), "s3": ("s3://bench",) * 2}
            rows = [
                measure(case, StoragePath(written), waited, rounds, given.seed)
                for case, (written, waited) in places.items()
            ]
    report(rows, given.json, started)


def measure(case: str, written: StoragePath, waited: str, rounds: int, seed: int) -> Row:
    """Write markers under `written` for a process that waits for them under `waited`."""
    chance = random.Random(seed)
    late: list[float] = []
    seen: list[Seen] = []
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    waiter = spawn.Process(target=wait_in_rounds, args=(waited, theirs))
    waiter.start()
    for number in range(rounds):
        print(f"  {case}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        names = [f"round-{number}/marker-{n}" for n in range(AT_ONCE)]
        (written / f"round-{number}/there").write_bytes(b"")
        ours.send(names)
        assert ours.recv() == "looked"
        at = write_apart(written, names, chance)
        found: dict[str, Seen] = ours.recv()
        late += [max(0.0, found[name].at - at[name]) for name in names]
        seen += found.values()
    ours.send(None)
    waiter.join()
    total_s = sum(one.waited_s for one in seen)
    return Row(
        case,
        samples=len(late),
        seen_median_s=statistics.median(late),
        seen_worst_s=max(late),
        probes_per_s=sum(one.looks for one in seen) / total_s,
        waited_s=total_s / len(seen),
    )


def write_apart(place: StoragePath, names: list[str], chance: random.Random) -> dict[str, float]:
    """Write each name at a random moment; when each write had returned."""
    begun = time.monotonic()
    moments = sorted(chance.uniform(FIRST_WRITE_S, LAST_WRITE_S) for _ in names)
    returned = {}
    for name, moment in zip(names, moments, strict=True):
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        (place / name).write_bytes(b"done")
        returned[name] = time.monotonic()
    return returned


def wait_in_rounds(url: str, connection: Connection) -> None:
    """The other host: waits for all names of a round at once, each in a thread."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while (names := connection.recv()) is not None:
            looked = threading.Semaphore(0)
            waits = [pool.submit(wait_for, url, name, looked) for name in names]
            for _ in names:
                looked.acquire()
            connection.send("looked")
            connection.send({n: one.result() for n, one in zip(names, waits, strict=True)})


def wait_for(url: str, name: str, looked: threading.Semaphore) -> Seen:
    looks = 0

    def count(record: TraceRecord) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            looked.release()

    # As `StoragePath.wait` does: on the store without retries.
    counted = Trace(registry.bare_store(parse(url)), count)
    begun = time.monotonic()
    (StoragePath(url, store=counted) / name).wait(TIMEOUT_S)
    ended = time.monotonic()
    return Seen(ended, ended - begun, looks)


def report(rows: list[Row], json_to: str | None, started: float) -> None:
    """Print a table, or the JSON where it was asked for."""
    mount, s3 = rows
    ratios = {
        "seen_median_s": mount.seen_median_s,
        "seen_worst_s": mount.seen_worst_s,
        "probes_per_s": mount.probes_per_s,
        "s3_seen_median_s": s3.seen_median_s,
        "s3_seen_worst_s": s3.seen_worst_s,
        "s3_probes_per_s": s3.probes_per_s,
    }
    document = {
        "name": "visibility",
        "machine": machine(),
        "seconds": round(time.monotonic() - started, 1),
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(document, indent=1)
    if json_to == "-":
        print(text)
        return
    if json_to is not None:
        Path(json_to).write_text(text + "\n")
    table = Table(title="seen on the other host, after the server had it")
    for title in ("case", "samples", "median s", "worst s", "looks/s", "mean wait s"):
        table.add_column(title, justify="right")
    for row in rows:
        figures = (row.seen_median_s, row.seen_worst_s, row.probes_per_s, row.waited_s)
        table.add_row(row.case, str(row.samples), *(f"{figure:.3f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
