"""Reads from S3 and from local files, against boto3, s3fs, obstore alone, and plain system calls.

    python benchmarks/reads.py [--quick] [--url s3://bucket/prefix] [--json -]

Speed ratios are the other client's median time over ours; cost ratios are ours over the other's.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import gcs
from benchmarks.common import (
    BUSY_THREADS,
    CONCURRENCY,
    REQUEST,
    Settings,
    peak_extra_mib,
    random_bytes,
    same,
    settings,
)
from benchmarks.peers import Boto3, Obstore, S3fs, WStoreFsspec
from benchmarks.racing import Contender, Row, race
from benchmarks.reporting import race_table, report
from wstore import StoragePath
from wstore.stores.base import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    Ranges = Sequence[tuple[int, int]]
    Reader = Boto3 | S3fs | Obstore | WStoreFsspec

SMALL_REQUEST = 2 * MiB
TINY_REQUEST = MiB // 4


def main() -> None:
    started = time.monotonic()
    with settings(__doc__ or "") as chosen:
        data = random_bytes(chosen.seed, chosen.scale.size)
        path = StoragePath(chosen.url) / "object"
        path.write_file(data)
        races = {
            "read": _read(path, data, chosen),
            "busy": _busy(path, data, chosen),
            "busy 2 MiB": _busy_small(path, data, chosen, SMALL_REQUEST),
            "busy 256 KiB": _busy_small(path, data, chosen, TINY_REQUEST),
            "posix": _posix(data, chosen),
        }
        ratios = _ratios(races) | _memory(chosen)
        ratios["import_extra_s"] = _import_extra_s()
        emulator = gcs.read(data, chosen)
        ratios["gcs_read_vs_gcsfs"] = emulator["gcsfs"].wall_s / emulator["wstore"].wall_s
        path.parent.remove_tree()
    rows = [row for clients in (*races.values(), emulator) for row in clients.values()]
    report("reads", ratios, rows, [race_table(rows)], json_to=chosen.json_to, started=started)


def _read(path: StoragePath, data: bytes, chosen: Settings) -> dict[str, Row]:
    """The whole object by ranged requests of 8 MiB, 8 at once."""
    ranges = _ranges(0, len(data), step=REQUEST, size=REQUEST)
    contenders = [
        _into(path, data, REQUEST),
        _wstore(path, data, ranges),
        *(
            _peer(peer(path.root, path.key), data, ranges)
            for peer in (WStoreFsspec, Boto3, S3fs, Obstore)
        ),
    ]
    return _race("read", contenders, len(data), chosen)


def _busy(path: StoragePath, data: bytes, chosen: Settings) -> dict[str, Row]:
    """The same with part of the object, while threads run pure Python."""
    size = chosen.scale.busy_size
    ranges = _ranges(0, size, step=REQUEST, size=REQUEST)
    contenders = [
        _into(path, data[:size], REQUEST),
        *(_peer(peer(path.root, path.key), data, ranges) for peer in (Boto3, S3fs)),
    ]
    return _race("busy", contenders, size, chosen, busy_threads=BUSY_THREADS)


def _busy_small(path: StoragePath, data: bytes, chosen: Settings, request: int) -> dict[str, Row]:
    """Every second block of the object, as frames of deltas are read: nothing to merge."""
    span = chosen.scale.busy_size * (2 if request > MiB else 1)
    ranges = _ranges(0, span, step=2 * request, size=request)
    contenders = [
        _wstore(path, data, ranges),
        _peer(Boto3(path.root, path.key), data, ranges),
    ]
    nbytes = sum(length for _, length in ranges)
    case = f"busy {request // 1024} KiB"
    return _race(case, contenders, nbytes, chosen, busy_threads=BUSY_THREADS)


def _posix(data: bytes, chosen: Settings) -> dict[str, Row]:
    """A local file in the page cache, into memory that is already mapped."""
    path = StoragePath(chosen.directory / "object")
    path.write_file(data)
    target = bytearray(data)

    def plain() -> list[memoryview]:
        file = os.open(path, os.O_RDONLY)
        try:
            done, view = 0, memoryview(target)
            while count := os.preadv(file, [view[done : done + REQUEST]], done):
                done += count
        finally:
            os.close(file)
        return [view[:done]]

    ranges = [(0, len(data))]
    contenders = [
        _into(path, data, None),
        Contender("preadv", plain, partial(_check, data, ranges)),
    ]
    return _race("posix", contenders, len(data), chosen)


def _race(
    case: str,
    contenders: Sequence[Contender[list[memoryview]]],
    nbytes: int,
    chosen: Settings,
    *,
    busy_threads: int = 0,
) -> dict[str, Row]:
    return race(
        case,
        contenders,
        nbytes=nbytes,
        rounds=chosen.scale.rounds,
        seed=chosen.seed,
        busy_threads=busy_threads,
    )


def _into(path: StoragePath, data: bytes, request: int | None) -> Contender[list[memoryview]]:
    """`read_into` memory that is mapped already: what a loader of weights does."""
    target = memoryview(bytearray(len(data)))

    def run() -> list[memoryview]:
        count = path.read_into(target, request_size=request, concurrency=CONCURRENCY)
        return [target[:count]]

    return Contender("wstore", run, partial(_check, data, [(0, len(data))]))


def _wstore(path: StoragePath, data: bytes, ranges: Ranges) -> Contender[list[memoryview]]:
    def run() -> list[memoryview]:
        # As a user calls it: how many small requests are in flight is the library's choice.
        return path.read_ranges(ranges, max_gap=0, request_size=REQUEST)

    return Contender("wstore ranges", run, partial(_check, data, ranges))


def _peer(peer: Reader, data: bytes, ranges: Ranges) -> Contender[list[memoryview]]:
    return Contender(peer.name, partial(peer.read, ranges), partial(_check, data, ranges))


def _check(data: bytes, ranges: Ranges, found: list[memoryview]) -> None:
    view = memoryview(data)
    for (offset, length), part in zip(ranges, found, strict=True):
        if not same(part, view[offset : offset + length]):
            raise SystemExit(f"wrong bytes in [{offset}, {offset + length})")


def _ranges(start: int, end: int, *, step: int, size: int) -> list[tuple[int, int]]:
    return [(offset, size) for offset in range(start, end - size + 1, step)]


def _ratios(races: dict[str, dict[str, Row]]) -> dict[str, float]:
    read, busy, small, tiny, posix = races.values()
    ours, small_ours, tiny_ours = read["wstore"], small["wstore ranges"], tiny["wstore ranges"]
    return {
        "read_vs_obstore": read["obstore"].wall_s / ours.wall_s,
        "read_vs_boto3": read["boto3"].wall_s / ours.wall_s,
        "read_vs_s3fs": read["s3fs"].wall_s / ours.wall_s,
        "fsspec_read_vs_s3fs": read["s3fs"].wall_s / read["wstore fsspec"].wall_s,
        "busy_read_vs_boto3": busy["boto3"].wall_s / busy["wstore"].wall_s,
        "busy_read_vs_s3fs": busy["s3fs"].wall_s / busy["wstore"].wall_s,
        # The worse of the two sizes is the one that is claimed.
        "busy_small_read_vs_boto3": min(
            small["boto3"].wall_s / small_ours.wall_s, tiny["boto3"].wall_s / tiny_ours.wall_s
        ),
        "busy_loop_vs_boto3": busy["wstore"].loops_per_s / busy["boto3"].loops_per_s,
        "read_cpu_vs_boto3": ours.cpu_s_per_gib / read["boto3"].cpu_s_per_gib,
        "posix_read_vs_preadv": posix["preadv"].wall_s / posix["wstore"].wall_s,
    }


def _memory(chosen: Settings) -> dict[str, float]:
    size, local = chosen.scale.memory_size, chosen.directory / "download"
    path = StoragePath(chosen.url) / "large"
    chunk = random.Random(chosen.seed).randbytes(MiB)
    path.write_file(chunk for _ in range(size // MiB))
    return {
        "extra_mib_down": peak_extra_mib("down", path.url, str(local)),
        "extra_mib_read_into": peak_extra_mib("read_into", path.url, str(local)),
    }


def _import_extra_s() -> float:
    """Median seconds of starting Python with `import wstore`, less those of starting it alone."""
    times: dict[str, list[float]] = {"pass": [], "import wstore": []}
    for _ in range(9):
        for code, taken in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            taken.append(time.perf_counter() - start)
    bare, ours = (statistics.median(taken) for taken in times.values())
    return ours - bare


if __name__ == "__main__":
    main()
