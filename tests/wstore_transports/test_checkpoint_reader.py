"""What the checkpoint reader reads, checks and refuses, and what it leaves alone when it fails."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from wstore.errors import (
    AlreadyExists,
    IntegrityError,
    InvalidArgument,
    NoSpace,
    WaitTimeout,
    WStoreError,
)
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.faults import Fault, Faults, fail
from wstore_codecs.block import Block
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.checkpoint.fetch import plan
from wstore_transports.checkpoint.targets import allocate
from wstore_transports.errors import NotARoot, NoVersion, RunEnded, VersionGone
from wstore_transports.versions import Retention, Root, collect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wstore.stores.wrap.base import Call
    from wstore_codecs.tensors import Array

_names = itertools.count()


@pytest.fixture
def place() -> StoragePath:
    """A fresh place for a root, in memory."""
    return StoragePath(f"memory://reading/{next(_names)}")


def publish(place: StoragePath, *versions: Mapping[str, Array]) -> CheckpointReader:
    """Write these versions, with their index as step, and open a reader."""
    with CheckpointWriter(place) as writer:
        for step, weights in enumerate(versions):
            writer.write(step, weights)
    return CheckpointReader(place)


def matrix(rows: int = 3000, columns: int = 1000) -> np.ndarray:
    """More than one block of float32."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_boxes_of_a_tensor(place: StoragePath, framework: str) -> None:
    whole = matrix()
    reader = publish(place, {"w": whole, "other": np.ones(3)})
    boxes = [
        (slice(5, 9),),
        (slice(None), slice(10, 20)),
        (slice(2090, 2110), slice(-1, None)),
        (slice(7, 7),),
        (),
    ]
    for box in boxes:
        got = reader.load(names=["w"], box={"w": box}, framework=framework)["w"]  # type: ignore[arg-type]
        assert np.array_equal(np.asarray(got), whole[box]), box


def test_a_slice_reads_the_blocks_it_touches_and_no_more(place: StoragePath) -> None:
    reader = publish(place, {"w": matrix(6_000)})
    tensor = reader.latest().manifest().tensors["w"]
    target = allocate("w", tensor, Block("w", (10, 0), (5, 1000)), "numpy")
    assert len(tensor.blocks) == 3
    assert [request.nbytes for request in plan([target])] == [tensor.blocks[0].nbytes]


def test_many_small_tensors_take_few_requests(place: StoragePath) -> None:
    reader = publish(place, {f"t{i}": np.full(16, i) for i in range(500)})
    manifest = reader.latest().manifest()
    targets = [
        allocate(name, tensor, Block.whole(name, tensor.shape), "numpy")
        for name, tensor in manifest.tensors.items()
    ]
    assert len(plan(targets)) == 1


def test_into_memory_of_any_shape_of_strides(place: StoragePath) -> None:
    weights: dict[str, Array] = {
        "rows": matrix(),
        "cols": matrix(2500),
        "bf": np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4),
        "zero_d": np.array(5.0),
        "empty": np.zeros((0, 3)),
    }
    reader = publish(place, weights)
    out: dict[str, Array] = {
        "rows": torch.zeros(3000, 1000),
        "cols": torch.zeros(1000, 2500).T,
        "bf": np.zeros((3, 8), ml_dtypes.bfloat16)[:, ::2],
        "zero_d": torch.zeros((), dtype=torch.float64),
        "empty": np.zeros((0, 3)),
    }
    for budget in (1 << 30, 1 << 20):
        got = reader.load(out=out, budget=budget)
        assert got["rows"] is out["rows"]
        assert weights_digest(out) == reader.latest().digest


def test_tied_memory_and_tied_names(place: StoragePath) -> None:
    table = np.arange(100.0)
    reader = publish(place, {"embed": table, "head": table})
    shared = np.zeros(100)
    reader.load(out={"embed": shared, "head": shared})
    assert np.array_equal(shared, table)
    two = {"embed": np.zeros(100), "head": np.zeros(100)}
    reader.load(out=two)
    assert np.array_equal(two["embed"], table)
    assert np.array_equal(two["head"], table)
    one = {"head": np.zeros(100)}
    reader.load(out=one)
    assert np.array_equal(one["head"], table)


