"""A trainer that publishes its weights every few steps.

    python examples/trainer.py runs/demo            (or s3://bucket/runs/demo)

Run `examples/engine.py` with the same URL beside it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from wstore_transports.delta import Publisher


def main(url: str, *, steps: int = 20, publish_every: int = 5, pause_s: float = 0.2) -> None:
    random = np.random.default_rng(0)
    weights = {
        "embed.weight": random.standard_normal((4096, 512), dtype=np.float32),
        "head.weight": random.standard_normal((512, 4096), dtype=np.float32),
    }
    with Publisher(url, keep=3) as publisher:  # older versions that nobody reads are deleted
        for step in range(1, steps + 1):
            for tensor in weights.values():
                tensor[::50] -= 1e-3 * np.sign(tensor[::50])  # an optimizer would do better
            time.sleep(pause_s)
            if step % publish_every == 0:
                report = publisher.publish(step, weights)
                print(f"step {step}: {report.kind}, {report.density:.1%} changed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
