"""What the checkpoint writer stores, shares, refuses and survives."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open

from wstore.errors import InvalidArgument, NoSpace, WStoreError
from wstore.path import StoragePath
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Fault, Faults, fail
from wstore_transports.checkpoint import (
    CheckpointReader,
    CheckpointWriter,
    Shard,
    sharing,
    weights_digest,
)
from wstore_transports.errors import AttemptAborted, Fenced
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wstore_codecs.tensors import Array

_names = itertools.count()


@pytest.fixture
def place() -> StoragePath:
    """A fresh place for a root, in memory."""
    return StoragePath(f"memory://checkpoints/{next(_names)}")


def sample(seed: int = 0) -> dict[str, Array]:
    """Every kind of array: dtypes, strides, 0-d, empty, torch, more than one block."""
    random = np.random.default_rng(seed)
    floats = random.standard_normal((6, 8)).astype(np.float32)
    return {
        "f32": floats,
        "fortran": np.asfortranarray(floats * 2),
        "strided": floats[::2, ::3],
        "reversed": floats[::-1],
        "bf16": floats.astype(ml_dtypes.bfloat16),
        "fp8": floats.astype(ml_dtypes.float8_e4m3fn),
        "bool": floats > 0,
        "i64": np.arange(5),
        "zero_d": np.array(3.5, np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "nan": np.array([np.nan, -0.0, 0.0], np.float32),
        "torch.bf16": torch.from_numpy(floats.copy()).bfloat16().T,
        "odd name /..# %20 ü\n": np.arange(3, dtype=np.int8),
        "blocks": random.standard_normal((3, 1100, 1001)).astype(np.float32),
    }


def same_bits(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    """Whether both hold the same names, dtypes, shapes and bits."""
    return weights_digest(a) == weights_digest(b)


def test_all_kinds_of_arrays_come_back_bit_for_bit(place: StoragePath) -> None:
    weights = sample()
    with CheckpointWriter(place) as writer:
        report = writer.write(7, weights)
    reader = CheckpointReader(place)
    assert same_bits(reader.load(), weights)
    assert same_bits(reader.load(framework="torch"), weights)
    version = reader.latest()
    assert (version.number, version.step, version.digest) == (
        report.version,
        7,
        weights_digest(weights),
    )
    assert report.tensors == len(weights)
    assert len(version.manifest().tensors["blocks"].blocks) > 1


def test_files_are_plain_safetensors(tmp_path: Path) -> None:
    weights: dict[str, Array] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.ones(2, np.int8),
    }
    with CheckpointWriter(str(tmp_path / "root")) as writer:
        writer.write(0, weights)
    (file,) = (tmp_path / "root").rglob("*.safetensors")
    with safe_open(file, "numpy") as found:
        assert set(found.keys()) == {"a", "b"}
        np.testing.assert_array_equal(found.get_tensor("a"), weights["a"])
    assert (file.parent / "model.safetensors.index.json").exists()


def test_tied_weights_are_stored_once_and_both_names_resolve(place: StoragePath) -> None:
    table = np.arange(4096, dtype=np.float32)
    part = {"embed": table, "head": table, "half": table[:2048], "copy": table.copy()}
    with CheckpointWriter(place) as writer:
        report = writer.write(0, part)
    assert report.rank_nbytes == table.nbytes * 2 + table.nbytes // 2
    reader = CheckpointReader(place)
    assert reader.latest().manifest().aliases == {"head": "embed"}
    assert same_bits(reader.load(), part)
    np.testing.assert_array_equal(reader.load(names=["head"])["head"], table)


def test_scalars_that_pass_through_the_same_memory_are_not_tied(place: StoragePath) -> None:
    pairs = ((f"s{i}", np.float32(i)) for i in range(100))
    with CheckpointWriter(place) as writer:
        writer.write(0, cast("Iterable[tuple[str, Array]]", pairs))
    loaded = CheckpointReader(place).load()
    assert [float(loaded[f"s{i}"]) for i in range(100)] == list(range(100))


def test_unchanged_files_are_referenced(place: StoragePath) -> None:
    weights = {"a": np.zeros(1000, np.float32), "b": np.ones(1000, np.float32)}
    with CheckpointWriter(place, max_file_bytes=4000) as writer:
        first = writer.write(0, weights)
        again = writer.write(1, weights)
        weights["b"] = weights["b"] * 2
        third = writer.write(2, weights)
    assert again.written_nbytes == 0
    assert again.digest == first.digest
    assert 4000 < third.written_nbytes < 5000
    reader = CheckpointReader(place)
    assert same_bits(reader.load(), weights)
    assert float(reader.load(first.version)["b"][0]) == 1.0


def test_a_frozen_tensor_among_changing_ones_is_soon_shared(place: StoragePath) -> None:
    frozen, moving = np.ones(1 << 19, np.float32), np.zeros(1 << 20, np.float32)
    written = []
    with CheckpointWriter(place) as writer:
        for step in range(4):
            moving += 1
            written.append(writer.write(step, {"m": moving, "f": frozen}).written_nbytes)
    both = frozen.nbytes + moving.nbytes
    assert written[0] >= both
    assert written[1] >= both, "its file was mostly outdated, so it moves to one of its own"
    assert written[2] < moving.nbytes + 1000
    assert written[3] < moving.nbytes + 1000
    assert same_bits(CheckpointReader(place).load(), {"m": moving, "f": frozen})


def test_a_failure_leaves_the_old_versions_and_no_new_one(place: StoragePath) -> None:
    def refuse(done: int, total: int | None) -> None:
        raise RuntimeError("enough")

    old, new = sample(1), sample(2)
    with CheckpointWriter(place) as writer:
        writer.write(1, old)
        with pytest.raises(RuntimeError, match="enough") as caught:
            writer.write(2, new, progress=refuse)
        assert "tensor" in caught.value.__notes__[0]
        reader = CheckpointReader(place)
        assert [version.step for version in reader.versions()] == [1]
        assert same_bits(reader.load(), old)
        writer.write(3, new)
        assert [version.step for version in reader.versions()] == [1, 3]
        assert same_bits(reader.load(), new)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("w", np.zeros(1)), ("w", np.ones(1))], "'w' is given twice"),
        ({}, "no tensors"),
        ({"w": np.zeros(1, object)}, "'w'"),
        ({"w": np.zeros(1, np.complex128)}, "'w'"),
        ({"w": np.zeros(2, ">f4")}, "big-endian"),
        ({"": np.zeros(1)}, "1 to 1024 characters"),
        ({"x" * 1025: np.zeros(1)}, "1 to 1024 characters"),
        ({"__metadata__": np.zeros(1)}, "__metadata__"),
        ({"\ud800": np.zeros(1)}, "UTF-8"),
        ({"a\0b": np.zeros(1)}, "NUL"),
        ({"w": np.zeros((1,) * 33)}, "33 dimensions"),
        ({3: np.zeros(1)}, "1 to 1024 characters"),
        ({"w": Shard(np.zeros((2, 2)), (3, 3), (2, 0))}, "leaves its shape"),
        ({"w": Shard(np.zeros(2), (3, 3), (0, 0))}, "'w'"),
        ({"w": torch.zeros(2, device="meta")}, "meta"),
    ],
)
def test_bad_tensors_are_refused_before_anything_is_written(
    place: StoragePath, tensors: object, message: str
) -> None:
    with CheckpointWriter(place) as writer:
        with pytest.raises(InvalidArgument, match=message):
            writer.write(0, tensors)  # type: ignore[arg-type]
        assert not (place / "data").is_dir()


def test_bad_settings_are_refused(place: StoragePath) -> None:
    for settings in (
        {"rank": 2, "world_size": 2},
        {"world_size": 2},
        {"keep": 0},
        {"max_file_bytes": 0},
    ):
        with pytest.raises(InvalidArgument):
            CheckpointWriter(place, **settings)  # type: ignore[arg-type]


def test_extra_files_cannot_leave_or_pose_as_weights(place: StoragePath) -> None:
    with CheckpointWriter(place) as writer:
        for name in ("../x", "a/b", "model.safetensors", "", ".hidden"):
            with pytest.raises(InvalidArgument, match="extra file"):
                writer.write(0, {"w": np.zeros(1)}, files={name: b""})


def _many(place: StoragePath, count: int) -> None:
    weights = {f"layer.{i}.scale": np.full(4, i, np.float32) for i in range(count)}
    with CheckpointWriter(place) as writer:
        writer.write(0, weights)
        assert writer.write(1, weights).written_nbytes == 0
    assert same_bits(CheckpointReader(place).load(), weights)


def test_many_small_tensors(place: StoragePath) -> None:
    _many(place, 300)


def test_a_header_larger_than_the_tensors_hinders_no_sharing(
    place: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "SMALL_OBJECT", 0)
    _many(place, 50)


@pytest.mark.long
def test_100_000_small_tensors(place: StoragePath) -> None:
    _many(place, 100_000)


def test_a_version_stands_without_its_index(caplog: pytest.LogCaptureFixture) -> None:
    refused = Fault(fail(lambda: NoSpace("full")), lambda call: call.key.endswith(".index.json"))
    place = StoragePath("memory://index/root", store=Faults(MemoryStore(), [refused]))
    with CheckpointWriter(place) as writer:
        report = writer.write(1, {"w": np.arange(3)})
    assert "full" in caplog.text
    assert CheckpointReader(place).latest().number == report.version


def test_a_second_writer_fences_the_first(place: StoragePath) -> None:
    first = CheckpointWriter(place)
    first.write(0, {"w": np.zeros(1)})
    with CheckpointWriter(place) as second:
        second.write(5, {"w": np.ones(1)})
        with pytest.raises(Fenced):
            first.write(1, {"w": np.full(1, 2.0)})
    first.close()
    assert [version.step for version in CheckpointReader(place).versions()] == [0, 5]


def ranks(place: StoragePath, given: list[Mapping[str, Array | Shard]]) -> list[int | WStoreError]:
    """Write one version with as many ranks as `given` has, each a thread; what each got."""
    launch = f"launch-{next(_names)}"

    def one(rank: int) -> int | WStoreError:
        try:
            writer = CheckpointWriter(place, rank, len(given), launch=launch, timeout_s=60)
        except WStoreError as error:
            return error
        try:
            return writer.write(3, given[rank]).version
        except WStoreError as error:
            return error
        finally:
            writer.close()

    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(one, range(len(given))))


def cut(whole: Array, at: tuple[slice, ...]) -> Shard:
    """The shard of an array at these slices."""
    origin = tuple(part.indices(length)[0] for part, length in zip(at, whole.shape, strict=True))
    return Shard(whole[at], tuple(whole.shape), origin)


def test_ranks_write_their_shards_and_readers_see_whole_tensors(
    place: StoragePath, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    rows = random.standard_normal((5, 7)).astype(np.float32)
    columns = random.standard_normal((6, 9)).astype(ml_dtypes.bfloat16)
    replica, alone = np.arange(4), np.ones(3, np.int8)
    spans = [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 5)]
    given: list[dict[str, Array | Shard]] = [
        {"rows": cut(rows, (span, slice(None))), "replica": replica.copy()} for span in spans
    ]
    for rank in range(3):
        given[rank]["columns"] = cut(columns, (slice(None), slice(rank * 3, rank * 3 + 3)))
    given[2]["alone"] = alone
    versions = ranks(place, list(given))
    assert len(set(versions)) == 1, versions
    want = {"rows": rows, "columns": columns, "replica": replica, "alone": alone}
    reader = CheckpointReader(place)
    assert same_bits(reader.load(), want)
    box = reader.load(box={"columns": (slice(1, 4), slice(2, 7))}, names=["columns"])["columns"]
    assert np.array_equal(box, columns[1:4, 2:7])
    merged = reader.download(None, tmp_path / "merged")
    assert same_bits(CheckpointReader(str(merged)).load(), want)


def test_replicas_that_differ_are_not_committed(place: StoragePath) -> None:
    results = ranks(place, [{"w": np.zeros(3)}, {"w": np.ones(3)}])
    assert all(isinstance(result, AttemptAborted) for result in results), results
    assert all("'w'" in str(result) for result in results)
    assert CheckpointReader(place).versions() == []


def test_a_missing_shard_is_not_committed(place: StoragePath) -> None:
    whole = np.zeros((4, 2))
    results = ranks(place, [{"w": cut(whole, (slice(0, 2), slice(None)))}, {"b": np.ones(3)}])
    assert all(isinstance(result, AttemptAborted) for result in results), results
    assert all("'w'" in str(result) for result in results)


def test_a_rank_that_fails_ends_the_attempt_for_all(place: StoragePath) -> None:
    results = ranks(place, [{"a": np.zeros(2)}, {"w": np.zeros(2, object)}])
    assert isinstance(results[1], InvalidArgument)
    assert isinstance(results[0], AttemptAborted)
    assert "rank 1" in str(results[0])
    assert "'w'" in str(results[0])
    assert CheckpointReader(place).versions() == []


def test_keep_lets_older_versions_go(place: StoragePath) -> None:
    Root.create(place, lease_s=0.2)
    weights = {"w": np.zeros(1000)}
    with CheckpointWriter(place, keep=2) as writer:
        for step in range(5):
            weights["w"] += 1
            writer.write(step, weights)
        reader = CheckpointReader(place)
        deadline = time.monotonic() + 60
        while len(reader.versions()) > 2 and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert [version.step for version in reader.versions()] == [3, 4]
    assert same_bits(reader.load(), weights)


def resident() -> int:
    """Bytes of this process in memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _grow(place: StoragePath, saves: int, nbytes: int) -> None:
    weights = {"w": np.zeros(nbytes // 4, np.float32)}
    sizes = []
    with CheckpointWriter(place) as writer:
        for step in range(saves):
            weights["w"] += 1
            writer.write(step, weights)
            gc.collect()
            sizes.append(resident())
    assert sizes[-1] - sizes[2] < nbytes * 2, sizes


def test_memory_does_not_grow_with_every_save(tmp_path: Path) -> None:
    _grow(StoragePath(tmp_path / "root"), 6, 4 << 20)


@pytest.mark.long
def test_memory_is_flat_over_50_saves(tmp_path: Path) -> None:
    _grow(StoragePath(tmp_path / "root"), 50, 20 << 20)
