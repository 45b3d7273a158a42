"""Google Cloud Storage's emulator: our store over gcsfs against gcsfs used directly, in one process.

Both use gcsfs's connections and its event loop. gcsfs joins the chunks of each reply to new bytes; ours
puts them where the caller wants them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.common import CONCURRENCY, REQUEST, same
from benchmarks.racing import Contender, race
from wstore import StoragePath
from wstore.testing.environments import pointed_at
from wstore.testing.servers import create_gcs_bucket, gcs_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.common import Settings
    from benchmarks.racing import Row

_BUCKET = "wstore-bench"


class Gcsfs:
    """gcsfs: `cat_ranges`, parallel in its own event loop; no probe, no caches."""

    name = "gcsfs"

    def __init__(self, endpoint: str, path: str) -> None:
        os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
        from gcsfs.core import GCSFileSystem

        self._path = path
        self._files = GCSFileSystem(
            project="", token="anon", endpoint_url=endpoint, use_listings_cache=False
        )

    def read(self, size: int) -> list[memoryview]:
        starts = list(range(0, size, REQUEST))
        ends = [min(start + REQUEST, size) for start in starts]
        found = self._files.cat_ranges(
            [self._path] * len(starts), starts, ends, batch_size=CONCURRENCY
        )
        return [memoryview(data) for data in found]


def read(data: bytes, chosen: Settings) -> dict[str, Row]:
    """One object by ranged requests of 8 MiB, 8 at once."""
    with _emulator(chosen) as (endpoint, path):
        path.write_file(data)
        target = memoryview(bytearray(len(data)))

        def ours() -> list[memoryview]:
            count = path.read_into(target, request_size=REQUEST, concurrency=CONCURRENCY)
            return [target[:count]]

        peer = Gcsfs(endpoint, f"{_BUCKET}/{path.key}")
        check = partial(_check, data)
        contenders = [
            Contender("wstore", ours, check),
            Contender(peer.name, partial(peer.read, len(data)), check),
        ]
        return race(
            "gcs read",
            contenders,
            nbytes=len(data),
            rounds=chosen.scale.rounds,
            seed=chosen.seed,
        )


@contextmanager
def _emulator(chosen: Settings) -> Iterator[tuple[str, StoragePath]]:
    with gcs_server(chosen.directory / "gcs") as endpoint, pointed_at(endpoint):
        create_gcs_bucket(endpoint, _BUCKET)
        path = StoragePath(f"gs://{_BUCKET}") / "object"
        try:
            yield endpoint.url, path
        finally:
            path.store.close()


def _check(data: bytes, found: list[memoryview]) -> None:
    at, view = 0, memoryview(data)
    for part in found:
        if not same(part, view[at : at + len(part)]):
            raise SystemExit(f"wrong bytes from {at}")
        at += len(part)
    if at != len(data):
        raise SystemExit(f"{at} bytes of {len(data)}")
