"""Writes to S3 and to local disk, against boto3, s3fs, obstore alone, and plain write + fsync.

    python benchmarks/writes.py [--quick] [--url s3://bucket/prefix] [--json -]

Speed ratios are the other client's median time over ours; cost ratios are ours over the other's.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.common import (
    CONCURRENCY,
    REQUEST,
    Settings,
    peak_extra_mib,
    random_bytes,
    settings,
)
from benchmarks.peers import Boto3, Obstore, S3fs, WStoreFsspec
from benchmarks.racing import Contender, Row, race
from benchmarks.reporting import race_table, report
from wstore import StoragePath
from wstore.stores.base import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def main() -> None:
    started = time.monotonic()
    with settings(__doc__ or "") as chosen:
        data = random_bytes(chosen.seed, chosen.scale.size)
        folder = StoragePath(chosen.url)
        posix, data = _posix(data, chosen), data[: chosen.scale.write_size]
        s3, stream = _s3(folder, data, chosen), _stream(folder, data, chosen)
        ratios = {
            "write_vs_boto3": s3["boto3"].wall_s / s3["wstore"].wall_s,
            "write_cpu_vs_boto3": s3["wstore"].cpu_s_per_gib / s3["boto3"].cpu_s_per_gib,
            # The worse of one call and of a file that is written bit by bit is the one that is claimed.
            "fsspec_write_vs_s3fs": min(
                clients["s3fs"].wall_s / clients["wstore fsspec"].wall_s for clients in (s3, stream)
            ),
            "posix_write_vs_fsync": posix["write + fsync"].wall_s / posix["wstore"].wall_s,
            "extra_mib_up": _extra_mib_up(folder, chosen),
        }
        folder.remove_tree()
    rows = [row for clients in (s3, stream, posix) for row in clients.values()]
    report("writes", ratios, rows, [race_table(rows)], json_to=chosen.json_to, started=started)


def _s3(folder: StoragePath, data: bytes, chosen: Settings) -> dict[str, Row]:
    """One object from memory, in pieces of 8 MiB, 8 at once; each client has a key of its own."""

    own = folder / "wstore"
    ours = partial(own.write_file, data, piece_size=REQUEST, concurrency=CONCURRENCY)
    writers = [_Writer("wstore", own, ours)]
    for peer in (WStoreFsspec, Boto3, S3fs, Obstore):
        path = folder / peer.name
        client = peer(path.root, path.key)
        writers.append(_Writer(peer.name, path, partial(client.write, memoryview(data))))
    return _race("write", writers, data, chosen)


def _stream(folder: StoragePath, data: bytes, chosen: Settings) -> dict[str, Row]:
    """The same object through `open("wb")` of both fsspec file systems, 1 MiB at a time."""
    writers = []
    for peer in (WStoreFsspec, S3fs):
        path = folder / f"{peer.name} stream"
        client = peer(path.root, path.key)
        writers.append(_Writer(peer.name, path, partial(client.stream, memoryview(data))))
    return _race("write stream", writers, data, chosen)


@dataclass(frozen=True, slots=True)
class _Writer:
    """How one client writes the object, and where."""

    client: str
    path: StoragePath
    write: Callable[[], object]

    def run(self) -> StoragePath:
        self.write()
        return self.path


def _race(case: str, writers: Sequence[_Writer], data: bytes, chosen: Settings) -> dict[str, Row]:
    """Each round checks the size. All bytes are read back at the end: reading takes as long as writing."""

    def check(path: StoragePath) -> None:
        if path.stat().size != len(data):
            raise SystemExit(f"{path.url} has another size than was written")

    rows = race(
        case,
        [Contender(writer.client, writer.run, check) for writer in writers],
        nbytes=len(data),
        rounds=chosen.scale.rounds,
        seed=chosen.seed,
    )
    for writer in writers:
        if writer.path.read_bytes() != data:
            raise SystemExit(f"{writer.path.url} holds other bytes than were written")
    return rows


def _posix(data: bytes, chosen: Settings) -> dict[str, Row]:
    """A durable local file. Ours also survives a crash half-way: temporary name, rename, two fsyncs."""

    def ours() -> Path:
        path = chosen.directory / "wstore"
        StoragePath(path).write_file(data)
        return path

    def plain() -> Path:
        path = chosen.directory / "plain"
        with path.open("wb", buffering=0) as file:
            view, done = memoryview(data), 0
            while done < len(view):
                done += file.write(view[done : done + REQUEST])
            os.fsync(file.fileno())
        return path

    def check(path: Path) -> None:
        if path.read_bytes() != data:
            raise SystemExit(f"{path} holds other bytes than were written")
        path.unlink()

    return race(
        "posix write",
        [Contender("wstore", ours, check), Contender("write + fsync", plain, check)],
        nbytes=len(data),
        rounds=chosen.scale.rounds,
        seed=chosen.seed,
    )


def _extra_mib_up(folder: StoragePath, chosen: Settings) -> float:
    local = chosen.directory / "upload"
    chunk = random.Random(chosen.seed).randbytes(MiB)
    with local.open("wb") as file:
        for _ in range(chosen.scale.memory_size // MiB):
            file.write(chunk)
    return peak_extra_mib("up", (folder / "large").url, str(local))


if __name__ == "__main__":
    main()
