"""A trainer that publishes its weights every few steps.

    python examples/trainer.py runs/demo            (or s3://bucket/runs/demo)

Run `examples/engine.py` with the same URL beside it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from wstore_transports.checkpoint import CheckpointWriter


def main(url: str, *, steps: int = 20, publish_every: int = 5, pause_s: float = 0.2) -> None:
    random = np.random.default_rng(0)
    weights = {
        "embed.weight": random.standard_normal((4096, 512), dtype=np.float32),
        "head.weight": random.standard_normal((512, 4096), dtype=np.float32),
    }
    with CheckpointWriter(url, keep=3) as writer:  # older versions that nobody reads are deleted
        for step in range(1, steps + 1):
            for tensor in weights.values():
                tensor -= 1e-3 * np.sign(tensor)  # an optimizer would do better
            time.sleep(pause_s)
            if step % publish_every == 0:
                report = writer.write(step, weights)
                print(f"step {step}: version {report.version}, {report.seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
