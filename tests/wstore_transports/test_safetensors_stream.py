"""The streaming safetensors writer, read back by the safetensors library and by torch."""

from __future__ import annotations

import importlib.util
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes
from wstore_codecs.digest import combine, digest_block
from wstore_transports.checkpoint.safetensors_header import parse_header
from wstore_transports.checkpoint.safetensors_stream import SafetensorsStream, Source

if TYPE_CHECKING:
    from wstore_codecs.tensors import Array


def write(tensors: dict[str, Array], **options: Any) -> tuple[bytes, SafetensorsStream]:
    stream = SafetensorsStream([Source(n, a) for n, a in tensors.items()], **options)
    return b"".join(stream.chunks()), stream


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
    data, stream = write(tensors, metadata=dict(header.metadata))
    assert parse_header(data, file_size=len(data), url="") == stream.header
    assert stream.header.metadata == header.metadata
    for name, entry in header.tensors.items():
        now = stream.header.tensors[name]
        assert (now.dtype, now.shape) == (entry.dtype, entry.shape)
        stored = data[now.offset : now.offset + now.nbytes]
        assert stored == original[entry.offset : entry.offset + entry.nbytes]
        assert stream.written.tensors[name].xxh3 == xxhash.xxh3_128_hexdigest(stored)
        assert stream.written.tensors[name].digest == digest_block(tensors[name])
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
    data, _ = write(tensors)
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
    stream = SafetensorsStream([Source(n, a) for n, a in tensors.items()])
    chunks = list(stream.chunks())
    assert max(chunk.nbytes for chunk in chunks) <= 8 << 20
    assert len(chunks) < 20, "small tensors are joined"
    data = b"".join(chunks)
    assert len(data) == stream.header.size == stream.written.size
    assert stream.written.xxh3 == xxhash.xxh3_128_hexdigest(data)
    assert list(stream.written.tensors) == list(stream.header.tensors)
    assert len(load(data)) == 301


def test_shards_carry_digests_that_add_up() -> None:
    whole = np.random.default_rng(2).integers(0, 1 << 16, (10, 7), dtype=np.uint16)
    whole_bf16 = whole.view(ml_dtypes.bfloat16)
    parts = []
    for low, high in ((0, 4), (4, 10)):
        source = Source("w", whole_bf16[low:high], shape=(10, 7), origin=(low, 0))
        stream = SafetensorsStream([source])
        list(stream.chunks())
        parts.append(stream.written.tensors["w"].digest)
    assert combine(parts) == digest_block(whole_bf16)


def test_memory_is_not_doubled() -> None:
    """Peak extra memory of streaming 192 MiB, a third of it transposed, stays far below its size."""
    array = np.ones((8 << 10, 8 << 10), np.uint8)
    sources = [Source("a", array), Source("b", array.T), Source("c", array.view(np.int8))]
    digest_block(array[:64])  # compiles
    stream = SafetensorsStream(sources)
    tracemalloc.start()  # numpy and bytes report to it; a process's peak would hide behind older ones
    try:
        size = sum(chunk.nbytes for chunk in stream.chunks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == stream.header.size
    assert 8 << 20 <= peak < 32 << 20, "the transposed tensor is copied, a chunk at a time"


def test_misuse_is_refused() -> None:
    stream = SafetensorsStream([Source("a", np.zeros(3))], url="file:///x")
    with pytest.raises(InvalidArgument, match="not reached its end"):
        _ = stream.written
    chunks = stream.chunks()
    with pytest.raises(InvalidArgument, match="taken already"):
        stream.chunks()
    list(chunks)
    assert stream.written.size == stream.header.size
    with pytest.raises(InvalidArgument, match="'a' comes twice"):
        SafetensorsStream([Source("a", np.zeros(3)), Source("a", np.zeros(3))])
    with pytest.raises(InvalidArgument, match="'a': a box"):
        SafetensorsStream([Source("a", np.zeros(3), shape=(4,), origin=(2,))])
    with pytest.raises(InvalidArgument, match="'a' has numpy dtype object"):
        SafetensorsStream([Source("a", np.zeros(3, object))])
