"""Where the elements of a frame lie in the memory of whoever holds the weights.

A state maps tensor names to arrays: whole tensors, or `Held` for a box of one, or None for a tensor that
is not held here. A unit (block or group) is then held whole, in part, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors
from wstore_codecs.block import Block, Shape
from wstore_codecs.digest import digest_block
from wstore_codecs.frame_header import label_of, spread_of
from wstore_codecs.proof import proves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wstore_codecs.changes import Changes
    from wstore_codecs.cutting import Member, Unit
    from wstore_codecs.digest import TensorDigest
    from wstore_codecs.proof import Proof
    from wstore_codecs.tensors import Array, Bits


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A box of a tensor, as one holder has it.

    Attributes:
        array: its elements.
        shape: the whole tensor's shape.
        origin: where the box starts in it.
    """

    array: Array
    shape: Shape
    origin: Shape


if TYPE_CHECKING:
    State: TypeAlias = Mapping[str, Array | Held | None]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What is held of one member of a unit.

    Attributes:
        member: the member.
        start: where its elements start in the packed unit.
        box: the part that is held, in the whole tensor's coordinates.
        array: that part's elements, a view; on any device.
        host: the same as integers, where they are in host memory.
    """

    member: Member
    start: int
    box: Block
    array: Array
    host: Bits | None

    def bits(self) -> Bits:
        """The elements as host integers: in place, or of a device a copy."""
        return (
            tensors.bit_view(self.array, name=self.box.tensor) if self.host is None else self.host
        )

    def write(self, bits: Bits) -> None:
        """Make these bits, of the box's extent, the content."""
        if self.host is not None:
            np.copyto(self.host, bits)
            return
        device = tensors.on_device(self.array)
        if device is not None:
            from wstore_codecs import torch_tensors

            torch_tensors.write_bits(device, bits)

    def digest(self) -> TensorDigest:
        """The digest of what is held, computed where it lies."""
        return digest_block(self.array, self.member.shape, self.box.origin, name=self.box.tensor)


class Target(Protocol):
    """The memory that an apply brings a unit into. When `patch` or `unpatch` raises, nothing changed."""

    pieces: Sequence[Piece]

    def agrees(self, proof: Proof) -> bool:
        """Whether the content is what was proven."""

    def load(self) -> Bits:
        """All elements of the unit as contiguous host bits: the memory itself, or a copy."""

    def store(self, bits: Bits) -> None:
        """Make these, all elements of the unit, the content."""

    def held(self) -> list[Bits]:
        """What `restore` needs: flat host bits, the memory itself or copies."""

    def restore(self, held: Sequence[Bits]) -> None:
        """Bring back what `held` gave."""

    def patch(self, changes: Changes) -> None:
        """Apply changes of the unit to the content."""

    def unpatch(self, changes: Changes) -> None:
        """Take applied changes back."""


