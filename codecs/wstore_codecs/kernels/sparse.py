"""Changes in compiled code: find them, apply and undo them, and what they do to the additive digest.

Detection compares 64 elements at a time as one vector; LLVM makes that the widest compare the machine
has. It runs a few thousand elements ahead of the branches that look at the result, so that a branch that
was mispredicted waits for the first-level cache, never for memory. Where the processor packs vectors by a
mask, places are listed without branches.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.extending import intrinsic

from wstore_codecs.jit import compiled, frozen, read_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.changes import UInt32s
    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import Bits

    Int64s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

XOR, ORDINAL = 0, 1
AHEAD = 4096  # elements compared before the differences are looked at: 2 x 8 KiB of bf16
SPARE = 192  # places that the search may write past the last change of a window

STEP = np.uint64(0x9E3779B97F4A7C15)
M = np.uint64(0xD6E8FEB86659FD93)
N0 = np.uint64(0xD6E8FEB86659FD93)
N1 = np.uint64(0xFF51AFD7ED558CCD)
HALF = np.uint64(32)
ONE = np.uint64(1)
_local = threading.local()
_WIDTHS = ("uint8", "uint16", "uint32", "uint64")


def _pointer(context: Any, builder: Any, kind: Any, value: Any, at: Any) -> Any:
    """To 64 elements of an array from a place, as one vector."""
    array = context.make_array(kind)(context, builder, value)
    lanes = ir.VectorType(ir.IntType(kind.dtype.bitwidth), 64)
    return builder.bitcast(builder.gep(array.data, [at]), lanes.as_pointer())


def _load(context: Any, builder: Any, kind: Any, value: Any, at: Any) -> Any:
    pointer = _pointer(context, builder, kind, value, at)
    return builder.load(pointer, align=kind.dtype.bitwidth // 8)


def _make_differ(_typing: Any, old: Any, new: Any, at: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one, other = (_load(context, builder, signature.args[i], args[i], args[2]) for i in (0, 1))
        return builder.bitcast(builder.icmp_unsigned("!=", one, other), ir.IntType(64))

    return types.uint64(old, new, types.int64), make


def _make_steps(_typing: Any, old: Any, new: Any, at: Any, rule: Any, out: Any, to: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width = signature.args[0].dtype.bitwidth
        lanes = ir.VectorType(ir.IntType(width), 64)
        top, sign, low, none, every = (
            ir.Constant(lanes, [number] * 64)
            for number in (width - 1, 1 << width - 1, (1 << width - 1) - 1, 0, (1 << width) - 1)
        )
        follows = builder.icmp_signed("==", args[3], ir.Constant(ir.IntType(64), ORDINAL))
        follows = builder.select(follows, every, none)
        one, other = (_load(context, builder, signature.args[i], args[i], args[2]) for i in (0, 1))
        places = []
        for bits in (one, other):
            flips = builder.or_(builder.and_(builder.ashr(bits, top), low), sign)
            places.append(builder.xor(bits, builder.and_(flips, follows)))
        exclusive = builder.icmp_signed("==", args[3], ir.Constant(ir.IntType(64), XOR))
        steps = builder.sub(places[1], places[0])
        steps = builder.select(exclusive, builder.xor(one, other), steps)
        pointer = _pointer(context, builder, signature.args[4], args[4], args[5])
        builder.store(steps, pointer, align=width // 8)
        return context.get_dummy_value()

    return types.void(old, new, types.int64, types.int64, out, types.int64), make


def _make_lowest(_typing: Any, mask: Any) -> Any:
    def make(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), make


def _make_population(_typing: Any, mask: Any) -> Any:
    def make(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), make


def _packs() -> bool:
    """Whether the code is for a processor that packs the bytes of a vector by a mask (AVX-512 VBMI2)."""
    chosen = vars(config)
    if chosen["CPU_NAME"] or chosen["CPU_FEATURES"] or not chosen["ENABLE_AVX"]:
        return False  # numba makes code for another than this one
    return bool(binding.get_host_cpu_features().get("avx512vbmi2", False))


def _make_can_pack(_typing: Any) -> Any:
    def make(context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return context.get_constant(types.boolean, _packs())

    return types.boolean(), make


def _make_pack_places(_typing: Any, mask: Any, base: Any, out: Any, to: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _packs():
            return context.get_dummy_value()  # never called, see `_can_pack`
        lanes, some = ir.VectorType(ir.IntType(8), 64), ir.VectorType(ir.IntType(32), 16)
        bits = ir.VectorType(ir.IntType(1), 64)
        compress = builder.module.declare_intrinsic(
            "llvm.x86.avx512.mask.compress.v64i8", fnty=ir.FunctionType(lanes, [lanes, lanes, bits])
        )
        none = ir.Constant(lanes, [0] * 64)
        numbers = ir.Constant(lanes, list(range(64)))
        packed = builder.call(compress, [numbers, none, builder.bitcast(args[0], bits)])
        undefined = ir.Constant(some, ir.Undefined)
        base = builder.trunc(args[1], ir.IntType(32))
        bases = builder.insert_element(undefined, base, ir.Constant(ir.IntType(32), 0))
        bases = builder.shuffle_vector(bases, undefined, ir.Constant(some, [0] * 16))
        array = context.make_array(signature.args[2])(context, builder, args[2])

        def put(first: int) -> None:
            picked = ir.Constant(some, list(range(first, first + 16)))
            part = builder.zext(builder.shuffle_vector(packed, none, picked), some)
            at = builder.add(args[3], ir.Constant(ir.IntType(64), first))
            pointer = builder.bitcast(builder.gep(array.data, [at]), some.as_pointer())
            builder.store(builder.add(part, bases), pointer, align=4)

        put(0)
        sixteen = ir.Constant(ir.IntType(64), 16)
        more = builder.icmp_unsigned(">", builder.ctpop(args[0]), sixteen)
        with builder.if_then(more, likely=False):
            for first in (16, 32, 48):
                put(first)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, out, types.int64), make


_differ = cast("Callable[[Bits, Bits, int], np.uint64]", intrinsic(_make_differ))
"""One bit for each of the 64 elements from a place: whether old and new differ there."""

_steps = cast("Callable[[Bits, Bits, int, int, Bits, int], None]", intrinsic(_make_steps))
"""Writes the values of the 64 elements from a place, by the rule, to a place of another array."""

_lowest = cast("Callable[[np.uint64], np.uint64]", intrinsic(_make_lowest))
"""The number of the lowest set bit; 64 without one."""

_population = cast("Callable[[np.uint64], int]", intrinsic(_make_population))
"""How many bits are set."""


_can_pack = cast("Callable[[], bool]", intrinsic(_make_can_pack))
"""Whether `_pack_places` does anything; known when the kernel is compiled."""

_pack_places = cast(
    "Callable[[np.uint64, np.uint64, UInt32s, int], None]", intrinsic(_make_pack_places)
)
"""Writes base + the number of each set bit to successive places of an array, and then up to 63 of no
meaning."""


def _find(
    old: Bits,
    new: Bits,
    start: int,
    previous: int,
    rule: int,
    gaps: UInt32s,
    values: Bits,
) -> tuple[int, int, int]:
    top = np.uint64(8 * old.itemsize - 1)
    sign = ONE << top
    low = sign - ONE
    masks = np.zeros(AHEAD // 64, np.uint64)
    steps = np.zeros(AHEAD, values.dtype)
    where = np.zeros(AHEAD + AHEAD // 64 + SPARE, np.uint32)
    found = 0
    at = start
    while at < old.size and found + AHEAD <= gaps.size:
        many = min(AHEAD, old.size - at)
        groups = many >> 6
        total = 0
        for group in range(groups):
            mask = _differ(old, new, at + (group << 6))
            masks[group] = mask
            total += _population(mask)
        if many & 63:
            mask = np.uint64(0)
            for j in range(groups << 6, many):
                mask |= np.uint64(old[at + j] != new[at + j]) << np.uint64(j & 63)
            masks[groups] = mask
            total += _population(mask)
        if not total:
            at += many
            continue
        for group in range(groups):
            _steps(old, new, at + (group << 6), rule, steps, group << 6)
        for j in range(groups << 6, many):
            a = np.uint64(old[at + j])
            b = np.uint64(new[at + j])
            if rule == ORDINAL:
                a ^= (a >> top) * low | sign
                b ^= (b >> top) * low | sign
            steps[j] = a ^ b if rule == XOR else b - a
        where[0] = np.uint32(previous - at)
        hits = 0
        # Without `_pack_places` a fixed number of places is always written, about twice the mean: no branch
        # to mispredict but where a group has more.
        always = 2 + 2 * (total >> 6)
        for group in range((many + 63) >> 6):
            mask = masks[group]
            base = np.uint64(group << 6)
            own = _population(mask)
            if _can_pack():
                _pack_places(mask, base, where, 1 + hits)
            else:
                for j in range(always):
                    where[1 + hits + j] = base + _lowest(mask)
                    mask &= mask - ONE
                place = 1 + hits + always
                while mask:
                    where[place] = base + _lowest(mask)
                    place += 1
                    mask &= mask - ONE
            hits += own
        some_gaps = gaps[found : found + hits]
        some_values = values[found : found + hits]
        for i in range(some_gaps.size):
            some_gaps[i] = where[i + 1] - where[i] - np.uint32(1)
        for i in range(some_values.size):
            some_values[i] = steps[where[i + 1]]
        previous = at + int(where[hits])
        found += hits
        at += many
    return at, previous, found


def _count(old: Bits, new: Bits, start: int) -> int:
    found = 0
    at = start
    while at + 64 <= old.size:
        found += _population(_differ(old, new, at))
        at += 64
    while at < old.size:
        found += old[at] != new[at]
        at += 1
    return found


def find(old: Bits, new: Bits, rule: int, most: int) -> tuple[UInt32s, Bits] | None:
    """Gaps and values of what differs (`changes` defines them), in fresh arrays of just that size; None
    when more than `most` elements differ.

    Reads both once where up to an eighth of the elements differs; where more do, the rest is counted
    before it is listed, so that no array is larger than it must be. A thread keeps what an eighth takes:
    fresh memory costs more than the search.
    """
    kernel = compiled(_find, _find_signature(old.dtype.name))
    old, new = frozen(old), frozen(new)
    gaps, values = _scratch(old.size // 8 + AHEAD, old.dtype)
    at, last, found = kernel(old, new, 0, -1, rule, gaps, values)
    if at == old.size:
        return None if found > most else (gaps[:found].copy(), values[:found].copy())
    more = compiled(_count, _count_signature(old.dtype.name))(old, new, at)
    if found + more > most:
        return None
    all_gaps = np.empty(found + more + AHEAD, np.uint32)
    all_values = np.empty(found + more + AHEAD, old.dtype)
    all_gaps[:found], all_values[:found] = gaps[:found], values[:found]
    _, _, more = kernel(old, new, at, last, rule, all_gaps[found:], all_values[found:])
    return all_gaps[: found + more], all_values[: found + more]


def _scratch(room: int, dtype: np.dtype[Any]) -> tuple[UInt32s, Bits]:
    """This thread's arrays for changes, of at least so many places."""
    kept: dict[str, tuple[UInt32s, Bits]] = _local.__dict__
    found = kept.get(dtype.name)
    if found is None or found[0].size < room:
        found = kept[dtype.name] = np.empty(room, np.uint32), np.empty(room, dtype)
    return found


