"""`zstd`: the bytes as they are, through Zstandard; and the bounded calls that other codecs share.

**Body.** One Zstandard frame (RFC 8878) that declares its content size and uses no dictionary; its
content is the block's elements in row-major order, little-endian: size x width bytes.

A decoder refuses, before it takes memory: a body of more bytes than the block, a skippable frame, a
declared content size other than the block's, a window above 32 MiB. Then: anything the library
refuses, bytes after the frame, another length than was declared.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs.base import Encoded

if TYPE_CHECKING:
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

DEFAULT_LEVEL = 1
MAX_LEVEL = 19
"""The highest level: the ones above need windows that decoders refuse by default."""

MAX_WINDOW_BYTES = 32 << 20
"""The largest window of a frame that is decoded: the largest block."""

Settings = zstandard.ZstdCompressionParameters

ENTROPY_ONLY = Settings(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    write_content_size=True,
)
"""Huffman codes for each 128 KiB and next to no search for repetitions: a table of 64 places that hardly
ever matches, after which the search takes ever larger steps. `target_length` must stay 0: anything
above tells this strategy to leave the literals as they are."""

_KEPT_LEVELS = 3
_MAGIC = b"\x28\xb5\x2f\xfd"


class _Contexts(threading.local):
    """The library's contexts of each thread: one serves one call at a time."""

    def __init__(self) -> None:
        self.compressors: dict[Settings, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_contexts = _Contexts()


@cache
def level(number: int) -> Settings:
    """The settings of one of the levels 1 to 19."""
    return Settings(compression_level=number, write_content_size=True)


def compress(data: bytes | bytearray | memoryview, settings: Settings) -> bytes:
    """One frame that holds `data`, which is flat, contiguous and not empty. Deterministic; releases
    the GIL; a thread keeps its contexts of level 3 and below (about 1 MiB each)."""
    if settings.compression_level > _KEPT_LEVELS:  # up to 100 MiB
        return zstandard.ZstdCompressor(compression_params=settings).compress(data)
    found = _contexts.compressors.get(settings)
    if found is None:
        found = zstandard.ZstdCompressor(compression_params=settings)
        _contexts.compressors[settings] = found
    return found.compress(data)


def decompress(frame: memoryview, nbytes: int, *, what: str) -> bytes:
    """The content of one frame that must hold `nbytes` (at least 1) bytes. Releases the GIL.

    Takes at most twice `nbytes` of memory, whatever the frame says.

    Args:
        what: what these bytes are, for the error.

    Raises:
        IntegrityError: no such frame, or damaged.
    """
    try:
        declared = zstandard.get_frame_parameters(frame).content_size
        if frame[:4] != _MAGIC or declared != nbytes:
            raise IntegrityError(f"{what}: not a zstd frame of {nbytes} bytes of content")
        data = _contexts.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"{what}: a damaged zstd frame: {error}") from error
    if len(data) != nbytes:
        raise IntegrityError(f"{what}: a zstd frame of {len(data)} bytes instead of {nbytes}")
    return data


class Zstd:
    """Zstandard over the block's bytes. Any of the specs decodes what another one encoded.

    Args:
        parameter: the level, "1" to "19"; "" is level 1.
    """

    needs_base = False

    def __init__(self, parameter: str = "") -> None:
        number = int(parameter) if parameter.isdecimal() and len(parameter) <= 2 else 0
        if parameter and (str(number) != parameter or not 1 <= number <= MAX_LEVEL):
            raise InvalidArgument(
                f"codec 'zstd' has no level {parameter!r}: 1 to {MAX_LEVEL}, as in 'zstd:3'"
            )
        self.spec = f"zstd:{parameter}" if parameter else "zstd"
        self._settings = level(number or DEFAULT_LEVEL)

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """One frame."""
        return Encoded(self.spec, (compress(new.view("u1").data, self._settings),))

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Fills `out`; takes up to twice the block's memory meanwhile. Raises as `decompress`."""
        if body.nbytes > out.nbytes:
            raise IntegrityError(f"a zstd body of {body.nbytes} bytes for {out.nbytes}")
        data = decompress(body, out.nbytes, what="a zstd body")
        np.copyto(out.view("u1"), np.frombuffer(data, "u1"))
