"""How soon a trainer's step is in an engine's memory, by deltas, and what it costs.

    python benchmarks/delta.py [--quick] [--url s3://...] [--json -]

The model has the tensors of Qwen3-0.6B in bf16 (`--quick`: fewer layers, 127 MiB); each version changes 2 %
of its elements. Trainer and engine are processes of their own. A "total" runs from the call of `publish` to
the moment when the engine's memory is at the version and proven; stages alone are those of the same kind of
step with nothing else running. The throttled link lets 100 MB/s through in each direction. Costs are ours
over the other's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks import delta_scaling
from benchmarks.delta_model import QUICK, WHOLE
from benchmarks.delta_place import BUDGETS, Place, Timing, sizes_of, stages_alone
from benchmarks.racing import note
from benchmarks.reporting import STORE_PACKAGES, race_table, report
from benchmarks.throttle import throttled
from wstore.stores.base import MiB
from wstore.testing.environments import pointed_at
from wstore.testing.s3_requests import S3Endpoint, create_bucket
from wstore.testing.servers import seaweed_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.delta_model import Size
    from benchmarks.delta_scaling import Scaling
    from benchmarks.delta_stages import Sizes

LINK = 100e6
"""Bytes per second of the throttled link."""


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments, and what follows from them."""

    size: Size
    rounds: int
    counts: tuple[int, ...]
    seed: int
    json_to: str | None
    url: str
    directory: Path
    endpoint: S3Endpoint


def main() -> None:
    started = time.monotonic()
    with _given() as given:
        local = Place("local", str(given.directory / "root"), given.size, given.rounds, given.seed)
        s3 = Place("s3", given.url, given.size, given.rounds, given.seed)
        sizes = sizes_of(given.size, given.seed)
        timings = stages_alone(given.size, given.rounds, given.seed, [local, s3])
        with local.actors():
            timings += local.follow(versions=10)
            timings += local.checkpoint()
        with s3.actors():
            timings += s3.follow(versions=given.rounds + 1)
            timings += s3.late_joiner()
            loops = s3.loops()
            timings += s3.checkpoint()
            timings += s3.beside_anchor()
        with throttled(given.endpoint, LINK) as link, pointed_at(link):
            slow = Place("throttled", given.url + "-slow", given.size, given.rounds, given.seed)
            timings += stages_alone(given.size, given.rounds, given.seed, [slow])
            with slow.actors():
                timings += slow.follow(versions=given.rounds + 1)
        scaling = (
            delta_scaling.measure(f"{given.url}/scaling", given.counts, given.seed)
            if given.counts
            else []
        )
    ratios = _time_ratios(timings) | _size_ratios(sizes) | _memory_ratios([local, s3, slow])
    ratios["loop_vs_boto3"] = loops[0].loops_per_s / loops[1].loops_per_s
    if scaling:
        ratios["requests_most_vs_fewest"] = _growth(scaling)
    report(
        "delta",
        ratios,
        [*timings, *sizes, *loops, *scaling],
        [
            _timing_table(timings),
            _size_table(sizes),
            race_table(loops),
            *([_scaling_table(scaling)] if scaling else []),
        ],
        json_to=given.json_to,
        started=started,
        packages=(*STORE_PACKAGES, "numpy", "numba", "pcodec", "torch"),
    )


@contextmanager
def _given() -> Iterator[Given]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="127 MiB, and no table of ranks and engines"
    )
    parser.add_argument("--rounds", type=int, help="versions of each case (default 7, quick 2)")
    parser.add_argument("--url", help="s3://bucket/prefix to use, credentials from the environment")
    parser.add_argument("--directory", type=Path, help="for local files (default: a temporary one)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is stdout")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the steps")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="wstore-bench-") as temporary:

        def given(url: str, endpoint: S3Endpoint) -> Given:
            return Given(
                size=QUICK if chosen.quick else WHOLE,
                rounds=chosen.rounds or (2 if chosen.quick else 7),
                counts=() if chosen.quick else (2, 4, 8),
                seed=chosen.seed,
                json_to=chosen.json,
                url=f"{url}/bench-{os.getpid()}",
                directory=Path(temporary),
                endpoint=endpoint,
            )

        if chosen.url:
            there = os.environ
            endpoint = S3Endpoint(
                there["AWS_ENDPOINT_URL"],
                there["AWS_ACCESS_KEY_ID"],
                there["AWS_SECRET_ACCESS_KEY"],
                there.get("AWS_REGION", "us-east-1"),
            )
            yield given(chosen.url.rstrip("/"), endpoint)
            return
        note("starting SeaweedFS")
        (Path(temporary) / "server").mkdir()
        with seaweed_server(Path(temporary) / "server") as server, pointed_at(server):
            create_bucket(server, "bench")
            yield given("s3://bench", server)


