"""What differs between two versions, tensor by tensor; of one root or of two, or of plain directories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wstore_codecs import dtypes
from wstore_codecs import tensors as arrays
from wstore_codecs.changes import Rule, ordinals, rule_of
from wstore_transports.delta.subscriber import Subscriber
from wstore_transports.examining.density import density
from wstore_transports.examining.proving import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_codecs.tensors import Array, Bits
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest, Tensor

SLICE = 1 << 20
"""Elements that are compared at once."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One name, on both sides.

    Attributes:
        name: of the tensor.
        what: "same", "changed", "added", "removed", or "reshaped" (another dtype or shape).
        dtype, shape: on the newer side; of a removed one on the older.
        changed: elements that differ; 0 unless "changed".
        max_step: the greatest distance between two numbers, in units of the last place (of integers: in
            their own); None where it was not looked at.
    """

    name: str
    what: str
    dtype: str
    shape: tuple[int, ...]
    changed: int
    max_step: int | None = None

    @property
    def density(self) -> float:
        """The share of elements that differ, 0 to 1."""
        size = math.prod(self.shape)
        return self.changed / size if size else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * dtypes.dtype(self.dtype).itemsize


class Side(Protocol):
    """One of the two that are compared."""

    @property
    def manifest(self) -> Manifest:
        """What it holds; of a plain directory without digests."""

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """These tensors, in new memory."""


@dataclass(frozen=True, slots=True)
class VersionSide:
    """A version of a root."""

    version: Version
    manifest: Manifest

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        with Subscriber(self.version.place.path) as reader:
            return reader.load(self.version.number, names)


@dataclass(frozen=True, slots=True)
class PlainSide:
    """A plain safetensors directory or file."""

    path: StoragePath
    snapshot: Snapshot

    @property
    def manifest(self) -> Manifest:
        return self.snapshot.manifest

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        from wstore_transports.checkpoint.reader import CheckpointReader

        return CheckpointReader(self.path).load(names=names)


def difference(old: Side, new: Side, *, progress: Progress | None = None) -> list[Difference]:
    """What differs, in the order of the newer side; tied names count as what they stand for.

    Equal digests are believed. Where the newer is a delta onto the older, its frames tell; all other tensors
    are loaded on both sides, half a GiB at a time.

    Args:
        progress: is told how many tensors were looked at, of how many.

    Raises:
        VersionGone, IntegrityError, ...: of either side.
    """
    before, after = old.manifest.tensors, new.manifest.tensors
    found: dict[str, Difference] = {}
    for name, tensor in after.items():
        what = _at_a_glance(before.get(name), tensor)
        if what:
            found[name] = _row(name, tensor, what)
    for name, tensor in before.items():
        if name not in after:
            found[name] = _row(name, tensor, "removed")
    if _builds_on(old, new) and isinstance(new, VersionSide):
        rows = density(new.version, new.manifest).tensors
        for name, row in rows.items():
            if name not in found and row.changed is not None:
                found[name] = Difference(name, "changed", row.dtype, row.shape, row.changed)
    total = len(after.keys() | before.keys())
    for loaded in _compare([name for name in after if name not in found], old, new):
        found[loaded.name] = loaded
        if progress is not None:
            progress(len(found), total)
    order = [*after, *(name for name in before if name not in after)]
    return [found[name] for name in order]


def _at_a_glance(before: Tensor | None, after: Tensor) -> str:
    if before is None:
        return "added"
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return "reshaped"
    return "same" if before.digest and before.digest == after.digest else ""


def _row(name: str, tensor: Tensor, what: str) -> Difference:
    return Difference(name, what, tensor.dtype, tuple(tensor.shape), 0)


def _builds_on(old: Side, new: Side) -> bool:
    if not isinstance(old, VersionSide) or not isinstance(new, VersionSide):
        return False
    same = old.version.place.root_id == new.version.place.root_id
    return same and new.version.base == old.version.number


def _compare(names: list[str], old: Side, new: Side) -> Iterator[Difference]:
    wanted = set(names)
    for batch in batches(new.manifest):
        chosen = [name for name in batch if name in wanted]
        if not chosen:
            continue
        before, after = old.load(chosen), new.load(chosen)
        for name in chosen:
            tensor = new.manifest.tensors[name]
            changed, most = compare(before[name], after[name], name=name)
            what = "changed" if changed else "same"
            yield Difference(name, what, tensor.dtype, tuple(tensor.shape), changed, most)


def compare(old: Array, new: Array, *, name: str) -> tuple[int, int]:
    """(elements whose bits differ, the greatest step between two of them); see `Difference`."""
    ordered = rule_of(arrays.describe(old, name=name).dtype) is Rule.ORDINAL
    a, b = (_flat(array, name) for array in (old, new))
    changed = most = 0
    for start in range(0, a.size, SLICE):
        left, right = a[start : start + SLICE], b[start : start + SLICE]
        differ = np.flatnonzero(left != right)
        if not differ.size:
            continue
        changed += int(differ.size)
        left, right = left[differ], right[differ]
        if ordered:
            left, right = ordinals(left), ordinals(right)
        steps = np.where(left < right, right - left, left - right)
        most = max(most, int((steps if ordered else np.minimum(steps, np.negative(steps))).max()))
    return changed, most


def _flat(array: Array, name: str) -> Bits:
    return np.ascontiguousarray(arrays.bit_view(array, name=name)).reshape(-1)
