"""Sizes of the pieces of an upload, within the service's limits. Pure; sizes are bytes.

S3: at most 10,000 pieces of 5 MiB to 5 GiB, so an object of up to 48.8 TiB
(docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument
from wstore.stores.base import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.stores.base import PieceLimits

PIECE = 8 * MiB  # small enough for 8 at once, large enough that a request's latency does not count
PLATEAU = 256 * MiB  # an upload of unknown size stays at or below this for its first 80 %


def largest_object(limits: PieceLimits) -> int:
    """The largest object that the service takes in pieces."""
    return min(limits.max_object, limits.max_piece * limits.max_pieces)


def piece_size(size: int, limits: PieceLimits, preferred: int = PIECE) -> int:
    """The size of all pieces but the last for an object of known size.

    The preferred size where it is allowed, else as little above (or below) it as the limits demand;
    sizes that grew are whole MiB.

    Raises:
        InvalidArgument: the object is over the service's limit, or `preferred` is not positive.
    """
    if preferred < 1:
        raise InvalidArgument(f"a piece size of {preferred} bytes")
    if size > largest_object(limits):
        raise InvalidArgument(
            f"{size} bytes are over the service's limit of {largest_object(limits)} for one object"
        )
    least = -(-size // limits.max_pieces)
    if least > preferred:
        preferred = -(-least // MiB) * MiB
    return min(max(preferred, limits.min_piece), limits.max_piece)


def plan_pieces(size: int, limits: PieceLimits, preferred: int = PIECE) -> list[tuple[int, int]]:
    """(offset, length) of each piece, in order; one empty piece for an empty object.

    Raises:
        InvalidArgument: as `piece_size`.
    """
    step = piece_size(size, limits, preferred)
    return [(at, min(step, size - at)) for at in range(0, size, step)] or [(0, 0)]


def growing_sizes(limits: PieceLimits, preferred: int = PIECE) -> Iterator[int]:
    """The sizes of the pieces of an upload whose size is not known; ends at the service's count.

    Doubles every 5 % of the allowed pieces up to 256 MiB, stays there up to 80 %, and then doubles
    again: with S3's limits 1.4 TiB fit into pieces of at most 256 MiB, and all pieces hold 5 TiB.
    A service that demands equal pieces (Cloudflare R2) needs the size, or `piece_size`, given.

    Raises:
        InvalidArgument: `preferred` is not positive.
    """
    if preferred < 1:
        raise InvalidArgument(f"a piece size of {preferred} bytes")
    first = min(max(preferred, limits.min_piece), limits.max_piece)
    plateau = max(first, PLATEAU)
    for number in range(limits.max_pieces):
        twentieth = number * 20 // limits.max_pieces
        early = twentieth < 16
        size = min(first << twentieth, plateau) if early else plateau << (twentieth - 15)
        yield min(size, limits.max_piece)
