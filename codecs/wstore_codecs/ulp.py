"""`ulp`: positions and steps in units of the last place. What training changes are small steps of the value,
so they take fewer bits than XOR values do.

**Body.** As `listing` has it; a value is the step of the ordinal for floats, of the bits for all other types
(`changes` defines both). Parameters: "pcodec" (the default) and "zstd".
"""

from __future__ import annotations

from wstore_codecs.listing import Listing


class Ulp(Listing):
    """Gaps and steps.

    Args:
        parameter: the entropy stage, "pcodec" by default.
    """

    def __init__(self, parameter: str = "") -> None:
        super().__init__("ulp", parameter or "pcodec", steps=True)
