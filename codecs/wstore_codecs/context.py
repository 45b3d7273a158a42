"""`context`: the changes of `ulp`, split into classes by the old value, which the receiver holds.

A training step moves a number by about the same amount whatever its size, and floats are finer the smaller
they are: per halving of a weight, its bits change about twice as often and about twice as far. So each
range of exponents has its own density and its own steps, and coding each range by itself comes within a
few per cent of the entropy given the old exponents.

The **key** of an old element of w bits is the 8 bits below its top bit, (b >> (w - 9)) & 255: the exponent
of BF16 and F32. Elements of 8 bits have the 7 below, b & 127. A **class** is a range of keys.

**Body**, for a block of `size` elements:

    LEB128  count of changed elements, 0 to size; when it is 0 the body ends here
    u8      k, the number of classes, 1 to 16
    u8      k - 1 times: the least key of each class but the first, ascending, from 1 to 255
    LEB128  k times: how many elements of the class change; they add up to `count`
    for each class of which an element changes, in order: a pco stream of its gaps, one of its values

A gap is the number of unchanged elements *of the class* before a changed one, since the class's changed
element before it; a value is the step of `ulp`, never 0. `entropy` says what a pco stream is.

A decoder refuses, before it writes: a body of more bytes than the block, counts and classes outside
these bounds, gaps that leave the class, a value of 0, bytes after the end. It needs the whole old block.

The encoder chooses the classes that cost the fewest bits in all: `choose` states how.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError, InvalidArgument, UnsupportedOperation
from wstore_codecs import changes as found
from wstore_codecs import entropy, varint
from wstore_codecs.base import Encoded
from wstore_codecs.changes import Changes, Rule, rule_of
from wstore_codecs.listing import fill
from wstore_codecs.ulp import Ulp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from wstore_codecs.changes import UInt32s
    from wstore_codecs.dtypes import DType
    from wstore_codecs.kernels.classes import Int64s, Keys
    from wstore_codecs.tensors import Bits
    from wstore_codecs.varint import Cursor

MAX_CLASSES = 16

_SAMPLES = 1 << 15
_SMALL = 64 << 10
_MOST_RANGES = 64  # ranges of keys that `choose` joins to classes
_CLASS_BITS = 800  # what two more streams cost beside their numbers: pco's bins, lengths, the call
_FRACTION = 20  # bits of a fixed-point logarithm


class Context:
    """Steps by classes of the old value. Takes no parameter."""

    spec = "context"
    needs_base = True
    needs_whole_base = True

    def __init__(self, parameter: str = "") -> None:
        if parameter:
            raise InvalidArgument(f"codec 'context' has no parameter {parameter!r}")
        self._stage = entropy.stage("pcodec", codec=self.spec)

    def rule(self, dtype: DType) -> Rule:
        """What the values of its changes mean."""
        return rule_of(dtype)

    def count(self, body: memoryview, size: int) -> int:
        """How many changes a body lists, from its first bytes."""
        return _count(varint.Cursor(body, what="a context body"), size)

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """Finds what changed and lists it class by class; where more changed than `most_changes`, the body
        of `ulp:pcodec`, which takes less memory."""
        assert base is not None
        few = found.find(base, new, rule_of(dtype), most=most_changes(new.size, new.itemsize))
        if few is None:
            return Ulp("pcodec").encode(new, base, dtype)
        return self.encode_split(few, base)

    def encode_split(self, changes: Changes, base: Bits) -> Encoded:
        """The body for changes, as `rule_of` the dtype has them, that are known already.

        Raises IntegrityError when they do not fit the base.
        """
        changes.check()
        if (changes.size, changes.values.dtype) != (base.size, base.dtype):
            raise IntegrityError("context: changes of another block than the base")
        pieces: list[Buffer] = [varint.pack(changes.count)]
        if changes.count:
            pieces += self._list(changes, base)
        return Encoded(self.spec, tuple(pieces), changes)

    def encode_changes(self, changes: Changes, dtype: DType) -> Encoded:
        """Raises UnsupportedOperation: the old block is needed."""
        raise UnsupportedOperation("'context' encodes changes only with the whole old block")

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Copies the base, unless `out` is its memory, and applies the changes."""
        assert base is not None
        listed = self.changes(body, base, out.size, dtype)
        fill(out, base)
        listed.apply(out)

    def changes(self, body: memoryview, base: Bits | None, size: int, dtype: DType) -> Changes:
        """What the body lists. Raises IntegrityError when it is no list for such a block."""
        assert base is not None
        if body.nbytes > size * dtype.itemsize:
            raise IntegrityError(f"context: a body of {body.nbytes} bytes for {size} elements")
        cursor = varint.Cursor(body, what="a context body")
        count = _count(cursor, size)
        listed = Changes.none(rule_of(dtype), size, dtype)
        if count:
            listed = self._read(cursor, count, base, dtype)
        cursor.finish()
        listed.check()
        return listed

    def _list(self, changes: Changes, base: Bits) -> list[Buffer]:
        from wstore_codecs.kernels import classes

        stride = base.size // _SAMPLES | 1  # odd: even ones fall on few of a matrix's columns
        census, sample = classes.census(base, changes.gaps, changes.values, stride)
        least = choose(census, sample * stride)
        counts = np.add.reduceat(census.sum(axis=1), least.astype(np.int64))
        gaps, values = classes.split(base, changes.gaps, changes.values, least, counts)
        head = [bytes((least.size,)), least[1:].tobytes(), *map(varint.pack, counts.tolist())]
        pieces: list[Buffer] = [b"".join(head)]
        for one, other in _each(counts, gaps, values):
            pieces += self._stage.gaps(one, changes.size)
            pieces += self._stage.values(other, signed=True)
        return pieces

    def _read(self, cursor: Cursor, count: int, base: Bits, dtype: DType) -> Changes:
        from wstore_codecs.kernels import classes

        least, counts = _read_classes(cursor, count)
        gaps, values = np.empty(count, np.uint32), np.empty(count, dtype.bits)
        for one, other in _each(counts, gaps, values):
            one[:] = self._stage.read_gaps(cursor, one.size, base.size)
            other[:] = self._stage.read_values(cursor, one.size, dtype.bits, signed=True)
        gaps, values = classes.merge(base, gaps, values, least, counts)
        if gaps.size != count:
            raise IntegrityError("context: gaps that do not fit the old block")
        return Changes(rule_of(dtype), base.size, gaps, values)


