"""What a rank was handed to write: arrays and shards, checked, with tied weights found. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors as arrays
from wstore_codecs.block import Block
from wstore_transports.checkpoint.dtensors import is_dtensor, local_box

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from wstore_codecs.block import Shape
    from wstore_codecs.dtypes import DType
    from wstore_codecs.tensors import Array, TensorInfo

MAX_NAME = 1024
"""Characters of a tensor's name that a manifest holds."""

MAX_DIMENSIONS = 32
"""Dimensions of a tensor that a manifest holds."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A box of a tensor that several ranks hold together.

    Attributes:
        array: this rank's elements: numpy or torch, any strides, any device.
        global_shape: the whole tensor's shape.
        origin: where `array` starts in it.
    """

    array: Array
    global_shape: Shape
    origin: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One box of one tensor to write.

    Attributes:
        name: the tensor's.
        array: its elements, row-major order is that of the box.
        dtype: the element type.
        shape: the whole tensor's.
        box: where the array lies in the tensor.
    """

    name: str
    array: Array
    dtype: DType
    shape: Shape
    box: Block

    @property
    def nbytes(self) -> int:
        """Bytes of the array's elements."""
        return self.box.size * self.dtype.itemsize

    def named(self, name: str) -> Piece:
        """The same elements under another name."""
        box = Block(name, self.box.origin, self.box.extent)
        return Piece(name, self.array, self.dtype, self.shape, box)

    @property
    def whole(self) -> bool:
        """Whether this is all of the tensor."""
        return self.box.extent == self.shape


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that one rank contributes to a version.

    Attributes:
        pieces: each stored once, in the order given.
        aliases: further names of the same memory -> the name it is stored under.
    """

    pieces: tuple[Piece, ...]
    aliases: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


Tensors = Mapping[str, "Array | Shard"]
"""What a rank may hand in, by tensor name. An array may be a torch DTensor: it is this rank's `Shard`."""


class Collector:
    """Checks what a rank hands in, one name after the other, and finds tied weights.

    The arrays must live, unchanged in their memory, until the last is added: that is how two names of one
    memory are told from memory that was used again.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._aliases: dict[str, str] = {}
        self._first: dict[Hashable, str] = {}
        self._seen: set[str] = set()

    def add(self, name: str, value: Array | Shard) -> Piece | None:
        """The piece to write, or None where this memory has been added under another name.

        Raises:
            InvalidArgument: a name that comes twice, is empty, too long or no text; an array that weights
                cannot be stored as; a shard outside its tensor; a DTensor that holds no box of it. Names
                the tensor; nothing was added.
        """
        if name in self._seen:
            raise InvalidArgument(f"tensor {name!r} is given twice")
        piece = piece_of(name, value)
        key = (piece.shape, piece.box.origin, arrays.alias_key(piece.array, name=name))
        self._seen.add(name)
        if piece.box.size and key in self._first:
            self._aliases[name] = self._first[key]
            return None
        self._first[key] = name
        self._pieces.append(piece)
        return piece

    def inventory(self) -> Inventory:
        """All that was added so far."""
        return Inventory(tuple(self._pieces), dict(self._aliases))


def collect(tensors: Tensors | Iterable[tuple[str, Array | Shard]]) -> Inventory:
    """Check the arrays and find those that are one and the same memory (tied weights).

    Raises:
        InvalidArgument: as `Collector.add`.
    """
    collector = Collector()
    for name, value in tensors.items() if isinstance(tensors, Mapping) else tensors:
        collector.add(name, value)
    return collector.inventory()


def piece_of(name: str, value: Array | Shard) -> Piece:
    """What a rank hands in under a name, checked.

    Raises:
        InvalidArgument: as `Collector.add`, but for names that come twice.
    """
    _check_name(name)
    if is_dtensor(value):
        value = Shard(*local_box(name, value))
    array = _held(value.array if isinstance(value, Shard) else value)
    return _piece(name, value, array, arrays.describe(array, name=name))


def _piece(name: str, value: Array | Shard, array: Array, info: TensorInfo) -> Piece:
    _check_dimensions(name, info.shape)
    if not isinstance(value, Shard):
        return Piece(name, array, info.dtype, info.shape, Block.whole(name, info.shape))
    shape = tuple(int(length) for length in value.global_shape)
    _check_dimensions(name, shape)
    box = Block(name, tuple(int(start) for start in value.origin), info.shape)
    if not box.within(shape):
        raise InvalidArgument(
            f"tensor {name!r}: a shard at {box.origin} of {box.extent} leaves its shape {shape}"
        )
    return Piece(name, array, info.dtype, shape, box)


def _held(array: Array) -> Array:
    """What converts to numpy (scalars, JAX arrays) is converted once, so its memory stays its own."""
    is_torch = hasattr(array, "untyped_storage")
    return array if is_torch or isinstance(array, np.ndarray) else np.asarray(array)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or name == "__metadata__":
        raise InvalidArgument(
            f"{name!r:.80}: a tensor's name is 1 to {MAX_NAME} characters of text"
        )
    if "\0" in name:
        raise InvalidArgument(f"tensor name {name!r:.80} holds a NUL character")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tensor name {name!r} cannot be written as UTF-8") from error


def _check_dimensions(name: str, shape: Shape) -> None:
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidArgument(
            f"tensor {name!r} has {len(shape)} dimensions; at most {MAX_DIMENSIONS} can be stored"
        )
