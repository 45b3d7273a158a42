"""A trainer that leaves a chain of deltas behind, for tests of what reads one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from wstore_transports.delta import Publisher
from wstore_transports.versions import Root, layout
from wstore_transports.versions.documents import Open
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_codecs.tensors import HostArray


class Trainer:
    """A publisher of a small model whose versions differ in a few elements of one tensor.

    "a" is large enough for a frame of its own, the small ones share one; "tied" is "a" again.
    """

    def __init__(self, root: StoragePath, *, anchor_every: int = 3, lease_s: float = 10.0) -> None:
        self._root = Root.create(root, lease_s=lease_s)
        self._wanted = 0  # the version of the anchor that was begun last
        rng = np.random.default_rng(0)
        self.weights: dict[str, HostArray] = {
            "a": rng.standard_normal((300, 300)).astype(ml_dtypes.bfloat16),
            "b": rng.standard_normal(7).astype(np.float32),
            "c": np.zeros((0, 3), np.float32),
        }
        self.weights["tied"] = self.weights["a"]
        self.publisher = Publisher(root, anchor_every=anchor_every)
        self.digests: dict[int, str] = {}
        self.step = 0

    def change(self) -> None:
        """What a step of the optimizer changes: 34 elements, each by one unit in the last place."""
        bits = self.weights["a"].view(np.uint16)
        bits[self.step % 300, ::9] ^= 1

    def publish(self, count: int = 1) -> int:
        """So many versions more; the number of the last."""
        for _ in range(count):
            self.change()
            self.publisher.publish(self.step, self.weights)
            done = self.publisher.flush()
            assert done is not None
            self.digests[done.version] = done.digest
            name = self._root.version(done.version).record.manifest.name
            opened = (self._root.object(name).parent) / layout.OPEN
            self._wanted = max(self._wanted, read_document(Open, opened).anchor)
            self.step += 1
        return max(self.digests)

    def settle(self) -> None:
        """Let an anchor under way come to its end."""
        deadline = time.monotonic() + 60
        while self._root.log.refresh().standing.anchor < self._wanted:
            assert time.monotonic() < deadline, "no anchor"
            time.sleep(0.01)
