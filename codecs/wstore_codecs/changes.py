"""What differs between two states of a block, as gaps and values: a delta in O(changed) form.

An element's **ordinal** is the place of its bits in the order of the values they stand for: `~b` when the
sign bit is set, else `b | sign`. It is a bijection of all bit patterns, so -0.0 and NaN payloads survive,
and one unit in the last place is a step of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

from wstore.errors import IntegrityError
from wstore_codecs.digest import TensorDigest

if TYPE_CHECKING:
    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Bits

    UInt32s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]
    Positions: TypeAlias = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]

_SIGN_MAGNITUDE = frozenset(
    {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16", "BF16", "F32", "F64"}
)


class Rule(Enum):
    """How a value leads from the old bits to the new ones, mod 2^w for elements of w bits.

    XOR: new = old ^ value. ORDINAL: ordinal(new) = ordinal(old) + value. DIFFERENCE: new = old + value.
    The numbers are what the kernels are told.
    """

    XOR = 0
    ORDINAL = 1
    DIFFERENCE = 2

    @property
    def join(self) -> np.ufunc:
        """Makes one value of two that are applied one after the other."""
        return np.bitwise_xor if self is Rule.XOR else np.add

    def step(self, old: Bits, values: Bits) -> Bits:
        """The new bits, of old ones and values of the same shape. A fresh array."""
        return self._move(old, values)

    def back(self, new: Bits, values: Bits) -> Bits:
        """The old bits, of new ones and values of the same shape. A fresh array."""
        return self._move(new, values if self is Rule.XOR else np.negative(values))

    def between(self, old: Bits, new: Bits) -> Bits:
        """The values that lead from old bits to new ones; 0 where they are equal. A fresh array."""
        if self is Rule.XOR:
            return old ^ new
        return ordinals(new) - ordinals(old) if self is Rule.ORDINAL else new - old

    def _move(self, bits: Bits, values: Bits) -> Bits:
        moved: Bits = ordinals(bits) if self is Rule.ORDINAL else bits.copy()
        self.join(moved, values, out=moved)
        return from_ordinals(moved) if self is Rule.ORDINAL else moved


def ordinals(bits: Bits) -> Bits:
    """The ordinals of bits. A fresh array."""
    low, sign = _halves(bits)
    order: Bits = bits ^ ((bits >> _top(bits)) * low | sign)
    return order


def from_ordinals(order: Bits) -> Bits:
    """The bits of ordinals: the inverse of `ordinals`. A fresh array."""
    low, sign = _halves(order)
    bits: Bits = order ^ ((np.bitwise_not(order) >> _top(order)) * low | sign)
    return bits


def _top(bits: Bits) -> np.unsignedinteger:
    return bits.dtype.type(8 * bits.itemsize - 1)


def _halves(bits: Bits) -> tuple[np.unsignedinteger, np.unsignedinteger]:
    """All bits but the sign, and the sign."""
    sign = 1 << 8 * bits.itemsize - 1
    return bits.dtype.type(sign - 1), bits.dtype.type(sign)


def rule_of(dtype: DType) -> Rule:
    """The rule whose values are small when numbers change little: ORDINAL for floats with a sign bit,
    DIFFERENCE for everything else."""
    return Rule.ORDINAL if dtype.name in _SIGN_MAGNITUDE else Rule.DIFFERENCE


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The elements of a block that change, in ascending order of position.

    Attributes:
        rule: what the values mean.
        size: elements of the block.
        gaps: uint32: unchanged elements before each changed one (since the changed one before it).
        values: unsigned integers of the element's width, never 0; as many as gaps.
    """

    rule: Rule
    size: int
    gaps: UInt32s
    values: Bits

    @classmethod
    def none(cls, rule: Rule, size: int, dtype: DType) -> Changes:
        """No change."""
        return cls(rule, size, np.empty(0, np.uint32), np.empty(0, dtype.bits))

    @classmethod
    def at(cls, rule: Rule, size: int, positions: Positions, values: Bits) -> Changes:
        """The changes at these positions, which ascend and are below `size`."""
        gaps = np.diff(positions, prepend=positions.dtype.type(0)).astype(np.uint32)
        gaps[1:] -= np.uint32(1)
        return cls(rule, size, gaps, values)

    @property
    def count(self) -> int:
        """How many elements change."""
        return self.gaps.size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return self.gaps.nbytes + self.values.nbytes

    def positions(self) -> UInt32s:
        """Where the changed elements are in the block, ascending."""
        where = np.cumsum(self.gaps, dtype=np.uint32)
        where += np.arange(self.count, dtype=np.uint32)
        return where

    def check(self) -> None:
        """Raises IntegrityError unless the changes fit the block and none of them is 0: what must hold
        for changes that were made from stored bytes."""
        from wstore_codecs.kernels import sparse

        reach, zeros = sparse.reach(self.gaps, self.values)
        if reach > self.size or zeros or self.gaps.size != self.values.size:
            raise IntegrityError(
                f"{self.count} changes that reach element {reach} of {self.size}, {zeros} of them void"
            )

    def apply(self, block: Bits) -> None:
        """Turns the old block into the new one, in place, in O(changed).

        Args:
            block: 1-d, contiguous, aligned.

        Raises:
            IntegrityError: the changes do not fit the block, which is then untouched.
        """
        from wstore_codecs.kernels import sparse

        sparse.patch(block, self._fitting(block), self.values, self.rule.value, back=False)

    def undo(self, block: Bits) -> None:
        """Turns the new block into the old one, as `apply` does the other way."""
        from wstore_codecs.kernels import sparse

        sparse.patch(block, self._fitting(block), self.values, self.rule.value, back=True)

    def _fitting(self, block: Bits) -> UInt32s:
        self.check()
        if block.size != self.size or block.dtype != self.values.dtype:
            raise IntegrityError(
                f"changes of {self.size} elements of {self.values.dtype} for a block of "
                f"{block.size} of {block.dtype}"
            )
        return self.gaps


@overload
def find(old: Bits, new: Bits, rule: Rule) -> Changes: ...


@overload
def find(old: Bits, new: Bits, rule: Rule, *, most: int) -> Changes | None: ...


def find(old: Bits, new: Bits, rule: Rule, *, most: int | None = None) -> Changes | None:
    """The changes from `old` to `new` (1-d, contiguous, aligned, of one size and width).

    An unchanged block costs one read of both. With `most`, None when more elements than that differ:
    a list of them would take more memory than it is worth.
    """
    from wstore_codecs.kernels import sparse

    listed = sparse.find(old, new, rule.value, old.size if most is None else most)
    return None if listed is None else Changes(rule, old.size, *listed)


def patch_digest(old: Bits, changes: Changes, spread: IndexMap) -> TensorDigest:
    """What the changes add to the digest of their block, in O(changed).

    Args:
        old: the block before.
        spread: where the block's elements are in the whole tensor.
    """
    from wstore_codecs.kernels import sparse

    gaps = changes._fitting(old)
    return TensorDigest(
        sparse.patch_lanes(old, gaps, changes.values, changes.rule.value, spread.merged())
    )
