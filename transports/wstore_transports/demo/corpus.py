"""Text that every machine has: the source files of the Python standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

TRAIN_BYTES = 2_000_000
HELD_OUT_BYTES = 32_768


def load_corpus() -> tuple[bytes, bytes]:
    """Return (training text, held-out text): two disjoint pieces of the standard library's sources.

    The same on every call of one Python installation, so that two processes of one host agree on the
    held-out loss to the last bit.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TRAIN_BYTES + HELD_OUT_BYTES:
            break
    return bytes(text[HELD_OUT_BYTES:]), bytes(text[:HELD_OUT_BYTES])
