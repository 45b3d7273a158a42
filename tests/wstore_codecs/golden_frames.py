"""What the golden files hold: arrays by a formula that needs no library, and the frames made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wstore_codecs import dtypes
from wstore_codecs.cutting import Member, plan
from wstore_codecs.frame import Frame, encode, encode_unit
from wstore_codecs.part import START, PartWriter

if TYPE_CHECKING:
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import HostArray

FOLDER = Path(__file__).parent / "golden"
SHAPE = (40, 50)


def base(dtype: DType) -> HostArray:
    """Bits from a linear congruence: exponents near that of 0.02, any mantissa, for BF16."""
    count = SHAPE[0] * SHAPE[1]
    state, out = 12345, np.empty(count, dtype.bits)
    for at in range(count):
        state = (state * 1103515245 + 12345) % (1 << 31)
        if dtype.name == "BF16":
            out[at] = (
                ((state >> 16) % 2 << 15) | ((118 + (state >> 20) % 6) << 7) | (state >> 8) % 128
            )
        else:
            out[at] = (state >> 8) % (1 << 8 * min(dtype.itemsize, 2))
    return out.view(dtype.numpy).reshape(SHAPE)


def new(dtype: DType, step: int) -> HostArray:
    """Every `step`-th element moved by one to three units."""
    bits = base(dtype).reshape(-1).view(dtype.bits).copy()
    hit = np.arange(1, bits.size, step)
    bits[hit] += (1 + hit % 3).astype(dtype.bits)
    return bits.view(dtype.numpy).reshape(SHAPE)


@dataclass(frozen=True, slots=True)
class Case:
    """One golden frame: elements of a dtype, of which every `step`-th changed."""

    codec: str
    dtype: str
    step: int

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return f"{self.codec.replace(':', '-')}.{self.dtype.lower()}.{self.step}"

    def arrays(self) -> tuple[HostArray, HostArray]:
        """Base and new block."""
        dtype = dtypes.dtype(self.dtype)
        return base(dtype), new(dtype, self.step)

    def encode(self) -> Frame:
        """The frame, as this version makes it."""
        old, now = self.arrays()
        return encode(now, old, codec=self.codec, name="layers.0.w", digests=True)


def cases() -> list[Case]:
    """One for each codec and mode."""
    modes = [
        Case(codec, "BF16", step)
        for codec in ("xor:zstd", "xor:pcodec", "ulp:zstd", "ulp:pcodec", "context")
        for step in (50, 3, 1)
    ]
    dense = [Case(codec, "BF16", 50) for codec in ("raw", "zstd", "planes")]
    widths = [Case("ulp:pcodec", name, 20) for name in ("F8_E4M3", "F32", "F64", "I8")]
    return [*dense, *modes, *widths]


def part() -> bytes:
    """A part of a block and a group."""
    dtype = dtypes.dtype("F32")
    (unit,) = plan([(dtype, Member.whole(name, (3,))) for name in ("a.bias", "b.bias")])
    group = encode_unit(unit, [base(dtype)[0, :3], base(dtype)[1, :3]])
    writer = PartWriter()
    frames = [Case("raw", "BF16", 50).encode(), group]
    for frame in frames:
        writer.add(frame)
    return b"".join([START, *(frame.tobytes() for frame in frames), writer.finish()])