def most_changes(size: int, width: int) -> int:
    """How many changes are split into classes: so many that two lists of them (4 + width bytes each)
    take no more than two blocks of memory. A third for BF16; all of a small block."""
    return size if size <= _SMALL else size * width // (4 + width)


def _count(cursor: Cursor, size: int) -> int:
    count = cursor.varint()
    if count > size:
        raise IntegrityError(f"context: {count} changes in {size} elements")
    return count


def _read_classes(cursor: Cursor, count: int) -> tuple[Keys, Int64s]:
    """The least key of each class and its number of changes."""
    classes = cursor.byte()
    if not 1 <= classes <= MAX_CLASSES:
        raise IntegrityError(f"context: {classes} classes")
    least = np.frombuffer(b"\0" + cursor.take(classes - 1), np.uint8).copy()
    if (least[1:] <= least[:-1]).any():
        raise IntegrityError("context: classes that do not ascend")
    counts = [cursor.varint() for _ in range(classes)]
    if sum(counts) != count:
        raise IntegrityError(f"context: classes of {sum(counts)} changes instead of {count}")
    return least, np.array(counts, np.int64)


def _each(counts: Int64s, gaps: UInt32s, values: Bits) -> Iterator[tuple[UInt32s, Bits]]:
    """The slices of each class that has changes."""
    start = 0
    for many in counts.tolist():
        if many:
            yield gaps[start : start + many], values[start : start + many]
        start += many


def choose(census: Int64s, olds: Int64s) -> Keys:
    """The least key of each class: the division of the keys into ranges that costs the fewest bits.

    A range of n old elements, of which m change, costs n H(m / n) for the places, m times the entropy of
    the values' buckets, and a constant for its streams when m > 0. The cheapest division into at most
    MAX_CLASSES ranges is found exactly, by dynamic programming over where ranges start. All in integers,
    so that every machine chooses the same.

    Args:
        census: changed elements by key and bucket of their value.
        olds: about how many old elements have each key.
    """
    changed = census.sum(axis=1)
    olds = np.maximum(olds, changed)
    starts = np.flatnonzero(olds)
    starts[0] = 0
    if starts.size > _MOST_RANGES:
        weight = np.cumsum(changed[starts])
        goals = weight[-1] * np.arange(_MOST_RANGES) // _MOST_RANGES
        starts = np.unique(np.append(starts[np.searchsorted(weight, goals, side="right")], 0))
    table = np.column_stack((olds, changed, census))
    sums = np.zeros((starts.size + 1, table.shape[1]), np.int64)
    np.cumsum(np.add.reduceat(table, starts), axis=0, out=sums[1:])
    spans = np.maximum(sums[None, :, :] - sums[:, None, :], 0)  # [i, j]: the ranges i to j - 1
    n, m, buckets = spans[..., 0], spans[..., 1], spans[..., 2:]
    cost = _weighed(n) - _weighed(n - m) - _weighed(buckets).sum(axis=-1)
    cost += (m > 0) * (_CLASS_BITS << _FRACTION)
    cost[np.tril_indices(starts.size + 1)] = 1 << 56  # no range; sixteen of them still fit
    return starts[_cheapest(cost)].astype(np.uint8)


def _cheapest(cost: Int64s) -> list[int]:
    """Where the ranges start on the cheapest way from 0 to the end, in at most MAX_CLASSES of them."""
    ways = [cost[0]]
    came: list[Int64s] = []
    for _ in range(1, MAX_CLASSES):
        through = ways[-1][:, None] + cost
        came.append(through.argmin(axis=0))
        ways.append(through.min(axis=0))
    at = cost.shape[0] - 1
    used = int(np.argmin([way[at] for way in ways]))
    starts: list[int] = []
    for step in reversed(came[:used]):
        at = int(step[at])
        starts.append(at)
    return [0, *reversed(starts)]


def _weighed(x: Int64s) -> Int64s:
    """x log2 x in fixed point, for x from 0 to 2^30, from the twelve leading bits of x."""
    length = np.frexp(x.astype(np.float64))[1].astype(np.int64)
    leading = x << np.maximum(12 - length, 0) >> np.maximum(length - 12, 0)
    weighed: Int64s = x * (_logarithms()[leading] + ((length - 1) << _FRACTION))
    return weighed


@cache
def _logarithms() -> Int64s:
    """log2(i / 2^11) in fixed point for i from 2^11 to 2^12 - 1; below, 0."""
    table = np.zeros(1 << 12, np.int64)
    table[1 << 11 :] = np.rint(np.log2(np.arange(1 << 11, 1 << 12) / 2048.0) * (1 << _FRACTION))
    return table
