"""What a rank published last: the weights that its next delta is the difference to."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors
from wstore_codecs.apply import apply
from wstore_codecs.bulk import member_views, plan_state
from wstore_codecs.targets import Held

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from wstore_codecs.bulk import Cuts
    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.proof import Proof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Inventory, Piece

MAX_BLOCKS = 4096
"""Blocks that cuts may make of a tensor; what asks for more is not heeded."""

Where = Literal["host", "device"]
"""Where a baseline lies: in host memory, or where the tensors are."""


class Baseline:
    """A copy of one rank's pieces, cut into the units that frames hold.

    Attributes:
        pieces: by tensor, what was handed in, with the baseline's memory as its array.
        aliases: further names -> the name that their values are stored under.
        replicas: by tensor, pieces that another rank stores: this one keeps no values of them.
        asked: the cuts as engines asked for them; `cuts`: those of them that fit the tensors.
        units: in the order in which frames are made.
        units_of: by tensor, which units hold elements of it.
        proofs: by unit, what its content is; None until it was encoded once.
        digests: by unit, the digest of each member, 32 hex digits; empty until then.
        nbytes: bytes of memory that it takes.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        where: Where,
        threads: int = 1,
    ) -> None:
        """Copy the pieces: their arrays may change once this returns.

        Raises:
            InvalidArgument: an array that weights cannot be stored as.
        """
        with ThreadPoolExecutor(threads, "wstore-baseline") as pool:
            copies = pool.map(lambda piece: _copied(piece, where), inventory.pieces)
            self.pieces = {piece.name: piece for piece in copies}
        self.aliases: Mapping[str, str] = dict(inventory.aliases)
        self.replicas: dict[str, Piece] = {}
        self.asked: Cuts = {}
        self.cuts: Cuts = {}
        self.nbytes = inventory.nbytes
        self._state: dict[str, Array | Held | None] = {
            name: Held(piece.array, piece.shape, piece.box.origin)
            for name, piece in self.pieces.items()
        }
        self.units: list[Unit] = []
        self.units_of: dict[str, list[int]] = {}
        self.proofs: list[Proof | None] = []
        self.digests: list[tuple[str, ...]] = []
        self.cut({})

    def cut(self, cuts: Cuts) -> None:
        """Cut the pieces anew; nothing is known of the new units yet.

        Args:
            cuts: by tensor and dimension; what does not fit a tensor is not heeded.
        """
        self.asked = cuts
        known = {**self.pieces, **self.replicas}
        self.cuts = {
            name: axes
            for name, axes in cuts.items()
            if name in known
            and len(axes) == len(known[name].shape)
            and math.prod(len(list(axis)) + 1 for axis in axes) <= MAX_BLOCKS
        }
        self.units = plan_state(self._state, cuts=self.cuts)
        self.proofs = [None] * len(self.units)
        self.digests = [()] * len(self.units)
        self.units_of = {name: [] for name in self.pieces}
        for index, unit in enumerate(self.units):
            for name in dict.fromkeys(member.block.tensor for member in unit.members):
                self.units_of[name].append(index)

    def give_up(self, replicas: Collection[str]) -> None:
        """Leave the pieces of these tensors to the ranks that store them."""
        if not replicas:
            return
        for name in replicas:
            piece = self.pieces.pop(name)
            self.replicas[name] = replace(piece, array=np.empty(0, piece.dtype.numpy))
            del self._state[name]
            self.nbytes -= piece.nbytes
        self.cut(self.asked)

    def check(self, piece: Piece) -> None:
        """Raises InvalidArgument where a piece is another than the one of that name was before."""
        before = self.pieces.get(piece.name) or self.replicas.get(piece.name)
        if before is None:
            raise InvalidArgument(
                f"tensor {piece.name!r} is new: publish with full=True to begin anew with it"
            )
        if (piece.dtype, piece.shape, piece.box) != (before.dtype, before.shape, before.box):
            raise InvalidArgument(
                f"tensor {piece.name!r} is {_said(piece)} here, and was {_said(before)}: publish with "
                "full=True to begin anew with it"
            )

    def views(self, index: int) -> list[Array]:
        """The arrays of a unit's members: views of the baseline's memory."""
        return member_views(self.units[index], self._state)

    def learn(self, index: int, proof: Proof, digests: tuple[str, ...]) -> None:
        """Note what the content of a unit is."""
        self.proofs[index], self.digests[index] = proof, digests

    def advance(self, frames: Sequence[Frame], *, threads: int) -> None:
        """Apply the frames of a version, all or nothing. That they fit was read when they were made; that
        the result is what was published is proven.

        Raises:
            IntegrityError: the memory is not what it was when the frames were made.
        """
        units = {frame.header.unit for frame in frames}
        apply(frames, self._state, threads=threads, checked=units)


def _said(piece: Piece) -> str:
    part = (
        "" if piece.whole else f", the box at {list(piece.box.origin)} of {list(piece.box.extent)}"
    )
    return f"{piece.dtype.name} {list(piece.shape)}{part}"


def _copied(piece: Piece, where: Where) -> Piece:
    array: Array
    if where == "device" and tensors.on_device(piece.array) is not None:
        array = tensors.copied(piece.array, name=piece.name)
    else:
        bits = tensors.bit_view(piece.array, name=piece.name)
        fresh = np.empty(bits.shape, bits.dtype)
        np.copyto(fresh, bits)
        array = fresh.view(piece.dtype.numpy)
    return replace(piece, array=array)
