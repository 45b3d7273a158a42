"""The additive digest of a tensor, and the digest of a model.

**Tensor.** Two 64-bit lanes, each a sum mod 2^64 over all elements. For the element at row-major
position i of the *whole* tensor (from 0), with `bits` its stored bit pattern (1, 2, 4 or 8 bytes,
little-endian) as an unsigned integer, and all arithmetic mod 2^64:

    x = (i + 1) * 0x9e3779b97f4a7c15 + bits
    x = x ^ (x >> 32);  x = x * 0xd6e8feb86659fd93;  x = x ^ (x >> 32)
    u = x * 0xd6e8feb86659fd93;  lane 0 gains u ^ (u >> 32)
    w = x * 0xff51afd7ed558ccd;  lane 1 gains w ^ (w >> 32)

Lane 0's mixer is the two-round multiply and xorshift finaliser known as degski64; lane 1 ends in the
first multiplier of murmur3's. Both are bijections of x, so a change of any single element always changes
both lanes. The step is 2^64 over the golden ratio, whose multiples spread as evenly as any: x differs
between any two elements of up to 16 bits each in tensors below 2^46 elements, so a swap or a paired flip
is as visible as any other change (missed with probability near 2^-126).

The text form is 32 hex digits: lane 0, then lane 1, most significant digit first. A tensor without
elements has the digest of all zeros. Neither the shape nor the dtype enters a tensor's digest; both
enter the model's.

It is a sum, so digests of disjoint boxes of a tensor add up to the tensor's, whatever the cuts, and it
follows a change at the cost of the changed elements alone. It proves nothing against somebody who
forges weights on purpose.

**Model.** xxh3-128 (seed 0, its 32 hex digits) of the bytes

    "wstore model digest 1\\n"            22 bytes of ASCII
    u64 number of tensors
    for each tensor, in ascending order of the name's UTF-8 bytes:
        u32 length of the name in bytes, the name in UTF-8
        u32 length of the dtype in bytes, the dtype's safetensors name in ASCII
        u32 number of dimensions, u64 each dimension
        u64 lane 0, u64 lane 1

All integers little-endian.
"""

from __future__ import annotations

