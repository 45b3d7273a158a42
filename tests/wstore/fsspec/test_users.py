"""What others build on `WStoreFileSystem`: pandas, zarr, torch's distributed checkpoints."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
import zarr

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from wstore import StoragePath


def test_pandas(place: StoragePath, fs: AbstractFileSystem) -> None:
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [0.5, 0.25, 0.125]})
    frame.to_csv(f"wstore://{place}/log.csv", index=False)
    frame.to_json(f"wstore://{place}/log.json", orient="records")
    pd.testing.assert_frame_equal(pd.read_csv(f"wstore://{place}/log.csv"), frame)
    pd.testing.assert_frame_equal(pd.read_json(f"wstore://{place}/log.json"), frame)
    with pytest.raises(FileNotFoundError):
        pd.read_csv(f"wstore://{place}/none.csv")


def test_zarr(place: StoragePath) -> None:
    values = np.arange(600, dtype="f4").reshape(20, 30)
    url = f"wstore://{place}/array.zarr"
    array = zarr.create_array(url, shape=values.shape, chunks=(7, 30), dtype=values.dtype)
    array[:] = values
    array.attrs["step"] = 7
    again = zarr.open_array(url, mode="r")
    assert np.array_equal(again[:], values)
    assert again.attrs["step"] == 7
    group = zarr.open_group(f"wstore://{place}/group.zarr", mode="w")
    group.create_array("w", data=values)
    assert sorted(zarr.open_group(f"wstore://{place}/group.zarr", mode="r").array_keys()) == ["w"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # that is `no_dist`
@pytest.mark.parametrize("form", ["wstore://", "wstore::"])
def test_torch_distributed_checkpoint(place: StoragePath, form: str) -> None:
    # Seconds to import, which each process that only collects the tests would pay.
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    weights = {"a": torch.randn(300, 200), "b": torch.arange(7, dtype=torch.bfloat16)}
    url = f"{form}{place.url}/checkpoint"
    save({**weights, "step": 3}, storage_writer=FsspecWriter(url, sync_files=False), no_dist=True)
    target: dict[str, Any] = {name: torch.zeros_like(old) for name, old in weights.items()}
    target["step"] = 0
    load(target, storage_reader=FsspecReader(url), no_dist=True)
    assert all(torch.equal(target[name], old) for name, old in weights.items())
    assert target["step"] == 3
    assert not [path.name for path in (place / "checkpoint").iterdir() if "tmp" in path.name]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:torch.distributed is :UserWarning")
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/storage.md").read_text()
    section = page.partition("## From pandas, torch DCP, zarr")[2].partition("\n## ")[0]
    code = section.partition("```python\n")[2].partition("```")[0]
    log, weights = pd.DataFrame({"loss": [0.5]}), {"w": torch.ones(3)}
    script, run = tmp_path / "page.py", tmp_path / "run"
    script.write_text(code)
    runpy.run_path(str(script), init_globals={"run": run, "log": log, "weights": weights})
    assert sorted(path.name for path in run.iterdir()) == ["log.csv", "moments.zarr", "step_1"]
