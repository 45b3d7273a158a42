"""Arrays as bytes and integer views: every dtype, every memory order, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

from wstore.errors import InvalidArgument
from wstore_codecs import dtypes, tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.dtypes import DType

EVERY = list(dtypes.DTYPES.values())


def sample(dtype: DType, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype.name == "BOOL" else 256, count)
    return np.frombuffer(data.astype(np.uint8).tobytes(), dtype.numpy).reshape(shape).copy()


def joined(array: tensors.Array, max_bytes: int) -> bytes:
    chunks = list(tensors.bit_chunks(array, name="t", max_bytes=max_bytes))
    size = tensors.describe(array, name="t").dtype.itemsize
    assert all(0 < chunk.nbytes <= max(max_bytes, size) for chunk in chunks)
    return b"".join(chunk.tobytes() for chunk in chunks)


@pytest.mark.parametrize("dtype", EVERY, ids=lambda d: d.name)
def test_numpy_and_torch_of_every_dtype_are_their_bytes(dtype: DType) -> None:
    array = sample(dtype, (3, 4, 5))
    tensor = torch.frombuffer(bytearray(array.tobytes()), dtype=dtype.torch).reshape(3, 4, 5)
    for same in (array, tensor):
        info = tensors.describe(same, name="t")
        assert (info.dtype, info.shape, info.nbytes) == (dtype, (3, 4, 5), array.nbytes)
        assert tensors.bit_view(same, name="t").dtype == dtype.bits
        assert tensors.byte_view(same, name="t") == array.tobytes()
        for max_bytes in (1, 7, 24, 40, 1 << 20):
            assert joined(same, max_bytes) == array.tobytes()
    back = tensors.from_bytes(memoryview(array.tobytes()), dtype, (3, 4, 5), name="t")
    assert back.dtype == dtype.numpy
    assert back.tobytes() == array.tobytes()


ORDERS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.transpose(2, 0, 1),
    "every second": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, :, ::-1],
    "column": lambda a: a[:, :, 2],
    "broadcast": lambda a: np.broadcast_to(a[0], (7, *a.shape[1:])),
    "empty": lambda a: a[:, 2:2],
    "0-d": lambda a: a[1, 1, 1, ...],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["U8", "BF16", "F32"])
def test_any_strides_give_row_major_bytes(order: str, name: str) -> None:
    array = ORDERS[order](sample(dtypes.dtype(name), (4, 6, 5)))
    for max_bytes in (1, 9, 50, 1 << 20):
        assert joined(array, max_bytes) == array.tobytes("C")


def test_torch_strides_give_row_major_bytes() -> None:
    base = torch.arange(120, dtype=torch.bfloat16).reshape(4, 6, 5)
    for tensor in (base.permute(2, 0, 1), base[:, ::2], base[:, :, 2], base[:0], base[1, 1, 1]):
        want = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        assert joined(tensor, 14) == want


def test_host_memory_is_viewed_not_copied() -> None:
    for array in (np.zeros((4, 4), np.float32), np.zeros((4, 4), ml_dtypes.bfloat16)):
        chunks = list(tensors.bit_chunks(array, name="t", max_bytes=array.itemsize * 4))
        assert all(np.shares_memory(chunk, array) for chunk in chunks)
        assert np.shares_memory(tensors.bit_view(array.T, name="t"), array)
    tensor = torch.zeros(4, 4, dtype=torch.bfloat16, requires_grad=True)
    view = tensors.byte_view(tensor, name="t", writable=True)
    view[0:2] = b"\x80\x3f"
    assert tensor[0, 0].item() == 1.0


def test_copies_are_bounded() -> None:
    array = np.zeros((1000, 1000), np.uint8).T
    sizes = [chunk.nbytes for chunk in tensors.bit_chunks(array, name="t", max_bytes=10_000)]
    assert max(sizes) <= 10_000
    assert len(sizes) == 100


def test_byte_view_refuses_what_it_cannot_fill() -> None:
    locked = np.zeros(4)
    locked.flags.writeable = False
    with pytest.raises(InvalidArgument, match="'w' is read-only"):
        tensors.byte_view(locked, name="w", writable=True)
    assert tensors.byte_view(locked, name="w").readonly
    with pytest.raises(InvalidArgument, match="'w' is not contiguous"):
        tensors.byte_view(np.zeros((4, 4))[:, ::2], name="w")
    with pytest.raises(InvalidArgument, match="'w': 3 bytes"):
        tensors.from_bytes(memoryview(b"abc"), dtypes.dtype("F32"), (1,), name="w")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "big-endian": (lambda: np.zeros(2, ">f4"), "big-endian"),
    "object": (lambda: np.zeros(2, object), "numpy dtype object"),
    "str": (lambda: np.array(["a"]), "numpy dtype <U1"),
    "complex128": (lambda: np.zeros(2, np.complex128), "complex128"),
    "int4": (lambda: np.zeros(2, ml_dtypes.int4), "int4"),
    "structured": (lambda: np.zeros(2, [("a", "u1")]), "numpy dtype"),
    "masked": (lambda: np.ma.masked_array([1.0], mask=[True]), "masked"),
    "list": (lambda: [1.0], "builtins.list"),
    "none": (lambda: None, "NoneType"),
    "meta": (lambda: torch.zeros(2, device="meta"), "meta device"),
    "sparse": (lambda: torch.zeros(2, 2).to_sparse(), "sparse_coo"),
    "conjugate": (lambda: torch.zeros(2, dtype=torch.complex64).conj(), "resolve_conj"),
    "negative": (lambda: torch.zeros(2, dtype=torch.complex64).conj().imag, "resolve_neg"),
    "sub-byte": (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4"),
    "complex torch": (lambda: torch.zeros(2, dtype=torch.complex128), "complex128"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_tensors_name(case: str) -> None:
    make, why = REFUSED[case]
    array = make()
    for use in (tensors.describe, tensors.bit_view, tensors.bit_chunks, tensors.byte_view):
        with pytest.raises(InvalidArgument, match=why) as caught:
            use(array, name="layer.0.weight")
        assert "'layer.0.weight'" in str(caught.value)


def _no_operation(*_: object) -> None:
    raise AssertionError("no operator may run on it")


def wrapper(name: str, **attributes: object) -> torch.Tensor:
    """A tensor whose values are elsewhere, as DTensor, FakeTensor and torchao's quantised ones are."""
    body = {"__torch_dispatch__": classmethod(_no_operation), **attributes}
    made: object = torch.Tensor._make_wrapper_subclass(type(name, (torch.Tensor,), body), (2,))
    assert isinstance(made, torch.Tensor)
    return made