import re
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import InvalidArgument
from wstore_codecs import tensors
from wstore_codecs.digest_plan import IndexMap, index_map
from wstore_codecs.digest_reference import (
    MASK,
    lanes_of_each,
    reference_lanes,
    scattered_lanes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wstore_codecs.tensors import Array, Bits

CHUNK_ELEMENTS = 4 << 20
"""What one thread digests at a time."""

COMPILED_FROM = 1 << 18
"""Elements from which loading the compiled kernels pays; smaller calls use them once loaded."""

UPDATE_COMPILED_FROM = 1 << 13
"""Changed elements from which an update is compiled code."""

_HEX = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """The digest of a tensor, or of boxes of one. Digests of disjoint boxes add: `a + b`, `sum` from
    `TensorDigest()`; `whole - part` leaves the rest.

    Attributes:
        lanes: the two sums, each in [0, 2^64).
    """

    lanes: tuple[int, int] = (0, 0)

    def __add__(self, other: TensorDigest) -> TensorDigest:
        (a, b), (c, d) = self.lanes, other.lanes
        return TensorDigest(((a + c) & MASK, (b + d) & MASK))

    def __sub__(self, other: TensorDigest) -> TensorDigest:
        (a, b), (c, d) = self.lanes, other.lanes
        return TensorDigest(((a - c) & MASK, (b - d) & MASK))

    @property
    def hex(self) -> str:
        """The text form: 32 lower-case hex digits."""
        return f"{self.lanes[0]:016x}{self.lanes[1]:016x}"

    @classmethod
    def from_hex(cls, text: str) -> TensorDigest:
        """The digest of a text form. Raises InvalidArgument for anything but 32 lower-case digits."""
        if _HEX.fullmatch(text) is None:
            raise InvalidArgument(f"{text!r} is not a tensor digest of 32 lower-case hex digits")
        return cls((int(text[:16], 16), int(text[16:], 16)))


def combine(parts: Iterable[TensorDigest]) -> TensorDigest:
    """The digest of disjoint boxes together."""
    return sum(parts, start=TensorDigest())


def digest_block(
    array: Array,
    shape: Sequence[int] | None = None,
    origin: Sequence[int] | None = None,
    *,
    name: str = "",
    threads: int = 1,
) -> TensorDigest:
    """The digest of a box of a tensor; without `shape`, `array` is the whole tensor.

    Reads host memory in place when it is contiguous in any axis order, else in copies of bounded size;
    a torch tensor on a device is digested there. Releases the GIL.

    Args:
        array: numpy, ml_dtypes or torch array, any strides.
        shape: the whole tensor's shape.
        origin: where the box starts in it; zeros by default.
        name: the tensor's name, for errors.
        threads: how many digest chunks of the array at once.

    Raises:
        InvalidArgument: an array that weights cannot be stored as, or a box that leaves the shape.
    """
    info = tensors.describe(array, name=name)
    spread = index_map(info.shape, shape, origin, tensor=name)
    device = tensors.on_device(array)
    if device is not None:
        from wstore_codecs.torch_kernels.digest import torch_lanes

        return TensorDigest(torch_lanes(device, spread))
    bits, spread = spread.in_memory_order(tensors.bit_view(array, name=name))
    if bits.flags.c_contiguous and bits.flags.aligned:
        return digest_flat(bits.reshape(-1), spread, threads=threads)
    total, first = TensorDigest(), 0
    for chunk in tensors.bit_chunks(bits, name=name):
        total += digest_flat(chunk, spread, first=first, threads=threads)
        first += chunk.size
    return total


def digest_flat(bits: Bits, spread: IndexMap, *, first: int = 0, threads: int = 1) -> TensorDigest:
    """The digest of consecutive elements of a box, of which the first is the box's `first`-th in
    row-major order: the step of a digest that is taken while a tensor streams past.

    Args:
        bits: 1-d, contiguous, unsigned integers of the element's width.
        spread: `index_map` of the box.
    """
    if bits.size == 0:
        return TensorDigest()
    spread, lanes = spread.merged(), _engine(bits)
    if threads == 1 or bits.size <= CHUNK_ELEMENTS:
        return TensorDigest(lanes(bits, spread, first))
    starts = range(0, bits.size, CHUNK_ELEMENTS)
    with ThreadPoolExecutor(min(threads, len(starts)), "wstore-digest") as pool:
        parts = pool.map(
            lambda at: lanes(bits[at : at + CHUNK_ELEMENTS], spread, first + at), starts
        )
        return combine(map(TensorDigest, parts))


def digest_each(bits: Bits, sizes: Sequence[int]) -> list[TensorDigest]:
    """The digests of many small whole tensors at the cost of few calls.

    Holds some 40 bytes an element meanwhile: hand in a few MiB at a time.

    Args:
        bits: 1-d, the tensors' elements one behind the other.
        sizes: elements of each tensor, at least 1; they add up to `bits.size`.
    """
    filled = [size for size in sizes if size]
    lanes = iter(lanes_of_each(bits, filled) if filled else ())
    return [TensorDigest(next(lanes)) if size else TensorDigest() for size in sizes]


def _engine(bits: Bits) -> Callable[[Bits, IndexMap, int], tuple[int, int]]:
    """Compiled code where it is loaded or worth loading."""
    if bits.size < COMPILED_FROM and "wstore_codecs.kernels.digest" not in sys.modules:
        return reference_lanes
    from wstore_codecs.kernels import digest as kernels

    if bits.size < COMPILED_FROM and not kernels.loaded(bits.dtype.name):
        return reference_lanes
    return kernels.digest_lanes


def digest_update(
    digest: TensorDigest, positions: np.ndarray, old: Array, new: Array, *, name: str = ""
) -> TensorDigest:
    """The digest after the elements at `positions` went from `old` to `new`, in O(changed).

    Args:
        positions: 1-d integers: row-major positions in the whole tensor, each at most once.
        old, new: 1-d, one value a position, in the tensor's dtype or as its bits.

    Raises:
        InvalidArgument: lengths or widths that differ.
    """
    before, after = (np.ascontiguousarray(tensors.bit_view(a, name=name)) for a in (old, new))
    if before.dtype != after.dtype or not (before.shape == after.shape == positions.shape):
        raise InvalidArgument(
            f"tensor {name!r}: {positions.shape} positions, {before.dtype} {before.shape} old and "
            f"{after.dtype} {after.shape} new values do not belong together"
        )
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise InvalidArgument(f"tensor {name!r}: positions must be a 1-d array of integers")
    if positions.size == 0:
        return digest
    where = np.ascontiguousarray(positions, np.uint64)
    if positions.size >= UPDATE_COMPILED_FROM:
        from wstore_codecs.kernels import digest as kernels

        return digest + TensorDigest(kernels.update_lanes(where, before, after))
    change = TensorDigest(scattered_lanes(after, where))
    return digest + change - TensorDigest(scattered_lanes(before, where))


def model_digest(entries: Iterable[tuple[str, str, Sequence[int], TensorDigest]]) -> str:
    """The digest of a model, from (name, dtype name, shape, tensor digest), in any order.

    Raises:
        InvalidArgument: a name that comes twice, or is no UTF-8.
    """
    rows = sorted(
        ((name.encode(), dtype, shape, digest) for name, dtype, shape, digest in entries),
        key=itemgetter(0),
    )
    out = [b"wstore model digest 1\n", struct.pack("<Q", len(rows))]
    previous: bytes | None = None
    for name, dtype, shape, digest in rows:
        if name == previous:
            raise InvalidArgument(f"tensor {name.decode()!r} comes twice in one model")
        previous = name
        kind = dtype.encode("ascii")
        out.append(struct.pack("<I", len(name)) + name + struct.pack("<I", len(kind)) + kind)
        out.append(struct.pack(f"<I{len(shape)}Q2Q", len(shape), *shape, *digest.lanes))
    return xxhash.xxh3_128_hexdigest(b"".join(out))


def warm() -> None:
    """Compile (or load from the cache) the digest kernels of every width, so that the first digest
    costs what the tenth does. Takes seconds the first time on a machine."""
    from wstore_codecs.kernels import digest as kernels

    kernels.warm()
