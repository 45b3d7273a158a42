"""`raw`: the bits as they are. What a block is stored with when nothing makes it smaller.

**Body.** The block's elements in row-major order, little-endian, without gaps: size x width bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs.base import Encoded

if TYPE_CHECKING:
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits


class Raw:
    """The bits as they are. Takes no parameter."""

    spec = "raw"
    needs_base = False

    def __init__(self, parameter: str = "") -> None:
        if parameter:
            raise InvalidArgument(f"codec 'raw' has no parameter {parameter!r}")

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """A copy of the bits."""
        return Encoded(self.spec, (new.copy().view("u1").data,))

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Copies the body. Raises IntegrityError when it has another length than the block."""
        if body.nbytes != out.nbytes:
            raise IntegrityError(f"a raw body of {body.nbytes} bytes instead of {out.nbytes}")
        # np.copyto lets other threads run; an assignment to a memoryview does not.
        np.copyto(out.view("u1"), np.frombuffer(body, "u1"))
