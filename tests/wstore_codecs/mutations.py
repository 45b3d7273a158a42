"""Run as a program: decodes mutated frames of one codec under a memory limit and a clock.

    python mutations.py CODEC COUNT SEED

Three kinds in turn: any bytes changed; the body changed and all hashes made right again, so that the codec
itself meets it; the header changed and sealed again. A frame that decodes must give the right values. Prints
one line, how many of each kind were refused and how many decoded.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from tests.wstore_codecs.frames import changed, same, weights
from wstore.errors import IntegrityError, InvalidArgument, NewerFormat
from wstore_codecs import dtypes, frame_header
from wstore_codecs.frame import Frame, decode, encode

if TYPE_CHECKING:
    from wstore_codecs.tensors import HostArray

ROOM = 256 << 20
"""Bytes that the address space may grow by while frames are decoded; the blocks have some KiB."""
SECONDS = 20

BODY_SIZE, BODY_HASH = slice(12, 16), slice(16, 32)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, dropped, repeated, or the end cut off."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(out) + 1))
        what = rng.integers(0, 6)
        if what == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif what == 1 and at < len(out):
            out[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif what == 2:
            out[at : at + 8] = rng.bytes(len(out[at : at + 8]))
        elif what == 3:
            del out[at : at + int(rng.integers(1, 9))]
        elif what == 4:
            out[at:at] = out[at : at + int(rng.integers(1, 9))]
        else:
            del out[max(1, at) :]
    return bytes(out)


def resealed(frame: bytes, rng: np.random.Generator) -> bytes:
    """The body mutated, sizes and hashes of the frame true of the new body."""
    size = frame_header.header_size(memoryview(frame))
    body = mutated(frame[size:], rng)
    head = bytearray(frame[: size - 8])
    head[BODY_SIZE] = len(body).to_bytes(4, "little")
    head[BODY_HASH] = xxhash.xxh3_128_digest(body)
    return frame_header.seal(bytes(head)) + body


def relabelled(frame: bytes, rng: np.random.Generator) -> bytes:
    """The header mutated behind its magic, its own size and checksum true again."""
    size = frame_header.header_size(memoryview(frame))
    head = bytearray(frame[:4] + mutated(frame[4 : size - 8], rng))
    if len(head) >= 12:
        head[8:12] = (len(head) + 8).to_bytes(4, "little")
    return frame_header.seal(bytes(head)) + frame[size:]


def samples(codec: str) -> list[tuple[bytes, HostArray, HostArray]]:
    """Frames of all modes that a codec has: few, many and all elements changed, and two widths."""
    out = []
    for name in ("BF16", "F8_E4M3", "F32"):
        dtype = dtypes.dtype(name)
        for density in (0.01, 0.2, 0.45, 0.9):
            base = weights(dtype, (60, 50))
            new = changed(base, dtype, density)
            out.append((encode(new, base, codec=codec, name="layers.0.w").tobytes(), base, new))
    return out


def main(codec: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = samples(codec)
    for frame, base, new in frames:
        assert same(decode(frame, base), new)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    refused, decoded = 0, 0
    for at in range(count):
        frame, base, new = frames[int(rng.integers(len(frames)))]
        bad = (mutated, resealed, relabelled)[at % 3](frame, rng)
        signal.alarm(SECONDS)
        try:
            got = decode(Frame.parse(bad), base)
        except (IntegrityError, NewerFormat, InvalidArgument):
            refused += 1
        else:
            assert got.tobytes() == new.tobytes(), (
                f"{codec}: wrong values, case {at} of seed {seed}"
            )
            decoded += 1
        signal.alarm(0)
    print(f"refused {refused} decoded {decoded}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
