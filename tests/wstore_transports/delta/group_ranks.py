"""What each rank of an engine's group does in the tests of agreement."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from wstore.errors import InvalidArgument
from wstore_transports.delta.agreement import TorchGroup, agree, decide, same
from wstore_transports.errors import GroupFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def agreeing(rank: int, _: Path) -> None:
    """Every call, by all ranks, and the group goes on after a refusal."""
    group = TorchGroup(timeout_s=60)
    size = dist.get_world_size()
    assert (group.rank, group.size) == (rank, size)
    assert group.gather("ü" * rank) == ["ü" * each for each in range(size)]
    agree(group, True, "not said")
    same(group, "version 7", "the version")
    assert decide(group, f"from {rank}: a:b") == "from 0: a:b"
    last = size - 1
    said = _failing(lambda: agree(group, rank != last, f"disk full on {rank}"))
    assert said == f"rank {last}: disk full on {last}; nothing was applied"
    said = _failing(lambda: agree(group, False, "x" * 5000))
    assert f"rank 0: {'x' * 2000}; rank 1: x" in said
    assert len(said) < 2100 * size
    said = _failing(lambda: same(group, f"digest {rank // last}", "the digest"))
    assert "differ in the digest (rank 0: digest 0, " in said
    assert f"rank {last}: digest 1)" in said
    mixed = _failing(lambda: decide(group, "") if rank == 0 else agree(group, True, ""))
    assert "out of step" in mixed
    with pytest.raises(InvalidArgument, match="bytes to tell"):
        group.gather("x" * (rank * (2 << 20)))
    assert group.gather("still there") == ["still there"] * size
    _subgroup(rank, size)
    dist.destroy_process_group()
    with pytest.raises(InvalidArgument, match="init_process_group first"):
        TorchGroup()


def _subgroup(rank: int, size: int) -> None:
    """Only the ranks of a process group are in it, numbered anew."""
    part = dist.new_group([size - 1])
    if rank < size - 1:
        with pytest.raises(InvalidArgument, match="not in the process group"):
            TorchGroup(part)
    else:
        group = TorchGroup(part)
        assert (group.rank, group.size) == (0, 1)
        assert group.gather("alone") == ["alone"]


def one_is_killed(rank: int, _: Path) -> None:
    """The others raise, and the group stays unusable."""
    group = TorchGroup(timeout_s=60)
    agree(group, True, "")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = _failing(lambda: agree(group, True, ""))
    assert "gave no answer" in said
    _stays_broken(group)


def one_is_late(rank: int, directory: Path) -> None:
    """The other raises when its time is over."""
    agree(TorchGroup(), True, "")  # all have started
    group = TorchGroup(timeout_s=0.5)
    done = directory / "done"
    if rank == 1:
        while not done.exists():
            time.sleep(0.01)
    else:
        assert "within 0.5 s" in _failing(lambda: agree(group, True, ""))
        _stays_broken(group)
        done.touch()


def _stays_broken(group: TorchGroup) -> None:
    assert "failed before" in _failing(lambda: same(group, "a", "a"))


def _failing(call: Callable[[], object]) -> str:
    with pytest.raises(GroupFailed) as caught:
        call()
    return str(caught.value)
