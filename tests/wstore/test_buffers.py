"""Reading into and writing from the caller's memory: numpy, torch, memoryviews; what is refused."""

from __future__ import annotations

import array
import ctypes
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
import torch

from wstore import InvalidArgument, StoragePath, buffers
from wstore.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.buffers import WritableBuffer

CONTENT = bytes(range(48))


def path() -> StoragePath:
    store = MemoryStore()
    store.write("x", memoryview(CONTENT))
    return StoragePath("memory://t/x", store=store)


WRITABLE: dict[str, Callable[[], WritableBuffer]] = {
    "bytearray": lambda: bytearray(48),
    "memoryview": lambda: memoryview(bytearray(48)),
    "array": lambda: array.array("d", [0.0] * 6),
    "uint8": lambda: np.zeros(48, np.uint8),
    "f32 2-d": lambda: np.zeros((3, 4), np.float32),
    "big-endian": lambda: np.zeros(12, ">f4"),
    "bfloat16": lambda: np.zeros((4, 6), ml_dtypes.bfloat16),
    "fp8": lambda: np.zeros(48, ml_dtypes.float8_e4m3fn),
    "datetime": lambda: np.zeros(6, "M8[ns]"),
    "0-d": lambda: np.zeros((), "V48"),
    "torch bf16": lambda: torch.zeros(24, dtype=torch.bfloat16),
    "torch f32 2-d": lambda: torch.zeros((3, 4)),
    "torch fp8": lambda: torch.zeros(48, dtype=torch.float8_e4m3fn),
    "torch bool": lambda: torch.zeros(48, dtype=torch.bool),
    "torch parameter": lambda: torch.nn.Parameter(torch.zeros(12)),
    "torch complex": lambda: torch.zeros(6, dtype=torch.complex64),
    "torch 0-d": lambda: torch.zeros(49, dtype=torch.uint8)[1:],
}


@pytest.mark.parametrize("kind", WRITABLE)
def test_any_writable_memory_is_filled_in_place_and_can_be_written(kind: str) -> None:
    buffer = WRITABLE[kind]()
    assert path().read_into(buffer) == 48
    assert bytes(buffers.readable_bytes(buffer)) == CONTENT
    target = path()
    target.write_file(buffer)
    assert target.read_bytes() == CONTENT


def test_the_memory_is_the_callers_own() -> None:
    tensor = torch.zeros(24, dtype=torch.bfloat16)
    address = tensor.data_ptr()
    view = buffers.writable_bytes(tensor)
    view[:2] = b"\x80\x3f"
    assert tensor[0] == 1.0
    assert ctypes.addressof(ctypes.c_char.from_buffer(view)) == address


@pytest.mark.parametrize(
    "buffer",
    [
        bytes(48), memoryview(bytes(48)), np.frombuffer(bytes(48), "u1"), "text", 5, None,
        memoryview(bytearray(96))[::2], np.zeros((4, 6), "f4").T, np.zeros(24, "f4")[::2],
        np.asfortranarray(np.zeros((4, 6), "f4")), np.array([None] * 6), torch.zeros(4, 6).T,
        torch.zeros(24)[::2], torch.zeros(6, dtype=torch.complex64).conj(), torch.zeros(6).to_sparse(),
        torch.zeros(6, device="meta"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_filled_is_refused(buffer: WritableBuffer) -> None:
    with pytest.raises(InvalidArgument):
        path().read_into(buffer)


def test_empty_memory() -> None:
    empty: list[WritableBuffer] = [bytearray(), np.zeros((0, 4)), torch.zeros(0)]
    for buffer in [*empty, np.zeros((3, 0), ml_dtypes.bfloat16)]:
        assert path().read_into(buffer) == 0
        target = path()
        target.write_file(buffer)
        assert target.read_bytes() == b""


def test_non_contiguous_data_is_not_written() -> None:
    target = path()
    for data in (np.zeros((4, 6)).T, torch.zeros(4, 6).T, memoryview(bytes(8))[::2]):
        with pytest.raises(InvalidArgument, match="contiguous"):
            target.write_file(data)
    assert target.read_bytes() == CONTENT
