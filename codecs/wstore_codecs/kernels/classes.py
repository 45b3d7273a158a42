"""Changes split into classes by the old value, and merged again, in compiled code (`context` states the
format).

Both count how many elements of each class lie before a change. That is done for 64 elements at a time:
one vector compare of their keys with a class's least key gives a mask, and a mask's population the count.
Only where something changes is a single element looked at, after a whole window of them was counted, and
without a branch that depends on it: a mispredicted one costs more than all the counting.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wstore_codecs.jit import compiled, frozen, read_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.changes import UInt32s
    from wstore_codecs.tensors import Bits

    Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
    Keys: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

KEYS = 256
MAX_CLASSES = 16
BUCKETS = 16  # sizes of values that the census tells apart

GROUPS = 64
AHEAD = 64 * GROUPS  # elements of a window: what is counted before the changes in it are looked at
SPARE = 64  # places that the search for set bits may write past the last one
NEVER = 1 << 62
ONE = np.uint64(1)
TWO = np.uint64(2)
THREE = np.uint64(3)
FOUR = np.uint64(4)
SIX = np.uint64(6)
EIGHT = np.uint64(8)
LAST = np.uint64(63)
LOW = np.uint64(0xFF)
ODD = np.uint64(0x5555555555555555)
PAIRS = np.uint64(0x3333333333333333)
NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
BYTES = np.uint64(0x0101010101010101)
TOPS = np.uint64(0x8080808080808080)

_WIDTHS = ("uint8", "uint16", "uint32", "uint64")


def _make_at_least(_typing: Any, numbers: Any, at: Any, least: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        width = signature.args[0].dtype.bitwidth
        lanes = ir.VectorType(ir.IntType(width), 64)
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), lanes.as_pointer())
        vector = builder.load(pointer, align=width // 8)
        unknown = ir.Constant(lanes, ir.Undefined)
        first = builder.insert_element(unknown, args[2], ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        bound = builder.shuffle_vector(first, unknown, zeros)
        return builder.bitcast(builder.icmp_unsigned(">=", vector, bound), ir.IntType(64))

    return types.uint64(numbers, types.int64, numbers.dtype), make


def _make_lowest(_typing: Any, mask: Any) -> Any:
    def make(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), make


def _make_population(_typing: Any, mask: Any) -> Any:
    def make(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), make


_at_least = cast("Callable[[Bits, int, np.unsignedinteger], np.uint64]", intrinsic(_make_at_least))
"""One bit for each of the 64 numbers from a place: whether it is at least so much."""

_lowest = cast("Callable[[np.uint64], np.uint64]", intrinsic(_make_lowest))
"""The number of the lowest set bit."""

_population = cast("Callable[[np.uint64], int]", intrinsic(_make_population))
"""How many bits are set."""


def _census(
    old: Bits, gaps: UInt32s, values: Bits, stride: int, keys: Int64s, sample: Int64s
) -> None:
    width = 8 * old.itemsize
    shift = np.uint64(width - 9 if width > 8 else 0)
    mask = np.uint64(0xFF if width > 8 else 0x7F)
    top = np.uint64(width - 1)
    every = (ONE << top) - ONE | ONE << top
    at = 0
    while at < old.size:
        sample[(np.uint64(old[at]) >> shift) & mask] += 1
        at += stride
    p = np.uint64(0)
    for i in range(gaps.size):
        p += np.uint64(gaps[i])
        key = (np.uint64(old[p]) >> shift) & mask
        v = np.uint64(values[i])
        v = (v << ONE ^ (np.uint64(0) - (v >> top))) & every  # zigzag, without a branch
        keys[key * np.uint64(BUCKETS) + min(v, np.uint64(BUCKETS - 1))] += 1
        p += ONE


def census(old: Bits, gaps: UInt32s, values: Bits, stride: int) -> tuple[Int64s, Int64s]:
    """How many changed elements have each key and each size of value (256 x BUCKETS), and how many of
    every `stride`-th old element have each key."""
    keys, sample = np.zeros(KEYS * BUCKETS, np.int64), np.zeros(KEYS, np.int64)
    kernel = compiled(_census, _census_signature(old.dtype.name))
    kernel(frozen(old), frozen(gaps), frozen(values), stride, keys, sample)
    return keys.reshape(KEYS, BUCKETS), sample


def _split(
    old: Bits,
    gaps: UInt32s,
    values: Bits,
    least: Keys,
    class_of: Keys,
    ends: Int64s,
    out_gaps: UInt32s,
    out_values: Bits,
) -> None:
    width = 8 * old.itemsize
    shift = np.uint64(width - 9 if width > 8 else 0)
    key_mask = np.uint64(0xFF if width > 8 else 0x7F)
    size = old.size
    keys = np.zeros(AHEAD, np.uint8)
    above = np.zeros(GROUPS, np.uint64)
    masks = np.zeros((MAX_CLASSES, GROUPS), np.uint64)  # the members of a class in a group
    before = np.zeros((MAX_CLASSES, GROUPS), np.int64)  # its members before the group
    total = np.zeros(MAX_CLASSES, np.int64)  # its members before the window
    expected = np.zeros(
        MAX_CLASSES, np.int64
    )  # its members up to its last change, that one included
    index = 0
    following = int(gaps[0])
    at = 0
    while at < size and index < gaps.size:
        part = old[at : at + AHEAD]
        for j in range(part.size):
            keys[j] = (np.uint64(part[j]) >> shift) & key_mask
        groups = (part.size + 63) >> 6
        above[:] = 0
        for c in range(least.size - 1, -1, -1):
            count = total[c]
            for g in range(groups):
                mask = _at_least(keys, g << 6, least[c])
                members = mask & ~above[g]
                above[g] = mask
                masks[c, g] = members
                before[c, g] = count
                count += _population(members)
            total[c] = count
        while following < at + part.size:
            place = np.uint64(following - at)
            group = place >> SIX
            mine = class_of[keys[place]]
            inside = (ONE << (place & LAST)) - ONE
            rank = before[mine, group] + _population(masks[mine, group] & inside)
            to = np.uint64(ends[mine])
            out_gaps[to] = rank - expected[mine]
            out_values[to] = values[index]
            ends[mine] += 1
            expected[mine] = rank + 1
            index += 1
            if index == gaps.size:
                break
            following += int(gaps[index]) + 1
        at += AHEAD


def split(
    old: Bits, gaps: UInt32s, values: Bits, least: Keys, counts: Int64s
) -> tuple[UInt32s, Bits]:
    """The changes of each class, class after class: gaps that count elements of the class, and values.

    Args:
        old: the block before; the changes fit it, and there is one at least.
        least: the least key of each class, ascending from 0.
        counts: the changes of each class.
    """
    out_gaps, out_values = np.empty(gaps.size, np.uint32), np.empty(gaps.size, values.dtype)
    starts = np.cumsum(counts) - counts
    kernel = compiled(_split, _split_signature(old.dtype.name))
    kernel(
        frozen(old),
        frozen(gaps),
        frozen(values),
        least,
        _class_of(least),
        starts,
        out_gaps,
        out_values,
    )
    return out_gaps, out_values


def _merge(
    old: Bits,
    gaps: UInt32s,
    values: Bits,
    least: Keys,
    ranked: Keys,
    next_gap: Int64s,
    ends: Int64s,
    out_gaps: UInt32s,
    out_values: Bits,
) -> int:
    width = 8 * old.itemsize
    shift = np.uint64(width - 9 if width > 8 else 0)
    key_mask = np.uint64(0xFF if width > 8 else 0x7F)
    size = old.size
    keys = np.zeros(AHEAD, np.uint8)
    above = np.zeros(GROUPS, np.uint64)
    masks = np.zeros(GROUPS, np.uint64)  # the members of a class in a group
    through = np.zeros(GROUPS, np.uint16)  # its members in the window, up to the group's end
    hits = np.zeros(GROUPS, np.uint64)
    slots = np.zeros(AHEAD, values.dtype)  # the values of the hits
    where = np.zeros(AHEAD + SPARE, np.uint32)
    left = np.zeros(MAX_CLASSES, np.int64)  # members of a class from the window to its next change
    for c in range(least.size):
        left[c] = int(gaps[next_gap[c]]) if next_gap[c] < ends[c] else NEVER
    done = 0
    previous = -1
    at = 0
    while at < size and done < gaps.size:
        part = old[at : at + AHEAD]
        for j in range(part.size):
            keys[j] = (np.uint64(part[j]) >> shift) & key_mask
        groups = (part.size + 63) >> 6
        real = ~np.uint64(0) >> np.uint64(-part.size & 63)  # the last group's elements
        above[:] = 0
        hits[:] = 0
        for c in range(least.size - 1, -1, -1):
            count = 0
            for g in range(groups):
                mask = _at_least(keys, g << 6, least[c])
                members = mask & ~above[g]
                above[g] = mask
                if g == groups - 1:
                    members &= real
                masks[g] = members
                count += _population(members)
                through[g] = count
            for g in range(groups, GROUPS):
                through[g] = count
            rank = left[c]
            index = next_gap[c]
            while rank < count:
                group = np.uint64(64 - _population(_at_least(through, 0, np.uint16(rank + 1))))
                mask = masks[group]
                # The member of that rank in the group: its byte by a compare of all eight sums, its
                # bit by a table.
                inner = np.uint64(rank - int(through[group]) + _population(mask))
                sums = mask - (mask >> ONE & ODD)
                sums = (sums & PAIRS) + (sums >> TWO & PAIRS)
                sums = (sums + (sums >> FOUR) & NIBBLES) * BYTES  # of each byte and those below it
                byte = np.uint64(_population((inner * BYTES | TOPS) - sums & TOPS)) << THREE
                inner -= (sums << EIGHT) >> byte & LOW
                bit = byte + np.uint64(ranked[(mask >> byte & LOW) | inner << EIGHT])
                hits[group] |= ONE << bit
                slots[(group << SIX) + bit] = values[index]
                index += 1
                if index == ends[c]:
                    rank = NEVER
                else:
                    rank += int(gaps[index]) + 1
            next_gap[c] = index
            left[c] = rank - count
        found = 0
        for g in range(groups):
            mask = hits[g]
            base = np.uint64(g << 6)
            many = _population(mask)
            where[found] = base + _lowest(mask)
            mask &= mask - ONE
            where[found + 1] = base + _lowest(mask)
            mask &= mask - ONE
            place = found + 2
            while mask:
                where[place] = base + _lowest(mask)
                place += 1
                mask &= mask - ONE
            found += many
        for i in range(found):
            out_gaps[done + i] = at + int(where[i]) - previous - 1
            previous = at + int(where[i])
            out_values[done + i] = slots[where[i]]
        done += found
        at += AHEAD
    return done


def merge(
    old: Bits, gaps: UInt32s, values: Bits, least: Keys, counts: Int64s
) -> tuple[UInt32s, Bits]:
    """Undoes `split`. What is returned is shorter than what came in when the gaps of some class leave
    the block; nothing is read or written outside the arrays, whatever the gaps are.

    Args:
        counts: the changes of each class; they add up to the number of gaps, at least 1.
    """
    out_gaps, out_values = np.empty(gaps.size, np.uint32), np.empty(gaps.size, values.dtype)
    ends = np.cumsum(counts)
    kernel = compiled(_merge, _merge_signature(old.dtype.name))
    done = kernel(
        frozen(old),
        frozen(gaps),
        frozen(values),
        least,
        _ranked(),
        ends - counts,
        ends,
        out_gaps,
        out_values,
    )
    return out_gaps[:done], out_values[:done]


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    for width in _WIDTHS:
        compiled(_census, _census_signature(width))
        compiled(_split, _split_signature(width))
        compiled(_merge, _merge_signature(width))


def _class_of(least: Keys) -> Keys:
    """The class of each key."""
    return (np.searchsorted(least, np.arange(KEYS), side="right") - 1).astype(np.uint8)


@cache
def _ranked() -> Keys:
    """At byte + 256 r: the number of the byte's set bit that has r set bits below it; else 0."""
    table = np.zeros((8, 256), np.uint8)
    for byte in range(256):
        for rank, bit in enumerate(bit for bit in range(8) if byte >> bit & 1):
            table[rank, byte] = bit
    return table.reshape(-1)


def _census_signature(width: str) -> str:
    return f"void({read_only(width)}, {read_only('uint32')}, {read_only(width)}, int64, int64[::1], int64[::1])"


def _split_signature(width: str) -> str:
    return (
        f"void({read_only(width)}, {read_only('uint32')}, {read_only(width)}, uint8[::1], uint8[::1], "
        f"int64[::1], uint32[::1], {width}[::1])"
    )


def _merge_signature(width: str) -> str:
    return (
        f"int64({read_only(width)}, {read_only('uint32')}, {read_only(width)}, uint8[::1], uint8[::1], "
        f"int64[::1], int64[::1], uint32[::1], {width}[::1])"
    )
