"""Changes of a block on any torch device: found, applied, undone, digested (`changes` defines them).

Only the changes cross between the device and the host: 4 + w bytes for each changed element of w bytes.
Tensors are contiguous and taken flat. Every call waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from wstore.errors import IntegrityError, InvalidArgument
from wstore_codecs.changes import Changes, Rule
from wstore_codecs.digest_reference import MASK, STEP
from wstore_codecs.torch_kernels.digest import mixed_sums, signed, zero_extended
from wstore_codecs.torch_tensors import flat_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_codecs.digest_plan import IndexMap
    from wstore_codecs.tensors import HostArray

SLICE = 4 << 20
"""Elements, or changes, a step: temporaries on the device take at most one byte an element and 72 a
change of a step, so 292 MiB where every element of 8 bytes changes, some 10 MiB for bf16 at 2 %."""

_SIGNED = {1: np.dtype("i1"), 2: np.dtype("<i2"), 4: np.dtype("<i4"), 8: np.dtype("<i8")}
_MAX_ELEMENTS = 1 << 32


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors on one device have the same bits."""
    a, b = _pair(one, other)
    return all(
        torch.equal(a[start : start + SLICE], b[start : start + SLICE])
        for start in range(0, a.numel(), SLICE)
    )


def find(old: torch.Tensor, new: torch.Tensor, rule: Rule) -> Changes:
    """What differs between two contiguous tensors on one device; the changes are host arrays.

    Raises:
        InvalidArgument: tensors that differ in size, dtype or device, not contiguous, or above 2^32
            elements.
    """
    a, b = _pair(old, new)
    places: list[HostArray] = [np.empty(0, np.uint32)]
    values: list[HostArray] = [np.empty(0, f"<u{a.element_size()}")]
    for start in range(0, a.numel(), SLICE):
        x, y = a[start : start + SLICE], b[start : start + SLICE]
        at = (x != y).nonzero().view(-1)
        if at.numel():
            values.append(_download(_difference(x[at], y[at], rule)))
            places.append(_download(at.to(torch.int32)) + np.uint32(start))
    gaps = np.concatenate(places)
    gaps[1:] -= gaps[:-1] + np.uint32(1)
    return Changes(rule, a.numel(), gaps, np.concatenate(values))


def patch(target: torch.Tensor, changes: Changes) -> None:
    """Turns the old block into the new one, in place.

    Raises:
        IntegrityError: the changes do not fit the block; nothing was written.
        InvalidArgument: not contiguous.
    """
    words = flat_words(target)
    for at, values in _steps(words, changes):
        words[at] = _changed(words[at], values, changes.rule)


def unpatch(target: torch.Tensor, changes: Changes) -> None:
    """Turns the new block back into the old one, in place. Raises as `patch`."""
    words = flat_words(target)
    for at, values in _steps(words, changes):
        words[at] = _unchanged(words[at], values, changes.rule)


def patch_lanes(old: torch.Tensor, changes: Changes, spread: IndexMap) -> tuple[int, int]:
    """What the digest's two sums gain when `patch` turns this block into the new one.

    Args:
        old: the block before; it is only read.
        spread: `index_map` of the block, whose row-major order is the tensor's.

    Raises:
        IntegrityError: the changes do not fit the block.
        InvalidArgument: not contiguous.
    """
    words, spread = flat_words(old), spread.merged()
    lanes = torch.zeros(2, dtype=torch.int64, device=words.device)
    for at, values in _steps(words, changes):
        before = words[at]
        after = _changed(before, values, changes.rule)
        steps = _scaled_positions(at, spread)
        lanes += mixed_sums(zero_extended(after).add_(steps))
        lanes -= mixed_sums(steps.add_(zero_extended(before)))
    lane0, lane1 = lanes.tolist()
    return lane0 & MASK, lane1 & MASK


