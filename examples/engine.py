"""An engine that follows a trainer: it brings the weights in its memory to each version.

python examples/engine.py runs/demo             (or s3://bucket/runs/demo)
"""

from __future__ import annotations

import sys

from wstore_transports.delta import Subscriber
from wstore_transports.errors import PublisherLost, RunEnded


def main(url: str, *, timeout_s: float = 600.0) -> None:
    engine = Subscriber(url)
    version = engine.wait(timeout=timeout_s)
    weights = engine.load(version)
    step = version.step
    while True:
        print(f"version {engine.held}, step {step}: {len(weights)} tensors", flush=True)
        try:
            step = engine.sync(weights, timeout=timeout_s).step  # in place, whole or not at all
        except PublisherLost:  # it may be restarting
            continue
        except RunEnded:
            return


if __name__ == "__main__":
    main(sys.argv[1])
