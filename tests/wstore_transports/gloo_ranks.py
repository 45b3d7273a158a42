"""Processes that form one gloo group of torch, as trainers and tensor-parallel engines do."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from tests.wstore_transports.forked import forked_after

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 120.0

LOADED = ["torch.distributed.tensor", "torch._dynamo"]
"""What takes seconds to import: DTensor's first call needs the second."""


def run_ranks(work: str, size: int, directory: Path, *, killed: int | None = None) -> None:
    """Run `work(rank, directory)` in `size` processes with a default group.

    torch is loaded once for all tests of a process, and not in that process.

    Args:
        work: "module:function".
        killed: a rank that ends by SIGKILL; the others must end well, as all do otherwise.
    """
    context = forked_after(LOADED)
    ranks = [
        context.Process(target=_rank, args=(work, rank, size, directory)) for rank in range(size)
    ]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(TIMEOUT_S)
        expected = [-9 if rank == killed else 0 for rank in range(size)]
        assert [rank.exitcode for rank in ranks] == expected
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _rank(work: str, rank: int, size: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    module, _, function = work.partition(":")
    getattr(import_module(module), function)(rank, directory)
    if dist.is_initialized():
        dist.destroy_process_group()
