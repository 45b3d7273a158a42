"""A version that is being handed in, tensor by tensor: as a delta, or whole."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from wstore.errors import InvalidArgument
from wstore_codecs.bulk import in_order
from wstore_codecs.digest import digest_block
from wstore_transports.checkpoint.pieces import Collector, piece_of
from wstore_transports.delta.baseline import Baseline
from wstore_transports.delta.encoding import DeltaEncoder, encode_whole
from wstore_transports.delta.flat import SAFETENSORS, write_flat
from wstore_transports.delta.parts import Contents
from wstore_transports.delta.replicas import vouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore_codecs.proof import Proof
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Piece, Shard
    from wstore_transports.delta.baseline import Where
    from wstore_transports.delta.encoding import Made
    from wstore_transports.delta.parts import PartSink, Placed


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A version whose tensors may change again.

    Attributes:
        baseline: what will be the newest one once `land` was called.
        contents: for the done marker; complete once `produce` has run.
        produce: makes what is not in the sink yet.
        land: brings the baseline to the version; for once it is committed.
        changed: elements that change.
    """

    baseline: Baseline
    contents: Contents
    produce: Callable[[], None]
    land: Callable[[], None]
    changed: int


class Pending(Protocol):
    """Takes the tensors of one version."""

    def add(self, name: str, value: Array | Shard) -> None:
        """Hand a tensor in. It must not change until the version was left.

        Raises:
            InvalidArgument: it cannot be stored, comes twice, or does not fit the version before.
        """

    def finish(self) -> Prepared:
        """All were handed in: after this they may change. Raises InvalidArgument: one is missing."""

    def close(self) -> None:
        """Stop what is under way. Idempotent."""


class PendingDelta:
    """What changed against the baseline, encoded while the tensors come.

    Args:
        before_change: called with the units that a committed delta is about to change.
    """

    def __init__(
        self,
        baseline: Baseline,
        sink: PartSink,
        *,
        codec: str,
        threads: int,
        before_change: Callable[[list[int]], None],
    ) -> None:
        self._baseline = baseline
        self._sink = sink
        self._threads = threads
        self._before_change = before_change
        self._contents = Contents(baseline)
        self._changed = 0
        self._placed: dict[int, Placed] = {}
        self._results: dict[int, tuple[Proof, tuple[str, ...]]] = {}
        self._seen: set[str] = set()
        self._tied: dict[str, Piece] = {}  # aliases, and what they are tied to
        self._ties = {*baseline.aliases, *baseline.aliases.values()}
        self._encoder = DeltaEncoder(baseline, codec=codec, threads=threads, take=self._take)

    def add(self, name: str, value: Array | Shard) -> None:
        if name in self._seen:
            raise InvalidArgument(f"tensor {name!r} is given twice")
        piece = piece_of(name, value)
        self._seen.add(name)
        if name in self._ties:
            self._tied[name] = piece
        if name in self._baseline.replicas:
            self._baseline.check(piece)
            self._contents.replica(name, vouched(piece, self._baseline.cuts))
        elif name not in self._baseline.aliases:
            self._encoder.add(piece)

    def finish(self) -> Prepared:
        self._encoder.finish(set(self._baseline.replicas) - self._seen)
        for alias, stored in self._baseline.aliases.items():
            self._check_tied(alias, stored)
        self._tied.clear()  # nothing of the caller's is held from here on
        self._sink.finish()
        return Prepared(self._baseline, self._contents, _nothing, self._land, self._changed)

    def close(self) -> None:
        self._encoder.close()

    def _take(self, made: Made) -> None:
        result = made.frame.header.result
        if made.frame.unchanged or not made.frame.header.size:
            self._baseline.learn(made.index, result, made.digests)
            self._contents.same(made.index)
            return
        self._changed += made.changed
        placed = self._sink.add(made.frame)
        self._contents.stored(made, placed)
        self._placed[made.index] = placed
        self._results[made.index] = result, made.digests

    def _check_tied(self, alias: str, stored: str) -> None:
        if alias not in self._seen:
            raise InvalidArgument(
                f"tensor {alias!r}, tied to {stored!r}, is missing: hand it in, or publish with full=True"
            )
        one, other = self._tied[alias], self._tied[stored]
        self._baseline.check(one.named(stored))
        if one.array is other.array or _digest(one) == _digest(other):
            return
        raise InvalidArgument(
            f"tensors {alias!r} and {stored!r} were tied and now differ: publish with full=True to begin "
            "anew with them apart"
        )

    def _land(self) -> None:
        self._before_change(list(self._placed))
        by_part = groupby(self._placed.values(), key=lambda placed: placed.part)
        for _, placed in by_part:  # a part at a time, so that few of them are in memory
            frames = [self._sink.frame(one) for one in placed]
            self._baseline.advance(frames, threads=self._threads)
        for index, (proof, digests) in self._results.items():
            self._baseline.learn(index, proof, digests)


class PendingFull:
    """Whole weights: copied first, encoded after they were handed in.

    Args:
        make_room: called before they are copied; gives up the baseline before.
    """

    def __init__(
        self,
        sink: PartSink,
        *,
        codec: str,
        threads: int,
        where: Where,
        may_be_empty: bool,
        make_room: Callable[[], None],
    ) -> None:
        self._sink = sink
        self._codec = codec
        self._threads = threads
        self._where: Where = where
        self._may_be_empty = may_be_empty
        self._make_room = make_room
        self._collector = Collector()
        self._results: list[tuple[Proof, tuple[str, ...]]] = []

    def add(self, name: str, value: Array | Shard) -> None:
        self._collector.add(name, value)

    def finish(self) -> Prepared:
        inventory = self._collector.inventory()
        if not inventory.pieces and not self._may_be_empty:
            raise InvalidArgument("there are no tensors to publish")
        self._make_room()
        baseline = Baseline(inventory, where=self._where, threads=self._threads)
        contents = Contents(baseline)
        elements = sum(piece.box.size for piece in inventory.pieces)

        def produce() -> None:
            self._encode(baseline, contents)

        def land() -> None:
            for index, (proof, digests) in enumerate(self._results):
                baseline.learn(index, proof, digests)

        return Prepared(baseline, contents, produce, land, elements)

    def close(self) -> None:
        return

    def _encode(self, baseline: Baseline, contents: Contents) -> None:
        if self._codec == SAFETENSORS:
            self._sink.place(write_flat(baseline, lambda piece: piece, self._sink.to, contents))
            return

        def one(index: int) -> Made:
            return encode_whole(baseline, index, codec=self._codec)

        with closing(in_order(one, range(len(baseline.units)), threads=self._threads)) as all_made:
            for made in all_made:
                contents.stored(made, self._sink.add(made.frame))
                self._results.append((made.frame.header.result, made.digests))


def _nothing() -> None:
    """A delta is encoded by the time it was handed in."""


def _digest(piece: Piece) -> str:
    return digest_block(piece.array, piece.shape, piece.box.origin, name=piece.name).hex
