"""Ranks that act together: real gloo groups, one that refuses, is killed, or is late."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from tests.wstore_transports.gloo_ranks import run_ranks
from wstore_transports.delta.agreement import Alone, agree, decide, same
from wstore_transports.errors import GroupFailed, RootError

if TYPE_CHECKING:
    from pathlib import Path

    from wstore_transports.delta.agreement import Group

RANKS = "tests.wstore_transports.delta.group_ranks"


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_hear_the_same(tmp_path: Path, size: int) -> None:
    run_ranks(f"{RANKS}:agreeing", size, tmp_path)


@pytest.mark.long
def test_a_killed_rank(tmp_path: Path) -> None:
    run_ranks(f"{RANKS}:one_is_killed", 3, tmp_path, killed=1)


@pytest.mark.long
def test_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    run_ranks(f"{RANKS}:one_is_late", 2, tmp_path)


def test_one_rank_alone() -> None:
    group: Group = Alone()
    agree(group, True, "")
    same(group, "a", "what")
    assert decide(group, "a:b") == "a:b"
    with pytest.raises(GroupFailed, match="rank 0: disk full; nothing was applied") as caught:
        agree(group, False, "disk full")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), RootError)
