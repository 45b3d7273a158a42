"""A tensor of over 4 GiB: offsets, positions and sizes that do not fit 32 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore_transports.checkpoint import weights_digest
from wstore_transports.delta import Publisher, Subscriber

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wstore_transports.delta.models import Weights

SIZE = (4 << 30) + (5 << 20) + 3
CHANGED = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 7, SIZE - 1]


@pytest.mark.long  # about 10 GB of memory
def test_a_tensor_of_over_4_gib(tmp_path: Path) -> None:
    """Written whole, loaded, changed on both sides of each power of two, followed, and joined late."""
    weights: Weights = {"w": np.zeros(SIZE, np.uint8), "b": np.ones(3, np.float32)}
    root = str(tmp_path / "root")
    with Publisher(root, anchor_every=1000) as publisher, Subscriber(root) as engine:
        publisher.publish(0, weights)
        publisher.flush()
        held = engine.load()
        weights["w"][CHANGED] = np.arange(1, len(CHANGED) + 1)
        publisher.publish(1, weights)
        report = engine.sync(held, timeout=60)
        assert report.changed == len(CHANGED)
        assert report.digest == weights_digest(held) == weights_digest(weights)
        assert held["w"][CHANGED].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert np.count_nonzero(held["w"]) == len(CHANGED)
        del held
        joined = engine.load()
        assert np.flatnonzero(joined["w"]).tolist() == CHANGED