def _pair(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = flat_words(one), flat_words(other)
    if (one.dtype, one.device, a.numel()) != (other.dtype, other.device, b.numel()):
        raise InvalidArgument(
            f"{one.dtype} of {a.numel()} on {one.device} and {other.dtype} of {b.numel()} on "
            f"{other.device} do not belong together"
        )
    if a.numel() > _MAX_ELEMENTS:
        raise InvalidArgument(f"a block of {a.numel()} elements, of at most {_MAX_ELEMENTS}")
    return a, b


def _steps(words: torch.Tensor, changes: Changes) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Positions (int64) and values of the changes on the device, SLICE at a time, after all were
    checked on the host."""
    gaps, values = changes.gaps, changes.values
    reach = int(gaps.sum(dtype=np.uint64)) + gaps.size
    width = words.element_size()
    if (
        changes.size != words.numel()
        or reach > changes.size
        or gaps.shape != values.shape
        or gaps.dtype != np.uint32
        or values.dtype != np.dtype(f"<u{width}")
    ):
        raise IntegrityError(
            f"{gaps.size} changes of {changes.size} elements, up to {reach}, of {values.dtype}, do "
            f"not fit a block of {words.numel()} elements of {width} bytes"
        )
    last = -1
    for start in range(0, gaps.size, SLICE):
        part = gaps[start : start + SLICE]
        at = zero_extended(_upload(part, words.device))
        at += 1
        at = at.cumsum(0)
        at += last
        last += int(part.sum(dtype=np.uint64)) + part.size
        yield at, _upload(values[start : start + SLICE], words.device)


def _scaled_positions(at: torch.Tensor, spread: IndexMap) -> torch.Tensor:
    """(position in the whole tensor + 1) x STEP of elements of the block, mod 2^64."""
    scaled = torch.full_like(at, signed((spread.start + 1) * STEP))
    rest = at
    for extent, stride in zip(reversed(spread.extents), reversed(spread.strides), strict=True):
        above = rest.div(extent, rounding_mode="floor")
        scaled += (rest - above * extent) * signed(stride * STEP)
        rest = above
    return scaled


def _difference(old: torch.Tensor, new: torch.Tensor, rule: Rule) -> torch.Tensor:
    if rule is Rule.XOR:
        return old ^ new
    if rule is Rule.ORDINAL:
        return _ordinal(new).sub_(_ordinal(old))
    return new - old


def _changed(old: torch.Tensor, values: torch.Tensor, rule: Rule) -> torch.Tensor:
    if rule is Rule.XOR:
        return old ^ values
    if rule is Rule.ORDINAL:
        return _from_ordinal(_ordinal(old).add_(values))
    return old + values


def _unchanged(new: torch.Tensor, values: torch.Tensor, rule: Rule) -> torch.Tensor:
    if rule is Rule.XOR:
        return new ^ values
    if rule is Rule.ORDINAL:
        return _from_ordinal(_ordinal(new).sub_(values))
    return new - values


def _ordinal(bits: torch.Tensor) -> torch.Tensor:
    """~b where the sign is set, else b | sign: b ^ (all ones or the sign)."""
    shift = 8 * bits.element_size() - 1
    return (bits >> shift).bitwise_or_(-(1 << shift)).bitwise_xor_(bits)


def _from_ordinal(ordinal: torch.Tensor) -> torch.Tensor:
    """The inverse: the sign of an ordinal is set where that of the bits is not."""
    shift = 8 * ordinal.element_size() - 1
    return (ordinal >> shift).bitwise_not_().bitwise_or_(-(1 << shift)).bitwise_xor_(ordinal)


def _download(tensor: torch.Tensor) -> HostArray:
    """A device's signed integers as host integers without sign."""
    return tensor.cpu().numpy().view(f"<u{tensor.element_size()}")


def _upload(array: HostArray, device: torch.device) -> torch.Tensor:
    """Host integers without sign as a device's signed ones. Copied first: torch takes no read-only
    memory."""
    return torch.from_numpy(array.copy().view(_SIGNED[array.itemsize])).to(device)
