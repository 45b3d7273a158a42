"""Which box of a tensor this rank holds of a torch DTensor: FSDP2, tensor parallel, both."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.distributed.tensor import DTensor

    from wstore_codecs.block import Shape


Runs = tuple[range, ...]
"""The indexes along one dimension that a rank holds, in order; neighbours are joined."""


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether this is a DTensor; torch is not loaded to tell."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def local_box(name: str, value: DTensor) -> tuple[torch.Tensor, Shape, Shape]:
    """This rank's elements (their own memory, no copy), the whole tensor's shape, where they start in it.

    No communication. Ranks that hold replicas answer alike. A rank with nothing of an uneven split has
    an empty box.

    Args:
        name: the tensor's, for errors.

    Raises:
        InvalidArgument: a partial sum, or elements that do not lie together in the whole tensor, or a
            rank outside the device mesh. Names the tensor.
    """
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        raise InvalidArgument(
            f"tensor {name!r}: this rank is not in its device mesh and holds none of it; leave it out"
        )
    with torch.no_grad():
        local = value.to_local()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    shape = tuple(value.shape)
    held = _held(name, value, coordinate)
    if any(len(runs) > 1 for runs in held):
        raise InvalidArgument(
            f"tensor {name!r}: what this rank holds by {value.placements} does not lie together in the "
            f"whole tensor of {shape}; redistribute it first"
        )
    extent = tuple(len(runs[0]) if runs else 0 for runs in held)
    if tuple(local.shape) != extent:
        raise InvalidArgument(
            f"tensor {name!r}: this rank holds {tuple(local.shape)}, but by its placements "
            f"{value.placements} of {shape} it would be {extent}"
        )
    starts = (runs[0].start if runs else length for runs, length in zip(held, shape, strict=True))
    return local, shape, tuple(starts)


def _held(name: str, value: DTensor, coordinate: Sequence[int]) -> list[Runs]:
    """What the rank at `coordinate` of the mesh holds along each dimension: placement by placement."""
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    held: list[Runs] = [(range(length),) for length in value.shape]
    for ranks, index, placement in zip(
        value.device_mesh.shape, coordinate, value.placements, strict=True
    ):
        if isinstance(placement, _StridedShard):
            factor = int(placement.split_factor)
            held[placement.dim] = _strided(name, held[placement.dim], factor, ranks, index)
        elif isinstance(placement, Shard):
            held[placement.dim] = _chunk(held[placement.dim], ranks, index)
        elif not isinstance(placement, Replicate):
            raise InvalidArgument(
                f"tensor {name!r}: this rank holds {placement}, not elements of the whole; "
                "redistribute it to Shard or Replicate first"
            )
    return held


def _chunk(runs: Runs, ranks: int, index: int) -> Runs:
    """As torch.chunk: equal lengths, then a shorter one, then empty ones."""
    total = sum(map(len, runs))
    length = -(-total // ranks)
    return _part(runs, index * length, (index + 1) * length)


def _strided(name: str, runs: Runs, factor: int, ranks: int, index: int) -> Runs:
    """Every `ranks`-th of `factor * ranks` chunks: torch's way to shard what is sharded already.

    Only for equal chunks: FSDP splits others in another way than the placement says.
    """
    total = sum(map(len, runs))
    length, rest = divmod(total, factor * ranks)
    if rest:
        raise InvalidArgument(
            f"tensor {name!r}: {total} rows are not split evenly by {factor} times {ranks} ranks, so "
            "its placements do not tell which of them this rank holds; pass wstore's Shard instead"
        )
    held: Runs = ()
    for chunk in range(index, factor * ranks, ranks):
        held = _joined(held, _part(runs, chunk * length, (chunk + 1) * length))
    return held


def _part(runs: Runs, start: int, stop: int) -> Runs:
    """Those from position `start` to `stop` (not their values)."""
    taken: Runs = ()
    for run in runs:
        taken = _joined(taken, (run[max(0, start) : max(0, stop)],))
        start, stop = start - len(run), stop - len(run)
    return taken


def _joined(left: Runs, right: Runs) -> Runs:
    for run in right:
        if left and run and left[-1].stop == run.start:
            left = (*left[:-1], range(left[-1].start, run.stop))
        elif run:
            left = (*left, run)
    return left
