"""From the tensors of a version to frames: as they come, over threads, in a fixed order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wstore.errors import InvalidArgument
from wstore_codecs import tensors
from wstore_codecs.base import sparse_codec
from wstore_codecs.frame import encode_unit, member_digests, unpack_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.tensors import Array, Bits
    from wstore_transports.checkpoint.pieces import Piece
    from wstore_transports.delta.baseline import Baseline


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """One unit of a version, encoded.

    Attributes:
        index: which unit of the baseline.
        frame: its frame.
        digests: of its members' new values, 32 hex digits each.
    """

    index: int
    frame: Frame
    digests: tuple[str, ...]

    @property
    def changed(self) -> int:
        """Elements that the frame changes: what it lists, or all where it stands alone."""
        header = self.frame.header
        if header.base is None:
            return header.size
        return sparse_codec(header.codec).count(self.frame.body(), header.size)


def encode_whole(baseline: Baseline, index: int, *, codec: str) -> Made:
    """A unit of the baseline as it is, standing alone."""
    unit, views = baseline.units[index], baseline.views(index)
    frame = encode_unit(unit, views, codec=codec, digests=True)
    # Never the digests that are remembered: an anchor's must prove what the memory holds.
    return _made(index, frame, views)


def encode_delta(baseline: Baseline, index: int, new: Sequence[Array], *, codec: str) -> Made:
    """What changed in a unit against the baseline."""
    unit = baseline.units[index]
    if unit.grouped and codec == "auto:max":
        codec = "auto"  # a group has members that some holder lacks, and `context` needs them all
    frame = encode_unit(
        unit,
        new,
        baseline.views(index),
        codec=codec,
        base_proof=baseline.proofs[index],
        digests=True,
    )
    if frame.unchanged and baseline.digests[index]:
        return Made(index, frame, baseline.digests[index])
    return _made(index, frame, new)


def _made(index: int, frame: Frame, arrays: Sequence[Array]) -> Made:
    return Made(index, frame, tuple(digest.hex for digest in member_digests(frame, arrays)))


class DeltaEncoder:
    """Encodes the tensors of one version against the baseline, in any order in which they come.

    At most `threads` + 1 units are under way, beside the groups that wait for their last member. The
    arrays must not change until `finish` returned or `close` did.

    Args:
        take: gets each unit's frame, in the order in which they were begun; on the caller's thread.
    """

    def __init__(
        self, baseline: Baseline, *, codec: str, threads: int, take: Callable[[Made], None]
    ) -> None:
        self._baseline = baseline
        self._codec = codec
        self._threads = max(1, threads)
        self._take = take
        self._missing = dict.fromkeys(baseline.pieces)
        self._groups: dict[int, _Group] = {}
        self._waiting: deque[Future[Made]] = deque()
        self._pool = ThreadPoolExecutor(self._threads, "wstore-encode")

    def add(self, piece: Piece) -> None:
        """Begin to encode a piece.

        Raises:
            InvalidArgument: it is not in the baseline, or another than before.
        """
        baseline = self._baseline
        baseline.check(piece)
        self._missing.pop(piece.name, None)
        for index in baseline.units_of[piece.name]:
            unit = baseline.units[index]
            if unit.grouped:
                group = self._groups.get(index) or _Group(unit)
                self._groups[index] = group
                if group.fill(piece):
                    del self._groups[index]
                    self._submit(index, unpack_bits(unit, group.bits))
                continue
            box = piece.box.local(unit.members[0].block)
            self._submit(index, [tensors.box_view(piece.array, box)])

    def finish(self, missing: Iterable[str] = ()) -> None:
        """Wait for all that was begun.

        Args:
            missing: tensors beside those of the encoder that did not come.

        Raises:
            InvalidArgument: a tensor of the baseline did not come.
        """
        names = sorted({*self._missing, *missing})
        if names:
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            raise InvalidArgument(
                f"tensors of the version before are missing: {', '.join(names[:10])}{more}: hand them in "
                "(unchanged ones cost nothing), or publish with full=True to begin anew without them"
            )
        self._drain(0)

    def close(self) -> None:
        """Drop what is under way. Idempotent."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, index: int, new: Sequence[Array]) -> None:
        self._waiting.append(
            self._pool.submit(encode_delta, self._baseline, index, new, codec=self._codec)
        )
        self._drain(self._threads)

    def _drain(self, most: int) -> None:
        while len(self._waiting) > most:
            self._take(self._waiting.popleft().result())


class _Group:
    """The members of a group as they come, packed."""

    def __init__(self, unit: Unit) -> None:
        self.bits: Bits = np.empty(unit.size, unit.dtype.bits)
        self._places: dict[str, list[tuple[int, int]]] = {}
        at = 0
        for number, member in enumerate(unit.members):
            self._places.setdefault(member.block.tensor, []).append((number, at))
            at += member.block.size
        self._unit = unit

    def fill(self, piece: Piece) -> bool:
        """Copy a piece's members in. Whether all have come."""
        bits = tensors.bit_view(piece.array, name=piece.name)
        places = self._places.pop(piece.name, ())
        if len(places) == 1 and bits.flags.c_contiguous and bits.size == piece.box.size:
            ((number, at),) = places
            if self._unit.members[number].block == piece.box:
                self.bits[at : at + bits.size] = bits.reshape(-1)
                return not self._places
        for number, at in places:
            block = self._unit.members[number].block
            part = self.bits[at : at + block.size].reshape(block.extent)
            np.copyto(part, tensors.box_view(bits, piece.box.local(block)))
        return not self._places
