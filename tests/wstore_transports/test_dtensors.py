"""DTensors of real process groups are written as the shards they are."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore_transports.gloo_ranks import run_ranks
from wstore.errors import InvalidArgument
from wstore_transports.checkpoint.pieces import Collector, Shard, collect

if TYPE_CHECKING:
    from pathlib import Path

RANKS = "tests.wstore_transports.dtensor_ranks"


@pytest.mark.long
def test_two_ranks(tmp_path: Path) -> None:
    run_ranks(f"{RANKS}:two_ranks", 2, tmp_path)


@pytest.mark.long
def test_four_ranks(tmp_path: Path) -> None:
    run_ranks(f"{RANKS}:four_ranks", 4, tmp_path)


def test_arrays_are_collected_without_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from wstore_transports.checkpoint.pieces import collect\n"
        "collect({'w': np.zeros(3)})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_are_added_one_by_one() -> None:
    collector = Collector()
    weights, bias = np.zeros((4, 2), np.float32), np.zeros(4, np.float32)
    first = collector.add("w", weights)
    assert first is not None
    assert first.array is weights
    assert collector.add("tied", weights) is None
    half = collector.add("half", Shard(bias, (8,), (4,)))
    assert half is not None
    assert half.box.origin == (4,)
    assert collector.add("empty", bias[:0]) is not None
    wrong: list[tuple[str, np.ndarray | Shard, str]] = [
        ("w", bias, "'w' is given twice"),
        ("", bias, "1 to 1024 characters"),
        ("outside", Shard(bias, (8,), (5,)), "leaves its shape"),
        ("text", np.array(["a"]), "text"),
    ]
    for name, value, why in wrong:
        with pytest.raises(InvalidArgument, match=why):
            collector.add(name, value)
    inventory = collector.inventory()
    assert [piece.name for piece in inventory.pieces] == ["w", "half", "empty"]
    assert inventory.aliases == {"tied": "w"}
    assert collector.add("outside", Shard(bias, (8,), (0,))) is not None
    assert len(inventory.pieces) == 3
    assert collect({"w": weights, "tied": weights}).aliases == {"tied": "w"}
