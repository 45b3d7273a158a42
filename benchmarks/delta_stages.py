"""Each stage of a delta alone, and the sizes of the same steps by other ways; in a process of its own."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.codec_data import Step
from benchmarks.codec_peers import DenseXor, WStore
from benchmarks.delta_model import Model
from wstore import StoragePath
from wstore_transports.checkpoint.pieces import Collector
from wstore_transports.delta.baseline import Baseline
from wstore_transports.delta.parts import UPLOADS, Destination, PartSink
from wstore_transports.delta.pending import PendingDelta
from wstore_transports.delta.spool import Spool

if TYPE_CHECKING:
    from benchmarks.codec_peers import Peer
    from benchmarks.delta_model import Size
    from wstore_codecs.tensors import Bits
    from wstore_transports.demo.language_model import TrainedLanguageModel

REAL_STEPS = 20
"""Steps of the real run before the one that is measured: its learning rate is low by then."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one step by each codec."""

    case: str
    percent_changed: float
    default: int
    max: int
    dense_xor: int


class Stages:
    """Encodes and uploads as a publisher does, one after the other."""

    def __init__(self, size: Size, seed: int) -> None:
        self._model = Model(size, seed)
        collector = Collector()
        for name, array in self._model.weights.items():
            collector.add(name, array)
        self._baseline = Baseline(collector.inventory(), where="host")
        self._parts: list[bytes] = []
        self.encode()  # learns the proofs of the first weights, and loads what it needs

    def encode(self) -> float:
        """Seconds to encode one step into parts."""
        self._model.step()
        return self._encode("auto", land=True)

    def upload(self, url: str) -> float:
        """Seconds to upload those parts."""
        place = StoragePath(url)
        with ThreadPoolExecutor(UPLOADS) as pool:
            started = time.monotonic()
            writes = [
                pool.submit((place / f"p{number}").write_bytes, part)
                for number, part in enumerate(self._parts)
            ]
            for write in writes:
                write.result()
            return time.monotonic() - started

    def sizes(self) -> Sizes:
        """Bytes of one step."""
        before = self._model.bits()
        self._model.step()
        step = Step("Adam-like", before, self._model.bits())
        self._encode("auto:max", land=False)
        most = self._nbytes
        self._encode("auto", land=True)
        dense = sum(map(len, DenseXor().encode(step.new, step.base)))
        share = 100 * step.changed / step.new.size
        return Sizes("Adam-like", share, self._nbytes, most, dense)

    def real_sizes(self) -> Sizes:
        """Bytes of one step of a real AdamW run."""
        from wstore_transports.demo.language_model import TrainedLanguageModel

        model = TrainedLanguageModel(seed=1)
        for _ in range(REAL_STEPS):
            model.train()
        before = _joined(model)
        model.train()
        step = Step("AdamW, demo model", before, _joined(model))
        peers: list[Peer] = [WStore("default", "auto"), WStore("max", "auto:max"), DenseXor()]
        found = [sum(map(len, peer.encode(step.new, step.base))) for peer in peers]
        return Sizes(step.label, 100 * step.changed / step.new.size, *found)

    def close(self) -> None:
        """Nothing is open."""

    @property
    def _nbytes(self) -> int:
        return sum(map(len, self._parts))

    def _encode(self, codec: str, *, land: bool) -> float:
        place = StoragePath("memory://stages")
        spool = Spool()
        sink = PartSink(Destination(place.__truediv__, str, "p"), spool)
        started = time.monotonic()
        pending = PendingDelta(
            self._baseline,
            sink,
            codec=codec,
            threads=os.cpu_count() or 1,
            before_change=lambda _: None,
        )
        for name, array in self._model.weights.items():
            pending.add(name, array)
        prepared = pending.finish()
        pending.close()
        sink.wait()
        seconds = time.monotonic() - started
        if land:
            prepared.land()
        self._parts = [(place / ref.name).read_bytes() for ref in sink.objects]
        sink.close()
        spool.close()
        return seconds


def _joined(model: TrainedLanguageModel) -> Bits:
    import torch

    unique = {weight.data_ptr(): weight for weight in model.weights().values()}
    flat = torch.cat([weight.detach().flatten() for weight in unique.values()])
    bits: Bits = flat.view(torch.uint16).numpy().copy()
    return bits
