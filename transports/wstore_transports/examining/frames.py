"""What a part or a frame holds, read by its index and the headers of its frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError
from wstore_codecs import frame_header, part
from wstore_transports.examining.density import changed_elements, read_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.path import StoragePath
    from wstore_codecs.frame_header import FrameHeader
    from wstore_codecs.proof import Proof

AT_ONCE = 1024
"""Headers that are read together."""


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One frame.

    Attributes:
        offset, nbytes: where it lies in its file.
        header: what it says of itself.
        changed: elements that it changes; None where it replaces them.
    """

    offset: int
    nbytes: int
    header: FrameHeader
    changed: int | None


def frames_of(path: StoragePath) -> list[FrameRow] | None:
    """The frames of a part, or the one that the object is; None where it is neither.

    A few ranged reads; bodies are not read.

    Raises:
        IntegrityError, NewerFormat: it begins as one, and is damaged or cut short. NotFound.
    """
    start = path.read_range(0, len(part.START))
    if start[:4] == frame_header.MAGIC:
        return [next(_rows(path, [(0, path.stat().size)]))]
    if start[:4] != part.START[:4]:
        return None
    size = path.stat().size
    tail = path.read_range(max(0, size - part.TAIL), part.TAIL)
    try:
        first, stop = part.index_range(tail, size)
        rows = part.parse_index(path.read_range(first, stop - first), tail)
    except IntegrityError as error:
        error.url = path.url
        raise
    return list(_rows(path, [(row.offset, row.nbytes) for row in rows]))


def _rows(path: StoragePath, places: list[tuple[int, int]]) -> Iterator[FrameRow]:
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        for (offset, nbytes), head in zip(some, read_heads(path, some), strict=True):
            yield FrameRow(offset, nbytes, frame_header.parse(head), changed_elements(head))


def proof_of(proof: Proof | None) -> str:
    """What proves a block, as text: its hash, else its digest; "" for none."""
    if proof is None:
        return ""
    if proof.hash is not None:
        return proof.hash.hex()
    return "" if proof.digest is None else proof.digest.hex