def _reach(gaps: UInt32s, values: Bits) -> tuple[int, int]:
    last = np.uint64(gaps.size)
    zeros = 0
    for i in range(gaps.size):
        last += np.uint64(gaps[i])
    for i in range(values.size):
        zeros += values[i] == 0
    return int(last), zeros


def reach(gaps: UInt32s, values: Bits) -> tuple[int, int]:
    """How many elements a block must have for these changes, and how many values are 0."""
    kernel = compiled(_reach, _reach_signature(values.dtype.name))
    end, zeros = kernel(frozen(gaps), frozen(values))
    return end, zeros


def _patch(block: Bits, gaps: UInt32s, values: Bits, rule: int, back: bool) -> None:
    top = np.uint64(8 * block.itemsize - 1)
    sign = ONE << top
    low = sign - ONE
    p = np.uint64(0)
    for i in range(gaps.size):
        p += np.uint64(gaps[i])
        a = np.uint64(block[p])
        v = np.uint64(values[i])
        if rule == XOR:
            block[p] = a ^ v
        else:
            if rule == ORDINAL:
                a ^= (a >> top) * low | sign
            if back:
                a -= v
            else:
                a += v
            if rule == ORDINAL:
                a ^= ((~a >> top) & ONE) * low | sign
            block[p] = a
        p += ONE


