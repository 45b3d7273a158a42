"""Whole weights that were loaded beside an engine's, copied into its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors as arrays
from wstore_codecs.block import Block
from wstore_codecs.cutting import cut
from wstore_codecs.targets import check_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Piece

_COPY_ELEMENTS = 4 << 20  # at a time, so that copies to a device stage little


def check_copies(
    pieces: Iterable[Piece], loaded: Mapping[str, Array], origins: Mapping[str, Block | None]
) -> None:
    """Check all that could stop `copy_into`, or make it wrong.

    Args:
        loaded: by stored name.
        origins: which box of its tensor each of those is; names that are missing are whole.

    Raises:
        InvalidArgument: memory that is read-only, expanded, or that two tensors share; more than what was
            loaded.
    """
    pieces = list(pieces)
    check_apart(pieces)
    for piece in pieces:
        box = origins.get(piece.name, Block.whole(piece.name, piece.shape))
        if piece.name not in loaded or box is None or not box.contains(piece.box):
            raise InvalidArgument(f"{piece.box} was not loaded: what was staged is {box}")
        arrays.check_writable(piece.array, name=piece.name)


def copy_into(
    pieces: Iterable[Piece], loaded: Mapping[str, Array], origins: Mapping[str, Block | None]
) -> None:
    """Copy loaded weights into an engine's memory. Call `check_copies` first."""
    for piece in pieces:
        box = origins.get(piece.name) or Block.whole(piece.name, piece.shape)
        source = arrays.bit_view(loaded[piece.name], name=piece.name)
        for part in cut(piece.box, _COPY_ELEMENTS):
            bits = arrays.box_view(source, box.local(part))
            place = arrays.box_view(piece.array, piece.box.local(part))
            device = arrays.on_device(place)
            if device is None:
                np.copyto(arrays.bit_view(place, name=piece.name), bits)
            else:
                from wstore_codecs import torch_tensors

                torch_tensors.write_bits(device, bits)
