"""What each version changes, tensor by tensor: what the demo shows beside the totals."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs.tensors import bit_view
from wstore_transports.demo.events import TensorChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.tensors import Array, Bits
    from wstore_transports.versions.documents import Manifest, Tensor


class Changes:
    """Compares the live weights with a copy of what they were at the version before."""

    def __init__(self) -> None:
        self._before: dict[str, Bits] = {}

    def of(self, manifest: Manifest, weights: Mapping[str, Array]) -> list[TensorChange]:
        """What a version changed in each stored tensor. The weights must be those of the version."""
        shares = _frame_shares(manifest)
        return [
            TensorChange(
                name,
                prod(tensor.shape),
                self._changed(name, weights[name], whole=manifest.kind == "full"),
                bit_view(weights[name], name=name).nbytes,
                round(shares[name]),
            )
            for name, tensor in manifest.tensors.items()
        ]

    def _changed(self, name: str, array: Array, *, whole: bool) -> int:
        now = bit_view(array, name=name).copy()
        before = self._before.get(name)
        self._before[name] = now
        return now.size if whole or before is None else int(np.count_nonzero(now != before))


def _frame_shares(manifest: Manifest) -> dict[str, float]:
    """Bytes of each tensor's frames. Small tensors share one: each counts for its elements."""
    elements: dict[tuple[int, int], int] = {}
    for tensor in manifest.tensors.values():
        for block in tensor.blocks:
            frame = block.object, block.offset
            elements[frame] = elements.get(frame, 0) + prod(block.extent)
    return {name: _share(tensor, elements) for name, tensor in manifest.tensors.items()}


def _share(tensor: Tensor, elements: Mapping[tuple[int, int], int]) -> float:
    return sum(
        block.nbytes * prod(block.extent) / (elements[block.object, block.offset] or 1)
        for block in tensor.blocks
    )
