"""What a codec is, and how one is found by name.

A codec turns the bits of one block into a body and back. It knows nothing of tensors, places, hashes or
storage: `frame` adds those, checks the body's hash before a codec sees it, and proves the result after.

A codec is named by a spec, `id` or `id:parameter`, such as "xor" or "ulp:pcodec". Its id is looked up in
the entry-point group "wstore.codecs"; what is registered there is called with the parameter ("" without
one) and returns the codec. Packages of others register theirs in the same way:

    [project.entry-points."wstore.codecs"]
    mine = "my_package.codec:Mine"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from wstore.errors import InvalidArgument, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from wstore_codecs.changes import Changes, Rule
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

GROUP = "wstore.codecs"
"""The entry-point group of codecs."""

MAX_SPEC = 64
"""The most characters of a codec's spec."""

_SPEC = re.compile(r"([a-z0-9][a-z0-9_.-]*)(?::([A-Za-z0-9_.:+-]+))?")


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a codec made of a block.

    Attributes:
        codec: the spec that decodes it, as the frame's header names it: that of the codec, or the one
            that a choosing codec (`auto`) took.
        pieces: the body in order; flat, contiguous memory that nobody changes any more.
        changes: what differs from the base, when the codec looked for that.
    """

    codec: str
    pieces: tuple[Buffer, ...]
    changes: Changes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""
        return sum(memoryview(piece).nbytes for piece in self.pieces)


class Codec(Protocol):
    """Bits of a block to a body and back.

    Bits are 1-d, contiguous, aligned unsigned integers of the element's width, 1 to
    `block.MAX_BLOCK_ELEMENTS` of them. A codec has no state that a call changes, so any number of threads use
    one at once, and it lets them run (releases the GIL) while it works.

    Attributes:
        spec: its full name, such as "ulp:pcodec".
        needs_base: whether it encodes the difference to a base.
    """

    @property
    def spec(self) -> str: ...

    @property
    def needs_base(self) -> bool: ...

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """The body for `new`. Deterministic: equal input gives equal bytes, on every machine.

        `base` has the size of `new`; it is None when there is none, which a codec that `needs_base`
        never meets.
        """

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Fills `out` with the bits that the body stands for.

        The body may be anything: what it declares is checked before memory is taken or written by it.
        `out` may be the memory of `base` itself; any other overlap is excluded.

        Raises:
            IntegrityError: the body cannot be one that `encode` made for a block of this size. `out`
                may then hold anything.
        """


@runtime_checkable
class SparseCodec(Codec, Protocol):
    """A codec whose body lists what changed, so that it is applied, undone, folded and digested at the
    cost of the changes.

    Attributes:
        needs_whole_base: whether where the changes are depends on the old block. Then a holder of
            part of a block cannot use the body, and it cannot be folded.
    """

    @property
    def needs_whole_base(self) -> bool: ...

    def rule(self, dtype: DType) -> Rule:
        """What the values of its changes mean."""

    def count(self, body: memoryview, size: int) -> int:
        """How many changes the body lists, at most `size`, from its first bytes alone. Raises
        IntegrityError where those are inconsistent."""

    def changes(self, body: memoryview, base: Bits | None, size: int, dtype: DType) -> Changes:
        """What the body lists, for a block of `size` elements. `base`: the whole old block, where
        `needs_whole_base`. Raises IntegrityError as `decode`."""

    def encode_changes(self, changes: Changes, dtype: DType) -> Encoded:
        """The body for changes that were found elsewhere: the same as `encode` makes of the arrays.
        Raises UnsupportedOperation where `needs_whole_base`."""


@lru_cache(64)
def codec(spec: str) -> Codec:
    """The codec of that spec.

    Raises:
        InvalidArgument: no codec has that id (the error lists the known ones), two packages register
            it, or the codec has no such parameter.
    """
    match = _SPEC.fullmatch(spec) if len(spec) <= MAX_SPEC else None
    if match is None:
        raise InvalidArgument(
            f"{spec[:MAX_SPEC]!r} is not a codec's name: 'id' or 'id:parameter', such as 'ulp:pcodec'"
        )
    factories = _factories()
    try:
        factory = factories[match[1]]
    except KeyError:
        known = ", ".join(sorted(factories))
        raise InvalidArgument(f"no codec {match[1]!r} is installed; known: {known}") from None
    return factory(match[2] or "")


@lru_cache(64)
def listing_codec(spec: str) -> SparseCodec | None:
    """As `codec`, but None where that one does not list changes. For each frame: `isinstance` with a
    protocol takes longer than decoding a small one."""
    found = codec(spec)
    return found if isinstance(found, SparseCodec) else None


def sparse_codec(spec: str) -> SparseCodec:
    """As `codec`, for one that lists changes. Raises UnsupportedOperation for any other."""
    found = listing_codec(spec)
    if found is None:
        raise UnsupportedOperation(f"codec {spec!r} does not list changes")
    return found


@cache
def _factories() -> dict[str, Callable[[str], Codec]]:
    points = entry_points(group=GROUP)
    for name in points.names:
        values = {point.value for point in points.select(name=name)}
        if len(values) > 1:
            raise InvalidArgument(
                f"two packages register the codec {name!r} ({', '.join(sorted(values))}): remove one"
            )
    return {point.name: _Lazy(point.load) for point in points}


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A factory that imports its codec's module when it is first called."""

    load: Callable[[], Callable[[str], Codec]]

    def __call__(self, parameter: str) -> Codec:
        return self.load()(parameter)
