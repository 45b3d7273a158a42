"""What an apply needs done before it writes, done while its version is still being written."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

from wstore_codecs.apply import check_bases
from wstore_codecs.bulk import in_order
from wstore_transports.delta.staging import missing_slices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.proof import Proof
    from wstore_codecs.slices import SliceProof
    from wstore_transports.delta.binding import Bound

DECODED_BYTES = 256 << 20
"""Bytes of changes that are decoded before an apply, so that it is shorter."""


class Rehearsal:
    """Decodes frames, and checks that the memory is what they apply to. Thread-safe.

    The memory must not change until the apply: what was checked is not checked again.

    Args:
        slices: proofs of the units that are held in part.
    """

    def __init__(self, bound: Bound, slices: Mapping[Unit, SliceProof]) -> None:
        self._memory = bound.state()
        self._slices = slices
        self._lock = threading.Lock()
        self._left = DECODED_BYTES
        self._bases: dict[Unit, Proof] = {}

    def prepare(self, frames: Sequence[Frame], *, threads: int = 1) -> list[Frame]:
        """The frames, decoded as far as memory allows.

        Raises:
            As `wstore_codecs.apply.check_bases`.
        """
        decoded = self._all_decoded(frames, threads)
        new = [frame for frame in decoded if not self._checked(frame)]
        if new:
            slices = missing_slices(new, self._memory, self._slices)
            check_bases(new, self._memory, slices=slices, threads=threads)
            with self._lock:
                for frame in new:
                    if frame.header.base is not None:
                        self._bases[frame.header.unit] = frame.header.base
        return decoded

    def checked(self, frames: Sequence[Frame]) -> set[Unit]:
        """The units of these frames that were found to be what the frames apply to."""
        return {frame.header.unit for frame in frames if self._checked(frame)}

    def _checked(self, frame: Frame) -> bool:
        base = frame.header.base
        return base is not None and self._bases.get(frame.header.unit) == base

    def _all_decoded(self, frames: Sequence[Frame], threads: int) -> list[Frame]:
        def decoded(frame: Frame) -> Frame:
            with self._lock:
                share = self._left // threads
                self._left -= share
            taken = 0
            try:
                made = frame.decoded(share)
                taken = 0 if made.listed is None else made.listed.nbytes
            finally:
                with self._lock:
                    self._left += share - taken
            return made

        new = (frame for frame in frames if frame.listed is None)
        with closing(in_order(decoded, new, threads=threads)) as made:
            return [next(made) if frame.listed is None else frame for frame in frames]
