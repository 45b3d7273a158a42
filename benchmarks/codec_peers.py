"""The ways to ship a step: ours, and the others as their users run them, in numpy and the same libraries.

All take and fill the bits of bf16. Only wstore and arc_v3 prove what they wrote; only wstore proves what
it writes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import ml_dtypes
import numpy as np
import zstandard

from wstore_codecs.apply import apply
from wstore_codecs.block import MAX_BLOCK_ELEMENTS
from wstore_codecs.frame import Frame, encode

if TYPE_CHECKING:
    from wstore_codecs.tensors import Bits

BLOCK = MAX_BLOCK_ELEMENTS
CHUNK = 1 << 20
LEVEL = 1


class Peer(Protocol):
    """One way to ship a step.

    Attributes:
        name: what tables call it.
    """

    name: str

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        """The bodies, in order."""

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        """Turns the base in `state` into the new weights."""


class WStore:
    """Frames of 4 Mi elements of one tensor; what is received is parsed, so all hashes are checked.

    Args:
        name: of the tensor, and in tables.
        codec: the spec to encode with.
    """

    def __init__(self, name: str, codec: str) -> None:
        self.name = name
        self._codec = codec

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        return [
            encode(
                new[at : at + BLOCK].view(ml_dtypes.bfloat16),
                base[at : at + BLOCK].view(ml_dtypes.bfloat16),
                codec=self._codec,
                name=self.name,
                shape=new.shape,
                origin=(at,),
            ).tobytes()
            for at in range(0, new.size, BLOCK)
        ]

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        frames = [Frame.parse(body) for body in bodies]
        apply(frames, {self.name: state.view(ml_dtypes.bfloat16)})


class DenseXor:
    """XOR of all bits through zstd-1, in chunks of 1 Mi elements: what most frameworks ship."""

    name = "dense XOR + zstd-1"

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        chunks = (slice(at, at + CHUNK) for at in range(0, new.size, CHUNK))
        return [self._compressor.compress((new[chunk] ^ base[chunk]).data) for chunk in chunks]

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        for number, body in enumerate(bodies):
            chunk = state[number * CHUNK : (number + 1) * CHUNK]
            found = np.frombuffer(self._decompressor.decompress(body), state.dtype)
            np.bitwise_xor(chunk, found, out=chunk)


class GapXor:
    """Gaps between changes (u16) and XOR values, each through zstd-1, in chunks of 1 Mi elements.

    A gap that does not fit is bridged by entries that change nothing.
    """

    name = "u16 gap + XOR + zstd-1"
    _span = 1 << 16

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        bodies: list[bytes] = []
        for at in range(0, new.size, CHUNK):
            difference = new[at : at + CHUNK] ^ base[at : at + CHUNK]
            places = np.flatnonzero(difference)
            values = difference[places]
            gaps = np.diff(places, prepend=-1) - 1
            bridges = gaps // self._span
            if bridges.any():
                before = np.repeat(np.arange(gaps.size), bridges)
                values = np.insert(values, before, 0)
                gaps = np.insert(gaps % self._span, before, self._span - 1)
            streams = (gaps.astype(np.uint16), values)
            bodies += [self._compressor.compress(stream.data) for stream in streams]
        return bodies

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        streams = [np.frombuffer(self._decompressor.decompress(body), np.uint16) for body in bodies]
        for number, (gaps, values) in enumerate(zip(streams[::2], streams[1::2], strict=True)):
            chunk = state[number * CHUNK : (number + 1) * CHUNK]
            chunk[np.cumsum(gaps.astype(np.int64) + 1) - 1] ^= values


class IndexValue:
    """The place (i32) and the new value of each change, as they are."""

    name = "i32 index + value"

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        places = np.flatnonzero(new != base)
        return [places.astype(np.int32).tobytes(), new[places].tobytes()]

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        places, values = bodies
        state[np.frombuffer(places, np.int32)] = np.frombuffer(values, state.dtype)


class ArcV3:
    """`fireworks-delta-compression` 0.1.0, format arc_v3. It starts threads of its own."""

    name = "fireworks arc_v3"

    def __init__(self) -> None:
        try:
            from fireworks_delta_compression import delta_compress, delta_decompress
        except ImportError as error:
            raise SystemExit(f"{error}: `make bench` installs it") from error
        import torch

        self._compress, self._decompress = delta_compress, delta_decompress
        self._torch = torch

    def encode(self, new: Bits, base: Bits) -> list[bytes]:
        source, target = (
            self._torch.tensor(bits).view(self._torch.bfloat16) for bits in (base, new)
        )
        body, checksum = self._compress(src=source, dst=target, compression_format="arc_v3")
        return [body.numpy().tobytes(), checksum.encode()]

    def apply(self, bodies: list[bytes], state: Bits) -> None:
        body, checksum = bodies
        found = self._decompress(
            src=self._torch.from_numpy(state).view(self._torch.bfloat16),
            compressed_diff=self._torch.frombuffer(bytearray(body), dtype=self._torch.uint8),
            checksum=checksum.decode(),
            compression_format="arc_v3",
        )
        state[:] = found.view(self._torch.uint16).numpy()


class PlainZstd:
    """Whole weights through zstd-1, in chunks of 1 Mi elements. It needs no base."""

    name = "plain zstd-1"

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, new: Bits) -> list[bytes]:
        return [
            self._compressor.compress(new[at : at + CHUNK].data) for at in range(0, new.size, CHUNK)
        ]

    def decode(self, bodies: list[bytes], out: Bits) -> None:
        for number, body in enumerate(bodies):
            found = np.frombuffer(self._decompressor.decompress(body), out.dtype)
            out[number * CHUNK : (number + 1) * CHUNK] = found
