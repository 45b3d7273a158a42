"""What each rank checks of its DTensors, against torch's own `full_tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard

from wstore.errors import InvalidArgument
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter
from wstore_transports.checkpoint.pieces import Collector, collect

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def two_ranks(rank: int, directory: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for shape, placement in [
        ((8, 3), Shard(0)),
        ((5, 3), Shard(0)),
        ((1, 3), Shard(0)),
        ((0, 3), Shard(0)),
        ((4, 5), Shard(1)),
        ((4, 5), Replicate()),
        ((), Replicate()),
    ]:
        _check_distributed(mesh, shape, [placement])
    _check_refusals(rank, mesh)
    whole = _distributed(mesh, (6, 2), [Shard(0)])
    tied = collect(
        {"a": whole, "b": torch.nn.Parameter(whole, requires_grad=False), "c": whole[:2]}
    )
    assert tied.aliases == {"b": "a"}
    _check_checkpoint(rank, mesh, directory)


def four_ranks(rank: int, _: Path) -> None:
    flat = init_device_mesh("cpu", (4,))
    for shape in [(8, 2), (5, 2), (9,), (2, 2)]:
        _check_distributed(flat, shape, [Shard(0)])
    _check_fsdp(flat)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for placements in [
        (Shard(0), Shard(1)),
        (Shard(1), Shard(0)),
        (Replicate(), Shard(0)),
        (Shard(1), Replicate()),
        (Shard(0), Shard(0)),
        (Replicate(), Replicate()),
    ]:
        for shape in [(8, 8), (5, 7), (1, 3)]:
            _check_distributed(mesh, shape, placements)
    _check_fsdp_with_tensor_parallel(mesh)
    half = DeviceMesh("cpu", [0, 1])
    part = _distributed(half, (4, 2), [Shard(0)])
    if rank < 2:
        assert Collector().add("w", part) is not None
    else:
        _refused(part, "not in its device mesh")


def _distributed(
    mesh: DeviceMesh, shape: Sequence[int], placements: Sequence[Placement]
) -> DTensor:
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(tuple(shape))
    return distribute_tensor(whole, mesh, placements)


def _check_distributed(
    mesh: DeviceMesh, shape: Sequence[int], placements: Sequence[Placement]
) -> None:
    _check(_distributed(mesh, shape, placements))


def _check(tensor: DTensor) -> None:
    """This rank's piece is its box of the whole, in its own memory; all ranks together hold all."""
    whole = tensor.full_tensor().detach().numpy()
    piece = Collector().add("w", tensor)
    assert piece is not None
    assert piece.shape == whole.shape == tuple(tensor.shape)
    local = tensor.to_local().detach()
    assert isinstance(piece.array, torch.Tensor)
    assert piece.array.data_ptr() == local.data_ptr()
    np.testing.assert_array_equal(whole[piece.box.slices()], local.numpy())
    held = torch.zeros(tuple(tensor.shape), dtype=torch.int32)
    held[piece.box.slices()] = 1
    dist.all_reduce(held)
    copies = 1
    for ranks, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True):
        copies *= ranks if isinstance(placement, Replicate) else 1
    assert (held == copies).all()


def _refused(tensor: DTensor, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'layers.0.w': .*{why}"):
        Collector().add("layers.0.w", tensor)


def _check_refusals(rank: int, mesh: DeviceMesh) -> None:
    local = torch.zeros(4)
    _refused(DTensor.from_local(local, mesh, [Partial()]), "not elements of the whole")
    strided = [_StridedShard(0, split_factor=2)]
    apart = DTensor.from_local(local, mesh, strided, shape=torch.Size([8]), stride=(1,))
    _refused(apart, "does not lie together")
    uneven = torch.zeros(4 if rank == 0 else 3)
    _refused(
        DTensor.from_local(uneven, mesh, strided, shape=torch.Size([7]), stride=(1,)),
        "not split evenly",
    )
    other = torch.zeros(3 if rank == 0 else 1)
    _refused(
        DTensor.from_local(other, mesh, [Shard(0)], shape=torch.Size([4]), stride=(1,)),
        "by its placements",
    )


def _check_fsdp(mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    fully_shard(layers, mesh=mesh)
    for parameter in layers.parameters():
        assert isinstance(parameter, DTensor)
        _check(parameter)


def _check_fsdp_with_tensor_parallel(mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    parallelize_module(layers, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(layers, mesh=mesh["dp"])
    placements: set[type] = set()
    for parameter in layers.parameters():
        assert isinstance(parameter, DTensor)
        placements.update(map(type, parameter.placements))
        _check(parameter)
    assert _StridedShard in placements


def _check_checkpoint(rank: int, mesh: DeviceMesh, directory: Path) -> None:
    """Written by both ranks, read as a whole."""
    tensors = {
        "even": _distributed(mesh, (8, 3), [Shard(0)]),
        "uneven": _distributed(mesh, (3, 5), [Shard(1)]),
        "empty on one": _distributed(mesh, (1, 3), [Shard(0)]),
    }
    whole = {name: tensor.full_tensor().numpy() for name, tensor in tensors.items()}
    with CheckpointWriter(str(directory / "root"), rank=rank, world_size=2, launch="1") as writer:
        writer.write(1, tensors)
    loaded = CheckpointReader(str(directory / "root")).load()
    assert loaded.keys() == whole.keys()
    for name, array in loaded.items():
        np.testing.assert_array_equal(array, whole[name])
