"""Which file each piece goes to, and how a piece is cut into blocks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore_codecs.cutting import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wstore_codecs.block import Block
    from wstore_transports.checkpoint.pieces import Piece

MAX_BLOCK_BYTES = 8 << 20
"""What is hashed, and read again, as one: the size of request that pays on object stores."""

MAX_FILE_BYTES = 4 << 30
"""Where a rank starts its next file, unless told otherwise."""

MAX_HEADER_BYTES = 32 << 20
"""Readers of safetensors refuse headers over 100 MB; a file with less opens quickly."""

ENTRY_BYTES = 160
"""An upper estimate of a header entry beside the name: dtype, offsets and a few dimensions."""


def cut_blocks(box: Block, itemsize: int, max_bytes: int = MAX_BLOCK_BYTES) -> Iterator[Block]:
    """Cut a box into blocks that are each one contiguous run of its row-major bytes, in that order.

    A block has at most `max_bytes` (at least one element). An empty box is one empty block.
    """
    return cut(box, max(1, max_bytes // itemsize))


def plan_files(pieces: Iterable[Piece], max_bytes: int = MAX_FILE_BYTES) -> list[list[Piece]]:
    """Fill files in the order given; a piece larger than `max_bytes` gets a file of its own.

    The same pieces are always planned the same way, so what did not change between two versions lies
    in equal files.
    """
    files: list[list[Piece]] = []
    size = header = 0
    for piece in pieces:
        entry = len(piece.name.encode()) * 2 + ENTRY_BYTES
        full = size + piece.nbytes > max_bytes or header + entry > MAX_HEADER_BYTES
        if not files or (full and files[-1]):
            files.append([])
            size = header = 0
        files[-1].append(piece)
        size += piece.nbytes
        header += entry
    return files


def stored_names(pieces: Iterable[Piece]) -> list[str]:
    """The names in a file: a whole tensor's own, a shard's with its origin ("w@0,1024"); all distinct.

    Readers of versions go by the manifest; the names serve other readers of the file.
    """
    taken: set[str] = set()
    names = []
    for piece in pieces:
        where = "" if piece.whole else "@" + ",".join(map(str, piece.box.origin))
        name = piece.name + where
        while name in taken:
            name += "@"
        taken.add(name)
        names.append(name)
    return names
