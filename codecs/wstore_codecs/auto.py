"""`auto`: picks the codec of each block by what changed in it. It only encodes; frames name what it took.

| block | taken |
|---|---|
| no base | `planes` |
| unchanged | `ulp`, an empty list of changes |
| up to half of it changed | `ulp:pcodec`; with `auto:max` the smaller of that and `context` |
| more | the smaller of those and `planes` |

Up to half, `planes` (bf16: about 11 bits an element) cannot win against a position (at most 1 bit an element)
and a step of at most 16 bits for every second element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore_codecs.context import Context, most_changes
from wstore_codecs.planes import Planes
from wstore_codecs.ulp import Ulp

if TYPE_CHECKING:
    from wstore_codecs.base import Encoded
    from wstore_codecs.changes import Changes
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits


class Auto:
    """The codec that suits a block.

    Args:
        parameter: "max" to spend about twice the time for some 10 to 20 % fewer bytes, which only a
            holder of whole blocks can apply; else "".
    """

    needs_base = False

    def __init__(self, parameter: str = "") -> None:
        if parameter not in ("", "max"):
            raise InvalidArgument(
                f"codec 'auto' has no parameter {parameter!r}: 'auto' or 'auto:max'"
            )
        self.spec = f"auto:{parameter}" if parameter else "auto"
        self._planes = Planes()
        self._ulp = Ulp("pcodec")
        self._context = Context() if parameter else None

    @property
    def sparse(self) -> Ulp | None:
        """The codec of a block with few changes, where that is settled without the block."""
        return self._ulp if self._context is None else None

    def is_sparse(self, changes: Changes) -> bool:
        """Whether so few elements change that `planes` need not be tried."""
        return changes.count <= changes.size // 2

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """The body of the codec that was picked, under its name."""
        if base is None:
            return self._planes.encode(new, None, dtype)
        best = self._ulp.encode(new, base, dtype)
        changes = best.changes
        if changes is not None and not changes.count:
            return best
        few = changes is not None and changes.count <= most_changes(new.size, new.itemsize)
        if self._context is not None and changes is not None and few:
            best = min(best, self._context.encode_split(changes, base), key=lambda one: one.nbytes)
        if changes is None or not self.is_sparse(changes):
            best = min(best, self._planes.encode(new, None, dtype), key=lambda one: one.nbytes)
        return best

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Raises InvalidArgument: no frame is named so."""
        raise InvalidArgument("'auto' only encodes: a frame names the codec that it took")