class HostTarget:
    """A unit in host memory, of any strides."""

    def __init__(self, unit: Unit, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._unit = unit
        self._shared: Bits | None = None
        if len(pieces) == 1:
            bits = pieces[0].bits()
            if bits.flags.c_contiguous and bits.flags.aligned:
                self._shared = bits.reshape(-1)

    def agrees(self, proof: Proof) -> bool:
        return proves(proof, self.load(), spread_of(self._unit))

    def load(self) -> Bits:
        if self._shared is not None:
            return self._shared
        bits: Bits = np.empty(self._unit.size, self._unit.dtype.bits)
        for piece, part in self._parts(bits):
            np.copyto(part, piece.bits())
        return bits

    def store(self, bits: Bits) -> None:
        for piece, part in self._parts(bits):
            piece.write(part)

    def held(self) -> list[Bits]:
        return [self.load()]

    def restore(self, held: Sequence[Bits]) -> None:
        self.store(held[0])

    def patch(self, changes: Changes) -> None:
        self._rewrite(changes.apply, changes.undo)

    def unpatch(self, changes: Changes) -> None:
        self._rewrite(changes.undo, changes.apply)

    def _rewrite(self, move: Callable[[Bits], None], back: Callable[[Bits], None]) -> None:
        bits = self.load()
        move(bits)
        if self._shared is not None:
            return
        try:
            self.store(bits)
        except BaseException:
            back(bits)
            self.store(bits)
            raise

    def _parts(self, bits: Bits) -> list[tuple[Piece, Bits]]:
        return [
            (
                piece,
                bits[piece.start : piece.start + piece.box.size].reshape(piece.box.extent),
            )
            for piece in self.pieces
        ]


def locate(unit: Unit, state: State) -> list[Piece]:
    """What a state holds of a unit, one piece a member that is held at least in part.

    Raises:
        InvalidArgument: a tensor that the state does not know, of another dtype or shape, a box that
            leaves its tensor, or memory that cannot be written.
    """
    pieces, start = [], 0
    for member in unit.members:
        name = member.block.tensor
        if name not in state:
            raise InvalidArgument(
                f"{label_of(unit)}: the state has no tensor {name!r}; map it to None when it is not "
                "held here"
            )
        entry = state[name]
        if entry is not None:
            held = as_held(entry, name=name)
            piece = _piece(unit, member, start, held)
            if piece is not None:
                pieces.append(piece)
        start += member.block.size
    return pieces


class Placed(Protocol):
    """Memory that holds a box of a tensor."""

    @property
    def box(self) -> Block: ...
    @property
    def array(self) -> Array: ...


def check_apart(places: Iterable[Placed]) -> None:
    """Raises InvalidArgument when two places share memory: it would be written twice."""
    filled = [place for place in places if place.box.size]
    spans = sorted(
        (*tensors.span(place.array, name=place.box.tensor), at) for at, place in enumerate(filled)
    )
    active: list[tuple[int, Placed]] = []
    for start, stop, at in spans:
        place = filled[at]
        active = [(end, other) for end, other in active if end > start]
        for _, other in active:
            if tensors.overlap(place.array, other.array, name=place.box.tensor):
                raise InvalidArgument(
                    f"tensors {other.box.tensor!r} and {place.box.tensor!r} share memory in the state, "
                    "and both would be written"
                )
        active.append((stop, place))


def held_whole(unit: Unit, pieces: Sequence[Piece]) -> bool:
    """Whether nothing of the unit is missing."""
    held = {piece.start: piece.box.size for piece in pieces}
    return sum(held.values()) == unit.size


def as_held(entry: Array | Held, *, name: str) -> Held:
    """The entry of a state as a box of its tensor."""
    if isinstance(entry, Held):
        return entry
    shape = tensors.describe(entry, name=name).shape
    return Held(entry, shape, (0,) * len(shape))


def _piece(unit: Unit, member: Member, start: int, held: Held) -> Piece | None:
    name = member.block.tensor
    info = tensors.describe(held.array, name=name)
    if info.dtype != unit.dtype or tuple(held.shape) != member.shape:
        raise InvalidArgument(
            f"tensor {name!r} is {info.dtype.name} {tuple(held.shape)} in the state and "
            f"{unit.dtype.name} {member.shape} in the frame"
        )
    if info.shape == member.shape == member.block.extent and not any(held.origin):
        tensors.check_writable(held.array, name=name)
        return Piece(member, start, member.block, held.array, _host(held.array, name))
    have = Block(name, tuple(held.origin), info.shape)
    if not have.within(member.shape):
        raise InvalidArgument(f"tensor {name!r}: {have} leaves the shape {member.shape}")
    box = member.block.clip(have)
    if box is None:
        return None
    tensors.check_writable(held.array, name=name)
    part = tensors.box_view(held.array, have.local(box))
    return Piece(member, start, box, part, _host(part, name))


def _host(array: Array, name: str) -> Bits | None:
    return None if tensors.on_device(array) is not None else tensors.bit_view(array, name=name)