def read_only() -> np.ndarray:
    """Memory that must not be written."""
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"a": np.zeros(4, np.float32)}, "not asked for: 'b'"),
        ({"a": np.zeros(4, np.float32), "b": np.zeros(2), "c": np.zeros(1)}, "'c'"),
        ({"a": np.zeros(5, np.float32), "b": np.zeros(2)}, r"F32 \[4\].*F32 \[5\]"),
        ({"a": np.zeros(4, np.float64), "b": np.zeros(2)}, "F64"),
        ({"a": read_only(), "b": np.zeros(2)}, "read-only"),
        ({"a": torch.zeros(1).expand(4), "b": np.zeros(2)}, "share"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_byte(
    place: StoragePath, out: dict[str, Array], message: str
) -> None:
    reader = publish(place, {"a": np.ones(4, np.float32), "b": np.ones(2)})
    with pytest.raises(InvalidArgument, match=message):
        reader.load(out=out)
    assert all(float(value) == 0 for array in out.values() for value in array)


def test_unknown_names_and_boxes_are_listed(place: StoragePath) -> None:
    reader = publish(place, {"a": np.ones(4)})
    with pytest.raises(InvalidArgument, match="'x'"):
        reader.load(names=["x"])
    with pytest.raises(InvalidArgument, match="'x'"):
        reader.load(box={"x": (slice(1),)})
    with pytest.raises(InvalidArgument, match="step 1"):
        reader.load(box={"a": (slice(0, 4, 2),)})


def damage(root: Path, offset: int = -8) -> Path:
    """Flip a bit near the end of the only file of weights."""
    (file,) = root.rglob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("budget", [1 << 30, 1 << 20])
def test_damage_names_tensor_and_file_and_leaves_old_weights_intact(
    tmp_path: Path, budget: int
) -> None:
    reader = publish(StoragePath(tmp_path), {"a": matrix(2500), "b": matrix(2500)})
    file = damage(tmp_path)
    out = {"a": np.full((2500, 1000), 9, np.float32), "b": np.full((2500, 1000), 9, np.float32)}
    with pytest.raises(IntegrityError, match="'b'") as caught:
        reader.load(out=out, budget=budget)
    assert file.name in str(caught.value)
    assert all(np.all(array == 9) for array in out.values())
    with pytest.raises(IntegrityError) as caught:
        reader.load(out=out, verify="after")
    assert "mixture" in caught.value.__notes__[0]
    with pytest.raises(IntegrityError, match="'b'"):
        reader.load()
    assert np.array_equal(reader.load(names=["a"])["a"], matrix(2500))
    assert reader.load(verify="never").keys() == {"a", "b"}
    with pytest.raises(IntegrityError):
        reader.download(None, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_a_cut_or_lost_object(tmp_path: Path) -> None:
    reader = publish(StoragePath(tmp_path), {"a": matrix()})
    (file,) = tmp_path.rglob("*.safetensors")
    file.chmod(0o644)
    os.truncate(file, file.stat().st_size - 4)
    with pytest.raises(IntegrityError, match="'a'"):
        reader.load()
    file.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        reader.load()


def test_a_version_that_was_let_go(place: StoragePath) -> None:
    Root.create(place, lease_s=0.1)
    reader = publish(place, *({"a": np.full(9, i)} for i in range(3)))
    first = reader.versions()[0]
    collect(reader.root, Retention(keep_last=1))
    with pytest.raises(VersionGone):
        reader.load(first)
    assert reader.load()["a"][0] == 2


def test_waiting(place: StoragePath) -> None:
    reader = CheckpointReader(place)
    with pytest.raises(NotARoot):
        reader.latest()
    with pytest.raises(WaitTimeout):
        reader.wait(timeout=0.01)
    with CheckpointWriter(place) as writer:
        with pytest.raises(NoVersion):
            reader.latest()
        with pytest.raises(WaitTimeout):
            reader.wait(timeout=0.01)
        report = writer.write(1, {"a": np.ones(1)})
        assert reader.wait(timeout=30).number == report.version
    with pytest.raises(RunEnded):
        reader.wait(report.version, timeout=30)


def test_a_load_stays_within_its_budget(tmp_path: Path) -> None:
    weights = {f"w{i}": matrix(2000, 1024) for i in range(8)}
    reader = publish(StoragePath(tmp_path), weights)
    out = {name: np.zeros_like(array) for name, array in weights.items()}
    budget = 16 << 20
    reader.load(out=out, budget=budget)
    tracemalloc.start()
    try:
        reader.load(out=out, budget=budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < budget + (4 << 20)


def test_foreign_directories_and_files(tmp_path: Path) -> None:
    one, two = {"a": matrix(3000)}, {"b": np.arange(5), "stale": np.zeros(2)}
    save_file(one, tmp_path / "one.safetensors")
    save_file(two, tmp_path / "two.safetensors")
    both = CheckpointReader(str(tmp_path))
    assert weights_digest(both.load()) == weights_digest({**one, **two})
    single = CheckpointReader(str(tmp_path / "one.safetensors"))
    got = single.load(box={"a": (slice(2, 4),)})["a"]
    assert np.array_equal(got, one["a"][2:4])
    with pytest.raises(InvalidArgument):
        both.load(3)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert set(both.load()) == {"a", "b"}
    for bad in ('{"weight_map": {"c": "one.safetensors"}}', '{"weight_map": {"a": "../x"}}', "[]"):
        index.write_text(bad)
        with pytest.raises(IntegrityError):
            both.load()


def test_a_truncated_foreign_file(tmp_path: Path) -> None:
    save_file({"a": np.arange(100)}, tmp_path / "one.safetensors")
    os.truncate(tmp_path / "one.safetensors", 200)
    with pytest.raises(IntegrityError):
        CheckpointReader(str(tmp_path)).load()


def test_download_does_not_touch_what_is_there(place: StoragePath, tmp_path: Path) -> None:
    weights = {f"w{i}": np.full(1000, i, np.float32) for i in range(5)}
    with CheckpointWriter(place) as writer:
        writer.write(0, weights, files={"config.json": b'{"a": 1}'})
    reader = CheckpointReader(place)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(AlreadyExists):
        reader.download(None, tmp_path / "full")
    split = reader.download(None, tmp_path / "split", max_file_bytes=8000)
    assert (split / "config.json").read_bytes() == b'{"a": 1}'
    assert len(list(split.glob("model-0000?-of-00003.safetensors"))) == 3
    assert weights_digest(CheckpointReader(str(split)).load()) == weights_digest(weights)


def test_what_a_killed_download_leaves_is_hidden_and_swept(
    place: StoragePath, tmp_path: Path
) -> None:
    publish(place, {"w": matrix()}).download(None, tmp_path / "whole")
    source = tmp_path / "source"
    publish(StoragePath(source), {"w": matrix()})
    code = (
        "import os, sys\n"
        "from wstore_transports.checkpoint import CheckpointReader\n"
        "CheckpointReader(sys.argv[1]).download(None, sys.argv[2], progress=lambda *_: os._exit(9))\n"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "killed")]
    assert subprocess.run(command, check=False).returncode == 9
    here = StoragePath(tmp_path)
    left = [path for path in tmp_path.iterdir() if path.name.startswith(".wstore-")]
    assert len(left) == 1
    assert [path.name for path in here.iterdir()] == ["source", "whole"]
    (left[0] / "file").write_text("new")
    os.utime(left[0], (1, 1))  # old, but for what is in it
    assert here.sweep(older_than=3600) == []
    assert here.sweep(older_than=0)
    assert not left[0].exists()
    assert (tmp_path / "whole").is_dir()


def test_a_download_to_where_no_directory_can_be_names_the_place(
    place: StoragePath, tmp_path: Path
) -> None:
    reader = publish(place, {"w": np.arange(3)})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WStoreError, match="file/inside"):
        reader.download(None, tmp_path / "file" / "inside")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("nth", [1, 2])
def test_a_full_disk_stops_no_reader(nth: int) -> None:
    """Whether the lease finds no room at all, or only when it is narrowed."""

    def leases(call: Call) -> bool:
        return call.op == "write" and "/leases/" in call.key

    full = Fault(fail(lambda: NoSpace("no space left")), leases, nth=nth)
    place = StoragePath(f"memory://full/{next(_names)}", store=Faults(MemoryStore("full"), [full]))
    reader = publish(place, {"w": np.arange(3)})
    assert reader.load()["w"].tolist() == [0, 1, 2]


def test_a_download_that_does_not_fit_names_the_file_asked_for(
    place: StoragePath, tmp_path: Path
) -> None:
    reader = publish(place, {"w": matrix()})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(InvalidArgument, match="ulimit -f") as caught:
            reader.download(None, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.url == StoragePath(tmp_path / "out" / "model.safetensors").url
    assert os.listdir(tmp_path) == []
