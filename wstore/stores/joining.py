"""Whether the pieces of an upload make one object without holes."""

from __future__ import annotations

from wstore import errors


def joined_size(pieces: dict[int, tuple[int, int]], url: str) -> int:
    """The size of the object that (offset, length) pieces make, in order of their number.

    Raises:
        InvalidArgument: one does not begin where the one before it ends.
    """
    end = 0
    for number, (offset, length) in sorted(pieces.items()):
        if offset != end:
            raise errors.InvalidArgument(
                f"piece {number} starts at byte {offset}, but the pieces before it end at {end}",
                url=url,
            )
        end += length
    return end
