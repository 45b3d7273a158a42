"""Several versions of one block: proven to fit by their headers, then replayed or folded.

The headers alone tell whether each frame's result is the next one's base. A frame without a base (`raw`,
`zstd`, `planes`) starts the block anew, so what comes before it is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import IntegrityError, InvalidArgument, UnsupportedOperation
from wstore_codecs import base as registry
from wstore_codecs.changes import Changes
from wstore_codecs.frame import (
    Frame,
    build,
    check_arrays,
    check_base,
    check_result,
    decode_bits,
    pack_bits,
    unpack_bits,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore_codecs.base import SparseCodec
    from wstore_codecs.cutting import Unit
    from wstore_codecs.proof import Proof
    from wstore_codecs.tensors import Array, Bits, HostArray


@dataclass(frozen=True, slots=True)
class Chain:
    """Frames of one unit, each made from the result of the one before; at least one.

    Attributes:
        frames: the first may stand alone (have no base), the others are deltas that change something,
            unless there is only one.
    """

    frames: tuple[Frame, ...]

    @property
    def unit(self) -> Unit:
        """What all frames hold."""
        return self.frames[0].header.unit

    @property
    def base(self) -> Proof | None:
        """Proof of the block that the chain starts from; None when it starts anew."""
        return self.frames[0].header.base

    @property
    def result(self) -> Proof:
        """Proof of the block that it ends with."""
        return self.frames[-1].header.result


def link(frames: Sequence[Frame]) -> Chain:
    """The chain that these frames of successive versions are, oldest first.

    Raises:
        IntegrityError: a frame holds another block, or was not made from the result of the one before
            (a version is missing, or they are out of order).
        InvalidArgument: no frame.
    """
    if not frames:
        raise InvalidArgument("a chain needs a frame")
    for before, after in pairwise(frames):
        if before.header.unit != after.header.unit:
            raise IntegrityError(
                f"{before.header.label()} is followed by a frame of {after.header.label()}"
            )
        if after.header.base is not None and not before.header.result.agrees(after.header.base):
            raise IntegrityError(
                f"{after.header.label()}: a frame was not made from the result of the one before: a "
                "version is missing, or they are out of order"
            )
    anew = [at for at, frame in enumerate(frames) if frame.header.base is None]
    needed = frames[anew[-1] :] if anew else frames
    changing = [frame for frame in needed if not frame.unchanged]
    return Chain(tuple(changing or needed[:1]))


def replay(frames: Sequence[Frame], base: Array | None = None) -> HostArray:
    """The block after all these frames of one block, oldest first: what applying one after the other
    gives. A fresh array; one block of memory beside one frame's changes.

    Raises:
        IntegrityError: as `link`; `base` is not what the chain starts from; damage.
        InvalidArgument: no base though the first frame needs one, an array that does not fit, a group.
    """
    chain = link(frames)
    if chain.unit.grouped:
        raise InvalidArgument(f"{chain.frames[0].header.label()}: use replay_unit")
    (array,) = replay_unit(chain, None if base is None else (base,))
    return array


def replay_unit(chain: Chain, base: Sequence[Array] | None = None) -> list[HostArray]:
    """The arrays of the unit's members after all frames of a chain. Raises as `replay`."""
    first = chain.frames[0].header
    old: Bits | None = None
    if first.base is not None:
        if base is None:
            raise InvalidArgument(f"{first.label()}: a {first.codec} frame needs its base")
        check_arrays(chain.unit, base)
        old = pack_bits(chain.unit, base)
        check_base(first, old)
    bits = decode_bits(chain.frames[0], old)
    for frame in chain.frames[1:]:
        advance(frame, bits)
    if len(chain.frames) > 1:
        check_result(chain.frames[-1].header, bits)
    return unpack_bits(chain.unit, bits)


def advance(frame: Frame, bits: Bits) -> None:
    """A delta frame onto bits that are its base, in place. Proves nothing."""
    header = frame.header
    if header.size:
        registry.codec(header.codec).decode(frame.body(), bits, bits, header.dtype)


def fold(frames: Sequence[Frame]) -> Frame:
    """One frame in place of several: what `xor` frames, or `ulp` frames, of one block do together.

    Costs time and memory by the changes, not by the block.

    Raises:
        IntegrityError: as `link`; damage.
        UnsupportedOperation: not all frames are of one family that folds, or together they change so
            much that a frame with a base would be larger than the block. Replay them instead.
    """
    chain = link(frames)
    if len(chain.frames) == 1:
        return chain.frames[0]
    header = chain.frames[-1].header
    if chain.base is None:
        raise UnsupportedOperation(f"{header.label()}: a frame without a base does not fold")
    codecs: list[SparseCodec] = []
    lists: list[Changes] = []
    for frame in chain.frames:
        codec = registry.listing_codec(frame.header.codec)
        if codec is None or codec.needs_whole_base:
            raise UnsupportedOperation(
                f"{header.label()}: a {frame.header.codec} frame does not fold"
            )
        lists.append(codec.changes(frame.body(), None, header.size, header.dtype))
        codecs.append(codec)
    encoded = codecs[-1].encode_changes(merge(lists), header.dtype)
    if encoded.nbytes > header.nbytes:
        raise UnsupportedOperation(f"{header.label()}: the changes together outgrow the block")
    return build(header.unit, encoded, chain.base, header.result)


def merge(lists: Sequence[Changes]) -> Changes:
    """The changes that several of one block, one after the other, amount to.

    Raises:
        UnsupportedOperation: they follow different rules.
    """
    rule, size = lists[0].rule, lists[0].size
    if any(one.rule is not rule or one.size != size for one in lists):
        raise UnsupportedOperation("xor and ulp changes do not fold with each other")
    positions = np.concatenate([one.positions() for one in lists])
    values = np.concatenate([one.values for one in lists])
    if not positions.size:
        return lists[0]
    order = np.argsort(positions, kind="stable")
    positions, values = positions[order], values[order]
    starts = np.flatnonzero(np.diff(positions.astype(np.int64), prepend=-1))
    joined = rule.join.reduceat(values, starts, dtype=values.dtype)
    kept = joined != 0
    return Changes.at(rule, size, positions[starts][kept], joined[kept])
