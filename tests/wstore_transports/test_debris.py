"""What killed writers left unfinished goes by itself when it is old: by the next writer, and by `gc`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.cli import main
from wstore.path import StoragePath
from wstore.stores.posix_temp import new_temp_name
from wstore_transports.checkpoint import CheckpointWriter
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 24 * 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one version, made before there was any debris."""
    place = tmp_path / "root"
    Root.create(StoragePath(place), lease_s=0.05)
    with CheckpointWriter(str(place)) as writer:
        writer.write(1, {"w": np.zeros(3)})
    return place


def leave_unfinished(root: Path, *, age_s: float) -> Path:
    """The hidden file of a writer that was killed that long ago, deep in the root."""
    hidden = root / "data" / "main" / "killed" / os.fsdecode(new_temp_name())
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_bytes(b"half")
    os.utime(hidden, (time.time() - age_s,) * 2)
    return hidden


def test_the_next_writer_sweeps(root: Path) -> None:
    old, young = (leave_unfinished(root, age_s=days * DAY_S) for days in (2, 0.5))
    CheckpointWriter(str(root)).close()
    assert (old.exists(), young.exists()) == (False, True)


def test_gc_sweeps_when_it_may_delete(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, young = (leave_unfinished(root, age_s=days * DAY_S) for days in (2, 0.5))
    assert main(["gc", str(root)]) == 0
    assert (old.exists(), young.exists()) == (True, True)
    assert main(["gc", str(root), "--yes"]) == 0
    assert (old.exists(), young.exists()) == (False, True)
    capsys.readouterr()