def test_wrapper_tensors_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'w' is a Wrapper"):
        tensors.describe(wrapper("Wrapper"), name="w")
    with pytest.raises(InvalidArgument, match=r"'w' is a DTensor: hand in .*to_local"):
        tensors.describe(wrapper("D", placements=(), to_local=_no_operation), name="w")


def test_aliases() -> None:
    base = np.zeros((4, 4), np.float32)
    key = tensors.alias_key(base, name="t")
    assert tensors.alias_key(base[:], name="t") == key
    for other in (base.T, base[1:], base[:, :2], base.view(np.int32), base.copy()):
        assert tensors.alias_key(other, name="t") != key
    linear, tied = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    tied.weight = linear.weight
    assert tensors.alias_key(tied.weight, name="a") == tensors.alias_key(linear.weight, name="b")
    assert tensors.alias_key(base[:0], name="t") != tensors.alias_key(base[:0], name="t")


def test_names_that_are_no_dtypes() -> None:
    with pytest.raises(InvalidArgument, match="below one byte"):
        dtypes.dtype("F4")
    with pytest.raises(InvalidArgument, match="not a dtype name"):
        dtypes.dtype("bfloat16")


def test_numpy_alone_imports_no_torch_and_no_numba() -> None:
    code = (
        "import sys, numpy as np\n"
        "from wstore_codecs import block, digest, tensors\n"
        "digest.digest_block(np.zeros(9)); list(tensors.bit_chunks(np.zeros(9), name='t'))\n"
        "assert not {'torch', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
