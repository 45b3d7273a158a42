"""`xor`: positions and XOR values, the plainest delta of bits. With its zstd stage it is the reference
format: a reader needs Zstandard and a loop.

**Body.** As `listing` has it; a value is old ^ new. Parameters: "zstd" (the default) and "pcodec".
"""

from __future__ import annotations

from wstore_codecs.listing import Listing


class Xor(Listing):
    """Gaps and XOR values. Changes of this codec fold by XOR, in any order.

    Args:
        parameter: the entropy stage, "zstd" by default.
    """

    def __init__(self, parameter: str = "") -> None:
        super().__init__("xor", parameter or "zstd", steps=False)
