"""An engine's memory, bound to the tensors of a version; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from wstore.errors import InvalidArgument
from wstore_codecs import tensors as arrays
from wstore_codecs.block import Block
from wstore_codecs.targets import Held
from wstore_transports.checkpoint.pieces import Shard, piece_of
from wstore_transports.checkpoint.reader import box_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions.documents import Manifest

EngineState: TypeAlias = "Mapping[str, Array | Shard | None]"
"""An engine's weights by name: whole tensors, `Shard`s or DTensors for a box of one, None for a tensor that
is not held here. Every tensor of the version must have its entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """Memory by stored name.

    Attributes:
        pieces: what is held of each tensor; None for nothing.
        copies: further memory for the same values: tied names that an engine holds apart.
    """

    pieces: Mapping[str, Piece | None]
    copies: tuple[Piece, ...]

    def all(self) -> list[Piece]:
        """All memory."""
        return [*(piece for piece in self.pieces.values() if piece is not None), *self.copies]

    def holding(self) -> dict[str, Block | None]:
        """What is not held whole, and the boxes that are.

        Raises:
            InvalidArgument: tied names hold different boxes.
        """
        for piece in self.copies:
            first = self.pieces[piece.name]
            if first is None or first.box != piece.box:
                raise InvalidArgument(
                    f"tensor {piece.name!r} is held under two names, in different boxes"
                )
        return {
            name: None if piece is None else piece.box
            for name, piece in self.pieces.items()
            if piece is None or not piece.whole
        }

    def within(self, holding: Holding) -> Bound:
        """The same, when all of it was staged. Raises InvalidArgument."""
        for piece in self.all():
            box = holding.get(piece.name, Block.whole(piece.name, piece.shape))
            if box is None or (piece.box.size and not box.contains(piece.box)):
                raise InvalidArgument(
                    f"{piece.box} is held, and what was staged is {box}: prefetch with this state"
                )
        return self

    def held(self) -> dict[str, Held]:
        """The memory that there is, by stored name."""
        return {name: _held(piece) for name, piece in self.pieces.items() if piece is not None}

    def state(self) -> dict[str, Array | Held | None]:
        """The memory as `wstore_codecs.apply` takes it."""
        return {
            name: None if piece is None else _held(piece) for name, piece in self.pieces.items()
        }

    def copy_state(self, piece: Piece) -> dict[str, Array | Held | None]:
        """The same for one of the copies: all other tensors are not held."""
        return {name: _held(piece) if name == piece.name else None for name in self.pieces}


def bind(state: EngineState, manifest: Manifest) -> Bound:
    """Find each tensor of a version in an engine's state.

    Raises:
        InvalidArgument: names that the version lacks, tensors that have no entry, other dtypes or shapes.
            Lists them. Nothing was written.
    """
    stored = {**{name: name for name in manifest.tensors}, **manifest.aliases}
    unknown = sorted(name for name in state if name not in stored)
    entries: dict[str, list[tuple[str, Array | Shard | None]]] = {}
    for name, value in state.items():
        if name in stored:
            entries.setdefault(stored[name], []).append((name, value))
    missing = sorted(name for name in manifest.tensors if name not in entries)
    if unknown or missing:
        problems = []
        if missing:
            problems.append(f"tensors of the version without an entry: {_listed(missing)}")
        if unknown:
            problems.append(f"entries that the version has no tensor for: {_listed(unknown)}")
        raise InvalidArgument(
            f"the state does not fit: {'; '.join(problems)} (map a tensor that is not held here to None)"
        )
    pieces: dict[str, Piece | None] = {}
    copies: list[Piece] = []
    for name, tensor in manifest.tensors.items():
        pieces[name] = None
        seen: set[object] = set()
        for given, value in entries[name]:
            if value is None:
                continue
            piece = _piece(given, name, value)
            theirs = (tensor.dtype, tuple(tensor.shape))
            if (piece.dtype.name, piece.shape) != theirs:
                raise InvalidArgument(
                    f"tensor {given!r} is {piece.dtype.name} {list(piece.shape)} in the state and "
                    f"{theirs[0]} {list(theirs[1])} in the version"
                )
            key = arrays.alias_key(piece.array, name=given)
            if key in seen and piece.box.size:
                continue
            seen.add(key)
            if pieces[name] is None:
                pieces[name] = piece
            else:
                copies.append(piece)
    return Bound(pieces, tuple(copies))


def _piece(given: str, stored: str, value: Array | Shard) -> Piece:
    piece = piece_of(given, value)
    return piece if given == stored else piece.named(stored)


def _held(piece: Piece) -> Held:
    return Held(piece.array, piece.shape, piece.box.origin)


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def holding_of(
    manifest: Manifest, names: Sequence[str] | None, boxes: Mapping[str, tuple[slice, ...]]
) -> Holding:
    """What is held when these names are, whole but for those with a box.

    Raises:
        InvalidArgument: names that the version lacks, boxes of names that are not held.
    """
    stored = {**{name: name for name in manifest.tensors}, **manifest.aliases}
    wanted = stored if names is None else dict.fromkeys(names)
    unknown = sorted(name for name in (*wanted, *boxes) if name not in stored)
    stray = sorted(name for name in boxes if name in stored and name not in wanted)
    if unknown or stray:
        raise InvalidArgument(
            f"names do not fit: not in the version: {unknown[:10]}; boxes of others: {stray[:10]}"
        )
    holding: dict[str, Block | None] = dict.fromkeys(manifest.tensors)
    by_stored = {stored[name]: cut for name, cut in boxes.items()}
    for name in wanted:
        tensor = manifest.tensors[stored[name]]
        cut = boxes.get(name, by_stored.get(stored[name], ()))
        box = box_of(stored[name], tuple(tensor.shape), cut)
        before = holding[stored[name]]
        if before is not None and before != box:
            raise InvalidArgument(f"tensor {name!r} is asked for under two names, with other boxes")
        holding[stored[name]] = box
    return {
        name: box
        for name, box in holding.items()
        if box is None or list(box.extent) != manifest.tensors[name].shape
    }