def patch(block: Bits, gaps: UInt32s, values: Bits, rule: int, *, back: bool) -> None:
    """Applies changes in place, or takes them back. They must fit the block: `reach` says whether."""
    kernel = compiled(_patch, _patch_signature(block.dtype.name))
    kernel(block, frozen(gaps), frozen(values), rule, back)


def _patch_lanes(
    old: Bits,
    gaps: UInt32s,
    values: Bits,
    rule: int,
    start: int,
    extents: Int64s,
    strides: Int64s,
) -> tuple[np.uint64, np.uint64]:
    top = np.uint64(8 * old.itemsize - 1)
    sign = ONE << top
    low = sign - ONE
    everything = sign | low
    lane0 = np.uint64(0)
    lane1 = np.uint64(0)
    inner = extents[-1]
    row = 0
    column = -1
    p = np.uint64(0)
    base = start
    for i in range(gaps.size):
        p += np.uint64(gaps[i])
        column += int(gaps[i]) + 1
        if column >= inner:
            row += column // inner
            column %= inner
            base = start
            rest = row
            for axis in range(extents.size - 2, -1, -1):
                above = rest // extents[axis]
                base += (rest - above * extents[axis]) * strides[axis]
                rest = above
        a = np.uint64(old[p])
        v = np.uint64(values[i])
        if rule == XOR:
            b = a ^ v
        elif rule == ORDINAL:
            b = (a ^ ((a >> top) * low | sign)) + v
            b ^= ((~b >> top) & ONE) * low | sign
        else:
            b = a + v
        b &= everything
        place = (np.uint64(base + column * strides[-1]) + ONE) * STEP
        for new in range(2):
            x = place + (b if new else a)
            x ^= x >> HALF
            x *= M
            x ^= x >> HALF
            u = x * N0
            u ^= u >> HALF
            w = x * N1
            w ^= w >> HALF
            if new:
                lane0 += u
                lane1 += w
            else:
                lane0 -= u
                lane1 -= w
        p += ONE
    return lane0, lane1