def _time_ratios(timings: Sequence[Timing]) -> dict[str, float]:
    by_name = {(timing.place, timing.what): timing.median_s for timing in timings}

    def overlap(place: str) -> float:
        alone = ("encode", "upload", "commit", "fetch", "check", "apply")
        return by_name[place, "total"] / sum(by_name[place, f"{stage} alone"] for stage in alone)

    def by(place: str, what: str, other: str) -> float:
        return by_name[place, what] / by_name[place, other]

    return {
        "overlap_throttled": overlap("throttled"),
        "overlap": overlap("s3"),
        "overlap_local": overlap("local"),
        "vs_checkpoint": by("s3", "total", "checkpoint"),
        "vs_checkpoint_local": by("local", "total", "checkpoint"),
        "pause_share": by("s3", "pause", "total"),
        "pause_share_local": by("local", "pause", "total"),
        "late_joiner_vs_anchor": by("s3", "late joiner", "anchor"),
        "anchor_beside": by("s3", "prefetch beside an anchor", "prefetch"),
        "first_vs_tenth": by("local", "first delta", "tenth delta"),
    }


def _size_ratios(sizes: Sequence[Sizes]) -> dict[str, float]:
    step, real = sizes
    return {
        "bytes_vs_dense_xor": step.default / step.dense_xor,
        "bytes_max_vs_dense_xor": step.max / step.dense_xor,
        "bytes_real_vs_dense_xor": real.default / real.dense_xor,
        "bytes_real_max_vs_dense_xor": real.max / real.dense_xor,
    }


def _memory_ratios(places: Sequence[Place]) -> dict[str, float]:
    """The most that was added, and what it is of the stated budget."""
    most = {who: max(place.extra[who] for place in places) for who in BUDGETS}
    return {
        **{f"extra_{who}_mib": nbytes / MiB for who, nbytes in most.items()},
        **{f"extra_{who}_vs_budget": nbytes / BUDGETS[who] for who, nbytes in most.items()},
    }


def _growth(scaling: Sequence[Scaling]) -> float:
    """Requests of an engine with the most engines over those with the fewest, at the same ranks."""
    same = [one for one in scaling if one.ranks == scaling[0].ranks]
    return same[-1].requests / same[0].requests


def _timing_table(timings: Sequence[Timing]) -> Table:
    table = Table(title="seconds")
    for title in ("place", "what"):
        table.add_column(title, no_wrap=True)
    for title in ("rounds", "median", "least", "most", "MiB"):
        table.add_column(title, justify="right")
    for timing in timings:
        table.add_row(
            timing.place,
            timing.what,
            str(timing.rounds),
            *(f"{seconds:.3f}" for seconds in (timing.median_s, timing.least_s, timing.most_s)),
            f"{timing.nbytes / MiB:.1f}" if timing.nbytes else "",
        )
    return table


def _size_table(sizes: Sequence[Sizes]) -> Table:
    table = Table(title="bytes of one step")
    table.add_column("step", no_wrap=True)
    for title in ("% changed", "auto, KiB", "auto:max, KiB", "dense XOR + zstd-1, KiB"):
        table.add_column(title, justify="right")
    for size in sizes:
        nbytes = (size.default, size.max, size.dense_xor)
        cells = (f"{count / 1024:.0f}" for count in nbytes)
        table.add_row(size.case, f"{size.percent_changed:.2f}", *cells)
    return table


def _scaling_table(scaling: Sequence[Scaling]) -> Table:
    table = Table(title="what one engine asks for one delta")
    for title in ("ranks", "engines", "requests", "KiB", "parts"):
        table.add_column(title, justify="right")
    for one in scaling:
        counts = (f"{one.requests:.0f}", f"{one.nbytes / 1024:.0f}")
        table.add_row(str(one.ranks), str(one.engines), *counts, str(one.parts))
    return table


if __name__ == "__main__":
    main()
