"""An engine that follows a trainer: it waits for each version and loads it into its own memory.

python examples/engine.py runs/demo             (or s3://bucket/runs/demo)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wstore_transports.checkpoint import CheckpointReader
from wstore_transports.errors import RunEnded

if TYPE_CHECKING:
    from wstore_codecs.tensors import Array


def main(url: str, *, timeout_s: float = 600.0) -> None:
    reader = CheckpointReader(url)
    weights: dict[str, Array] = {}
    version = None
    while True:
        try:
            version = reader.wait(after=version or 0, timeout=timeout_s)
        except RunEnded:
            return
        # The first time new arrays; then the same memory is filled in place. Every block is verified.
        weights = reader.load(version, out=weights or None)
        print(f"version {version.number}, step {version.step}: {len(weights)} tensors", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