def patch_lanes(
    old: Bits, gaps: UInt32s, values: Bits, rule: int, spread: IndexMap
) -> tuple[int, int]:
    """What changes add to the two sums of the additive digest (see `digest`), mod 2^64.

    Args:
        old: the block before; the changes must fit it.
        spread: where its elements are in the whole tensor, merged.
    """
    kernel = compiled(_patch_lanes, _lanes_signature(old.dtype.name))
    lane0, lane1 = kernel(
        frozen(old), frozen(gaps), frozen(values), rule, spread.start, *spread.arrays()
    )
    return int(lane0), int(lane1)


def warm() -> None:
    """Compile every kernel, or load it from the cache."""
    for width in _WIDTHS:
        compiled(_find, _find_signature(width))
        compiled(_count, _count_signature(width))
        compiled(_reach, _reach_signature(width))
        compiled(_patch, _patch_signature(width))
        compiled(_patch_lanes, _lanes_signature(width))


def _find_signature(width: str) -> str:
    return (
        f"UniTuple(int64, 3)({read_only(width)}, {read_only(width)}, int64, int64, int64, "
        f"uint32[::1], {width}[::1])"
    )


def _count_signature(width: str) -> str:
    return f"int64({read_only(width)}, {read_only(width)}, int64)"


def _reach_signature(width: str) -> str:
    return f"UniTuple(int64, 2)({read_only('uint32')}, {read_only(width)})"


def _patch_signature(width: str) -> str:
    return f"void({width}[::1], {read_only('uint32')}, {read_only(width)}, int64, boolean)"


def _lanes_signature(width: str) -> str:
    return (
        f"UniTuple(uint64, 2)({read_only(width)}, {read_only('uint32')}, {read_only(width)}, int64, int64, "
        "int64[::1], int64[::1])"
    )
