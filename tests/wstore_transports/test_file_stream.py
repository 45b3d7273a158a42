"""The streaming safetensors writer, read back by the safetensors library and by torch."""

from __future__ import annotations

import importlib.util
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes
from wstore_codecs.digest import TensorDigest, combine, digest_block
from wstore_transports.checkpoint.file_stream import FileStream
from wstore_transports.checkpoint.hashing import SMALL_BYTES
from wstore_transports.checkpoint.pieces import Shard, collect
from wstore_transports.checkpoint.safetensors_header import parse_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.hashing import StoredBlock


def stream_of(
    tensors: Mapping[str, Array | Shard], metadata: Mapping[str, str] | None = None
) -> FileStream:
    return FileStream(collect(tensors).pieces, metadata=metadata)


def blocks_of(stream: FileStream, name: str) -> list[StoredBlock]:
    return [block for block in stream.blocks if block.piece.name == name]


def package_file(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


@pytest.mark.parametrize(
    ("package", "path"),
    [
        ("fracast", "weights/model.safetensors"),
        ("fracast", "weights/model.int8.safetensors"),
        ("silero_vad", "data/silero_vad_16k.safetensors"),
    ],
)
def test_real_weights_survive_byte_for_byte(package: str, path: str, tmp_path: Path) -> None:
    source = package_file(package, path)
    original = source.read_bytes()
    header = parse_header(original, file_size=len(original), url=str(source))
    with safe_open(source, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    stream = stream_of(tensors, dict(header.metadata))
    data = b"".join(stream.chunks())
    written = parse_header(data, file_size=len(data), url="")
    assert written.metadata == header.metadata
    for name, entry in header.tensors.items():
        now = written.tensors[name]
        assert (now.dtype, now.shape) == (entry.dtype, entry.shape)
        stored = data[now.offset : now.offset + now.nbytes]
        assert stored == original[entry.offset : entry.offset + entry.nbytes]
        blocks = blocks_of(stream, name)
        assert [b.offset for b in blocks][:1] == [now.offset]
        assert sum(b.nbytes for b in blocks) == now.nbytes
        for b in blocks:
            assert b.hash == xxhash.xxh3_128_hexdigest(data[b.offset : b.offset + b.nbytes])
        assert combine(b.digest for b in blocks) == digest_block(tensors[name])
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(data)
    with safe_open(copy, "pt") as file:
        assert set(file.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_every_dtype_and_order_reads_back(tmp_path: Path) -> None:
    base = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)) * 3
    tensors: dict[str, Array] = {}
    expect: dict[str, torch.Tensor] = {}
    for row in dtypes.DTYPES.values():
        if row.name == "F8_E8M0":
            continue  # the library's reader of torch 2.13 is asked for the common ones
        tensor = base.abs().to(row.torch)
        tensors[f"{row.name}.t"] = tensor.t()
        tensors[f"{row.name}.strided"] = tensor[:, ::2]
        tensors[f"{row.name}.0d"] = tensor[1, 1]
        tensors[f"{row.name}.empty"] = tensor[:0]
        raw = tensor.view(torch.uint8).numpy().reshape(6, -1).view(row.numpy)
        tensors[f"{row.name}.fortran"] = np.asfortranarray(raw)
        for kind in ("t", "strided", "0d", "empty"):
            found = tensors[f"{row.name}.{kind}"]
            assert isinstance(found, torch.Tensor)
            expect[f"{row.name}.{kind}"] = found.contiguous()
        expect[f"{row.name}.fortran"] = tensor
    data = b"".join(stream_of(tensors).chunks())
    path = tmp_path / "all.safetensors"
    path.write_bytes(data)
    with safe_open(path, "pt") as file:
        for name, tensor in expect.items():
            got = file.get_tensor(name)
            assert got.dtype == tensor.dtype
            assert got.shape == tensor.shape
            assert got.flatten().view(torch.uint8).tolist() == (
                tensor.flatten().view(torch.uint8).tolist()
            )


def test_hashes_are_of_the_bytes() -> None:
    tensors: dict[str, Array] = {f"t{n}": np.full(n, n, np.uint16) for n in range(300)}
    tensors["big"] = np.arange(5 << 20, dtype=np.uint32)
    stream = stream_of(tensors)
    chunks = [bytes(chunk) for chunk in stream.chunks()]
    assert max(map(len, chunks)) <= 8 << 20
    assert len(chunks) < 20, "small tensors are joined"
    data = b"".join(chunks)
    assert len(data) == stream.size
    assert stream.hash == xxhash.xxh3_128_hexdigest(data)
    ends = [block.offset + block.nbytes for block in stream.blocks]
    assert [block.offset for block in stream.blocks][1:] == ends[:-1]
    assert ends[-1] == len(data)
    assert len(load(data)) == 301


def test_small_tensors_have_the_hashes_they_have_alone() -> None:
    """Hashed together or each alone, around the limit, for every width, order and library."""
    tensors: dict[str, Array] = {}
    for kind in (np.uint8, np.float16, np.float32, np.float64):
        most = SMALL_BYTES // np.dtype(kind).itemsize
        for size in (0, 1, 5, most - 1, most, most + 1):
            tensors[f"{kind.__name__}.{size}"] = np.arange(size).astype(kind)
    tensors["strided"] = np.arange(40, dtype=np.int32).reshape(5, 8)[::2, ::-3].T
    tensors["torch"] = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).t()
    tensors["zero_d"] = np.array(3, np.int64)
    tensors |= {f"many.{n}": np.full(2, n, np.int16) for n in range(2_500)}
    stream = stream_of(tensors)
    data = b"".join(stream.chunks())
    assert {block.piece.name for block in stream.blocks} == set(tensors)
    for block in stream.blocks:
        stored = data[block.offset : block.offset + block.nbytes]
        assert block.hash == xxhash.xxh3_128_hexdigest(stored)
        assert block.digest == digest_block(tensors[block.piece.name])
        part = np.frombuffer(stored, block.piece.dtype.bits)
        assert block.digest == digest_block(part), "what was streamed is what was digested"


def test_shards_carry_digests_that_add_up() -> None:
    whole = np.random.default_rng(2).integers(0, 1 << 16, (10, 7), dtype=np.uint16)
    whole_bf16 = whole.view(ml_dtypes.bfloat16)
    parts: list[TensorDigest] = []
    for low, high in ((0, 4), (4, 10)):
        stream = stream_of({"w": Shard(whole_bf16[low:high], (10, 7), (low, 0))})
        for _ in stream.chunks():
            pass
        parts.extend(block.digest for block in stream.blocks)
    assert combine(parts) == digest_block(whole_bf16)


def test_memory_is_not_doubled() -> None:
    """Peak extra memory of streaming 96 MiB, a third of it transposed, stays far below its size."""
    array = np.ones((4 << 10, 8 << 10), np.uint8)
    stream = stream_of({"a": array, "b": array.T, "c": array.view(np.int8)})
    digest_block(array[:64])  # compiles
    tracemalloc.start()  # numpy and bytes report to it; a process's peak would hide behind older ones
    try:
        size = sum(chunk.nbytes for chunk in stream.chunks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == stream.size
    assert 8 << 20 <= peak < 32 << 20, "the transposed tensor is copied, a block at a time"


def test_what_no_file_can_hold_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'a': a shard"):
        stream_of({"a": Shard(np.zeros(3), (4,), (2,))})
    with pytest.raises(InvalidArgument, match="'a' has numpy dtype object"):
        stream_of({"a": np.zeros(3, object)})
