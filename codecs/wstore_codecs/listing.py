"""What `xor` and `ulp` share: a body that lists the changes of a block, in the form that suits their
number.

**Body**, for a block of `size` elements:

    LEB128  count of changed elements, 0 to size; when it is 0 the body ends here
    u8      mode
    mode 1, gaps:    stream of `count` gaps, stream of `count` values
    mode 2, bitmap:  stream of ceil(size / 8) bytes, stream of `count` values
    mode 3, dense:   stream of `size` values, of which `count` are not 0

A gap is the number of unchanged elements before a changed one; the gaps and `count` together are at most
`size`. Element i is bit i % 8 (from the lowest) of byte i // 8 of the bitmap; unused bits are 0. Values are
never 0 but in mode 3, where 0 is an unchanged element. `entropy` says what a stream is in either stage.

The encoder chooses the mode from the count alone (`Stage.bitmap_from`, `dense_from`). A gap costs as much
as a value, a bitmap next to nothing in time and at p = 0.3 only 0.4 bits a change in size; above two thirds the
entropy of the positions is so much less than a bit an element that the values of all elements cost less. For
elements of one byte all values are listed from 3/10, of two bytes from 1/2: each place takes 4 bytes of memory.

A decoder refuses, before it writes: a body of more bytes than the block, another mode, a count above
`size`, gaps that leave the block, a bitmap of another number of bits, a value of 0, bytes after the end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError
from wstore_codecs import changes as found
from wstore_codecs import entropy, varint
from wstore_codecs.base import Encoded
from wstore_codecs.changes import Changes, Rule, rule_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits
    from wstore_codecs.varint import Cursor

GAPS, BITMAP, DENSE = 1, 2, 3
_STEP = 64 << 10


class Listing:
    """A codec whose body is a list of changes; a part of a block can be made from it.

    Args:
        name: the codec's id.
        parameter: the entropy stage, "pcodec" or "zstd".
        steps: values are steps (`rule_of` the dtype), not XOR values.
    """

    needs_base = True
    needs_whole_base = False

    def __init__(self, name: str, parameter: str, *, steps: bool) -> None:
        self._stage = entropy.stage(parameter, codec=name)
        self.spec = f"{name}:{parameter}"
        self._steps = steps

    def rule(self, dtype: DType) -> Rule:
        """What the values of its changes mean."""
        return rule_of(dtype) if self._steps else Rule.XOR

    def count(self, body: memoryview, size: int) -> int:
        """How many changes a body lists, from its first bytes."""
        return self._count(self._cursor(body), size)

    def encode(self, new: Bits, base: Bits | None, dtype: DType) -> Encoded:
        """Finds what changed and lists it."""
        assert base is not None
        rule = self.rule(dtype)
        most = self._most(new.size, new.itemsize) if new.size > _STEP else new.size
        few = found.find(base, new, rule, most=most)
        if few is not None:
            return self.encode_changes(few, dtype)
        dense = np.empty_like(new)
        for at in _slices(new.size):
            dense[at] = rule.between(base[at], new[at])
        head = varint.pack(int(np.count_nonzero(dense))) + bytes((DENSE,))
        return Encoded(self.spec, (head, *self._stage.values(dense, signed=self._steps)))

    def encode_changes(self, changes: Changes, dtype: DType) -> Encoded:
        """The list of changes that are known already; their rule must be this codec's."""
        if changes.rule is not self.rule(dtype):
            raise ValueError(f"{self.spec} does not list changes of rule {changes.rule.name}")
        pieces: list[Buffer] = [varint.pack(changes.count)]
        if changes.count:
            pieces += self._list(changes)
        return Encoded(self.spec, tuple(pieces), changes)

    def decode(self, body: memoryview, base: Bits | None, out: Bits, dtype: DType) -> None:
        """Copies the base, unless `out` is its memory, and applies the changes."""
        assert base is not None
        dense = self._dense(body, out.size, dtype)
        if dense is None:
            listed = self.changes(body, None, out.size, dtype)
            fill(out, base)
            listed.apply(out)
            return
        rule = self.rule(dtype)
        for at in _slices(out.size):
            out[at] = rule.step(base[at], dense[at])

    def changes(self, body: memoryview, base: Bits | None, size: int, dtype: DType) -> Changes:
        """What the body lists. Raises IntegrityError when it is no list for such a block."""
        dense = self._dense(body, size, dtype)
        if dense is not None:
            places = _not_zero(dense)
            return Changes(self.rule(dtype), size, places.gaps, places.values)
        cursor = self._cursor(body)
        count = self._count(cursor, size)
        listed = Changes.none(self.rule(dtype), size, dtype)
        if count:
            listed = self._read(cursor, count, size, dtype)
            if listed.count != count:
                raise IntegrityError(f"{self.spec}: {listed.count} changes instead of {count}")
        cursor.finish()
        listed.check()
        return listed

    def _dense(self, body: memoryview, size: int, dtype: DType) -> Bits | None:
        """The values of all elements, checked, where the body lists them so; else None."""
        if body.nbytes > size * dtype.itemsize:
            raise IntegrityError(f"{self.spec}: a body of {body.nbytes} bytes for {size} elements")
        cursor = self._cursor(body)
        count = self._count(cursor, size)
        if not count or cursor.byte() != DENSE:
            return None
        values = self._stage.read_values(cursor, size, dtype.bits, signed=self._steps)
        cursor.finish()
        if np.count_nonzero(values) != count:
            raise IntegrityError(f"{self.spec}: not {count} changes of {size} elements")
        return values

    def _most(self, size: int, width: int) -> int:
        """How many changes are listed by their places: fewer than `dense_from`, and so few that their
        list (4 + width bytes each) takes no more than one and a half blocks of memory."""
        share = min(self._stage.dense_from, 1.5 * width / (4 + width))
        return math.ceil(size * share) - 1

    def _cursor(self, body: memoryview) -> Cursor:
        return varint.Cursor(body, what=f"a body of {self.spec}")

    def _count(self, cursor: Cursor, size: int) -> int:
        count = cursor.varint()
        if count > size:
            raise IntegrityError(f"{self.spec}: {count} changes in {size} elements")
        return count

    def _list(self, changes: Changes) -> list[Buffer]:
        stage, signed = self._stage, self._steps
        share = changes.count / changes.size
        if share < stage.bitmap_from:
            gaps = stage.gaps(changes.gaps, changes.size)
            return [bytes((GAPS,)), *gaps, *stage.values(changes.values, signed=signed)]
        if changes.count <= self._most(changes.size, changes.values.itemsize):
            marks = np.zeros(changes.size, np.uint8)
            _marks(changes).apply(marks)
            bitmap = stage.bitmap(np.packbits(marks, bitorder="little"))
            return [bytes((BITMAP,)), *bitmap, *stage.values(changes.values, signed=signed)]
        dense = np.zeros(changes.size, changes.values.dtype)
        Changes(Rule.XOR, changes.size, changes.gaps, changes.values).apply(dense)
        return [bytes((DENSE,)), *stage.values(dense, signed=signed)]

    def _read(self, cursor: Cursor, count: int, size: int, dtype: DType) -> Changes:
        stage, signed, rule = self._stage, self._steps, self.rule(dtype)
        mode = cursor.byte()
        if mode == GAPS:
            gaps = stage.read_gaps(cursor, count, size)
        elif mode == BITMAP:
            packed = stage.read_bitmap(cursor, -(-size // 8))
            marks = np.unpackbits(packed, bitorder="little")
            if marks[size:].any():
                raise IntegrityError(f"{self.spec}: a bitmap of more than {size} elements")
            gaps = _not_zero(marks[:size]).gaps
            if gaps.size != count:
                raise IntegrityError(f"{self.spec}: {gaps.size} changes instead of {count}")
        else:
            raise IntegrityError(f"{self.spec}: a body of unknown mode {mode}")
        return Changes(
            rule, size, gaps, stage.read_values(cursor, count, dtype.bits, signed=signed)
        )


def _slices(size: int) -> list[slice]:
    """A block in steps whose temporaries stay in a core's cache."""
    return [slice(at, at + _STEP) for at in range(0, size, _STEP)]


def fill(out: Bits, base: Bits) -> None:
    """Copies the base, unless `out` is its memory."""
    if out.ctypes.data != base.ctypes.data:
        np.copyto(out, base)


def _marks(changes: Changes) -> Changes:
    """The same places, each with a value of 1 byte, 1."""
    return Changes(Rule.XOR, changes.size, changes.gaps, np.ones(changes.count, np.uint8))


def _not_zero(numbers: Bits) -> Changes:
    """Where numbers are not 0, and those."""
    return found.find(np.zeros_like(numbers), numbers, Rule.XOR)
