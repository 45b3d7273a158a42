"""Units that a holder has only in part: tensor-parallel slices, some members of a group.

A slice cannot be held against the hash of its whole block. It is proven by its own digest instead: known
from when the block was whole in hand, or taken when the slice was loaded and trusted, and brought up to date
with each apply. Positions in `xor` and `ulp` frames are absolute in the block, so the ones inside the slice
are picked; `context` frames need the whole old block and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from wstore.errors import IntegrityError, UnalignedSlice
from wstore_codecs import base as registry
from wstore_codecs import tensors
from wstore_codecs.digest import TensorDigest, digest_block, digest_update
from wstore_codecs.frame_header import label_of
from wstore_codecs.targets import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore_codecs.chain import Chain
    from wstore_codecs.changes import Changes
    from wstore_codecs.cutting import Unit
    from wstore_codecs.proof import Proof
    from wstore_codecs.targets import Piece, State
    from wstore_codecs.tensors import Bits

    Int64s: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
    Bools: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class SliceProof:
    """What a holder knows of a unit that it has in part.

    Attributes:
        unit: proof of the whole unit, at the version that is held.
        pieces: digest of each piece that is held, in the order of the unit's members.
    """

    unit: Proof
    pieces: tuple[TensorDigest, ...]


def slice_proof(unit: Unit, state: State, proof: Proof) -> SliceProof:
    """The proof of what a state holds of a unit, taken at its word: call it once the slices were loaded
    and verified.

    Args:
        proof: of the whole unit, at the version that was loaded.

    Raises:
        InvalidArgument: the unit does not fit the state.
    """
    return SliceProof(proof, tuple(piece.digest() for piece in locate(unit, state)))


class SliceTarget:
    """The held part of a unit. Raises UnalignedSlice for a chain that it cannot take."""

    def __init__(self, chain: Chain, pieces: Sequence[Piece], known: SliceProof | None) -> None:
        self.pieces = pieces
        self._unit = chain.unit
        self._base = chain.base
        label = label_of(chain.unit)
        if chain.base is None:
            self._known: list[TensorDigest] | None = None
            self._expected: list[TensorDigest] | None = None
            return
        for frame in chain.frames:
            codec = registry.listing_codec(frame.header.codec)
            if codec is None or codec.needs_whole_base:
                raise UnalignedSlice(
                    f"{label}: a {frame.header.codec} frame needs the whole old block, the state holds a part: "
                    "hold the block, or let the trainer cut where the engines do"
                )
        if known is None or len(known.pieces) != len(pieces):
            raise UnalignedSlice(
                f"{label}: the state holds a part of the block and nothing proves it: pass slices= with "
                "its slice_proof"
            )
        if not known.unit.agrees(chain.base):
            raise IntegrityError(
                f"{label}: the slice is of another version than the one that the frame was made from, "
                "or the frame was applied already. Nothing was written"
            )
        self._known = self._expected = list(known.pieces)

    def agrees(self, proof: Proof) -> bool:
        """Whether each piece has the digest that was known, of the base, or else the one that follows
        from it and from what was applied."""
        expected = self._known if proof == self._base else self._expected
        return expected is None or expected == [piece.digest() for piece in self.pieces]

    def proof(self, unit: Proof) -> SliceProof:
        """The proof for the next apply; `unit` proves the whole unit now."""
        return SliceProof(unit, tuple(self._expected or ()))

    def load(self) -> Bits:
        raise UnalignedSlice(f"{label_of(self._unit)}: only a part of the block is held")

    def store(self, bits: Bits) -> None:
        expected = []
        for piece in self.pieces:
            block, box = piece.member.block, piece.box
            whole = bits[piece.start : piece.start + block.size].reshape(block.extent)
            part = tensors.box_view(whole, block.local(box))
            expected.append(digest_block(part, piece.member.shape, box.origin, name=box.tensor))
            piece.write(part)
        self._expected = expected

    def held(self) -> list[Bits]:
        return [np.ascontiguousarray(piece.bits()).reshape(-1) for piece in self.pieces]

    def restore(self, held: Sequence[Bits]) -> None:
        for piece, bits in zip(self.pieces, held, strict=True):
            piece.write(bits.reshape(piece.box.extent))
        self._expected = None

    def patch(self, changes: Changes) -> None:
        self._rewrite(changes, changes.rule.step)

    def unpatch(self, changes: Changes) -> None:
        self._rewrite(changes, changes.rule.back)

    def _rewrite(self, changes: Changes, move: Callable[[Bits, Bits], Bits]) -> None:
        positions = changes.positions().astype(np.int64)
        expected, writes = [], []
        for piece, digest in zip(self.pieces, self._expected or (), strict=True):
            first, last = np.searchsorted(
                positions, (piece.start, piece.start + piece.member.block.size)
            )
            where, inside = _coordinates(piece, positions[first:last] - piece.start)
            bits = np.atleast_1d(piece.bits())  # a view; of a tensor on a device, a copy
            old = bits[where]
            new = move(old, changes.values[first:last][inside])
            expected.append(digest_update(digest, _places(piece, where), old, new))
            writes.append((piece, bits, where, old, new))
        try:
            for piece, bits, where, _, new in writes:
                _put(piece, bits, where, new)
        except BaseException:
            for piece, bits, where, old, _ in writes:
                _put(piece, bits, where, old)
            raise
        self._expected = expected


def _coordinates(piece: Piece, local: Int64s) -> tuple[tuple[Int64s, ...], Bools]:
    """Where in the piece elements of its member's block are, and which of them it holds."""
    block = piece.member.block
    axes = np.unravel_index(local, block.extent or (1,))
    start, size = block.local(piece.box).origin or (0,), piece.box.extent or (1,)
    inside = np.ones(local.size, bool)
    for axis, low, count in zip(axes, start, size, strict=True):
        inside &= (axis >= low) & (axis < low + count)
    return tuple(axis[inside] - low for axis, low in zip(axes, start, strict=True)), inside


def _put(piece: Piece, bits: Bits, where: tuple[Int64s, ...], values: Bits) -> None:
    bits[where] = values
    if tensors.on_device(piece.array) is not None:
        piece.write(bits.reshape(piece.box.extent))


def _places(piece: Piece, where: tuple[Int64s, ...]) -> Int64s:
    """Row-major positions in the whole tensor of coordinates in the piece."""
    flat = np.zeros(where[0].shape, np.int64)
    shape, origin = piece.member.shape or (1,), piece.box.origin or (0,)
    for axis, extent, low in zip(where, shape, origin, strict=True):
        flat = flat * extent + axis + low
    return flat
