"""Whole weights from a baseline, unit by unit, though later versions change the baseline meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wstore_codecs.frame import Frame
from wstore_transports.delta.encoding import Made, encode_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstore_transports.delta.baseline import Baseline
    from wstore_transports.delta.spool import Kept, Spool


class Snapshot:
    """The weights that a baseline holds now, encoded when they are taken: no second copy of the model.

    Before the baseline changes a unit that was not taken, `before_change` encodes it and puts it away.
    `take` is for one thread, `before_change` for another.

    Args:
        codec: for all units, one that stands alone.
        spool: where units that are encoded early wait.
        threads: how many units `before_change` encodes at once.
    """

    def __init__(self, baseline: Baseline, *, codec: str, spool: Spool, threads: int = 1) -> None:
        self._baseline = baseline
        self._codec = codec
        self._spool = spool
        self._threads = max(1, threads)
        self._lock = threading.Lock()
        self._left = set(range(len(baseline.units)))
        self._early: dict[int, tuple[Kept, tuple[str, ...]]] = {}
        self.units = len(baseline.units)

    def take(self, index: int) -> Made:
        """A unit as it was when this object was made. Each may be taken once."""
        with self._lock:
            early = self._early.pop(index, None)
            if early is None:
                self._left.discard(index)
                return encode_whole(self._baseline, index, codec=self._codec)
        kept, digests = early
        made = Made(index, Frame.parse(bytes(kept.data())), digests)
        kept.drop()
        return made

    def before_change(self, indices: Iterable[int]) -> None:
        """Encode those of these units that were not taken yet; then they may be changed.

        Raises:
            NoSpace: the spool cannot take them.
        """
        with self._lock:
            wanted = sorted(self._left.intersection(indices))
            with ThreadPoolExecutor(self._threads, "wstore-snapshot") as pool:
                encoded = pool.map(
                    lambda index: encode_whole(self._baseline, index, codec=self._codec), wanted
                )
                for made in encoded:
                    kept = self._spool.keep(memoryview(made.frame.tobytes()))
                    self._early[made.index] = kept, made.digests
                    self._left.discard(made.index)

    def drop(self) -> None:
        """Take no more: later changes cost nothing. Idempotent."""
        with self._lock:
            self._left.clear()
            for kept, _ in self._early.values():
                kept.drop()
            self._early.clear()
