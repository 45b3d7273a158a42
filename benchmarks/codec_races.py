"""The races of the codecs: who ships a step faster, and how near the kernels are to the machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import ml_dtypes
import numpy as np

from benchmarks.codec_peers import BLOCK, PlainZstd, WStore
from benchmarks.racing import Contender, Row, race
from wstore_codecs.apply import apply
from wstore_codecs.changes import Rule, find
from wstore_codecs.digest import digest_flat
from wstore_codecs.digest_plan import index_map
from wstore_codecs.frame import Frame, decode, encode
from wstore_codecs.jit import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.codec_data import Step
    from benchmarks.codec_peers import Peer
    from wstore_codecs.tensors import Bits, HostArray

    Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

T = TypeVar("T")

THREADS = 2
COPIES = 2


@dataclass(frozen=True, slots=True)
class Races:
    """All races over one step; `rounds` of each."""

    step: Step
    rounds: int
    seed: int

    def shipping(self, peers: Sequence[Peer], slow: Peer) -> dict[str, dict[str, Row]]:
        """Encode, and decode and apply. `slow` runs once, and takes no part in the order."""
        made: dict[str, list[bytes]] = {}
        encode = self._race("encode", [self._encode(peer, made) for peer in peers])
        encode |= self._once("encode", self._encode(slow, made))
        apply = self._race("apply", [self._apply(peer, made[peer.name]) for peer in peers])
        apply |= self._once("apply", self._apply(slow, made[slow.name]))
        return {"encode": encode, "apply": apply}

    def _encode(self, peer: Peer, made: dict[str, list[bytes]]) -> Contender[list[bytes]]:
        def keep(bodies: list[bytes]) -> None:
            made[peer.name] = bodies  # checked when they are applied

        return Contender(peer.name, lambda: peer.encode(self.step.new, self.step.base), keep)

    def _apply(self, peer: Peer, bodies: list[bytes]) -> Contender[Bits]:
        state = self.step.base.copy()

        def run() -> Bits:
            peer.apply(bodies, state)
            return state

        return Contender(peer.name, run, self._check_and_restore)

    def _check_and_restore(self, state: Bits) -> None:
        if not np.array_equal(state, self.step.new):
            raise SystemExit("an apply does not give the new weights")
        state[:] = self.step.base

    def threads(self) -> dict[str, Row]:
        """The default's apply to two tensors, so that the blocks divide evenly, by threads."""
        names = [f"tensor {number}" for number in range(COPIES)]
        frames = [
            Frame.parse(body)
            for name in names
            for body in WStore(name, "auto").encode(self.step.new, self.step.base)
        ]
        state = {name: self.step.base.copy().view(ml_dtypes.bfloat16) for name in names}

        def run(threads: int) -> None:
            apply(frames, state, threads=threads)

        def check(_: None) -> None:
            for array in state.values():
                self._check_and_restore(array.view(np.uint16))

        contenders = [
            Contender("1 thread", partial(run, 1), check),
            Contender(f"{THREADS} threads", partial(run, THREADS), check),
        ]
        return self._race("threads", contenders, share=COPIES)

    def planes_encode(self) -> dict[str, Row]:
        """Whole weights, without a base."""
        plain, new = PlainZstd(), self.step.new

        def check(made: Sequence[object]) -> None:
            if not made:
                raise SystemExit("nothing was made")

        contenders: list[Contender[Sequence[object]]] = [
            Contender("planes", self._planes, check),
            Contender(plain.name, partial(plain.encode, new), check),
        ]
        return self._race("planes encode", contenders)

    def planes_decode(self) -> dict[str, Row]:
        """Whole weights into memory that is there already."""
        plain, new = PlainZstd(), self.step.new
        frames, bodies, out = self._planes(), plain.encode(new), np.zeros_like(new)
        blocks = [_bf16(block) for block in _blocks(out)]

        def ours() -> None:
            for frame, block in zip(frames, blocks, strict=True):
                decode(frame, None, block)

        def check(_: None) -> None:
            if not np.array_equal(out, new):
                raise SystemExit("a decode does not give the weights")
            out[:] = 0

        contenders = [
            Contender("planes", ours, check),
            Contender(plain.name, partial(plain.decode, bodies, out), check),
        ]
        return self._race("planes decode", contenders)

    def planes_ratio(self) -> dict[str, float]:
        """Bytes of dense bf16 over those of its frames."""
        stored = sum(frame.nbytes for frame in self._planes())
        return {"planes_ratio": self.step.new.nbytes / stored}

    def _planes(self) -> list[Frame]:
        return [encode(_bf16(block), codec="planes") for block in _blocks(self.step.new)]

    def detect(self) -> dict[str, Row]:
        """What changed, block by block on two threads, against reading both versions and no more."""
        pairs = list(zip(_blocks(self.step.base), _blocks(self.step.new), strict=True))
        with ThreadPoolExecutor(THREADS) as pool:

            def detect() -> int:
                return sum(pool.map(_count_changes, pairs))

            def read() -> int:
                return sum(pool.map(_sum_words, pairs))

            total = read()
            contenders = [
                Contender("detect", detect, partial(_check_equal, self.step.changed)),
                Contender("read only", read, partial(_check_equal, total)),
            ]
            return self._race("detect", contenders, share=2)

    def digest(self) -> dict[str, Row]:
        """The additive digest on one thread, against a copy of the same bytes."""
        new, target = self.step.new, np.zeros_like(self.step.new)
        spread = index_map(new.shape, None, None, tensor="")
        want = digest_flat(new, spread)

        def check(found: object) -> None:
            if found not in (want, None):
                raise SystemExit("two digests of the same weights differ")

        contenders: list[Contender[object]] = [
            Contender("digest", partial(digest_flat, new, spread), check),
            Contender("memcpy", partial(np.copyto, target, new), check),
        ]
        return self._race("digest", contenders)

    def _race(
        self, case: str, contenders: Sequence[Contender[T]], *, share: int = 1
    ) -> dict[str, Row]:
        nbytes = share * self.step.new.nbytes
        return race(case, contenders, nbytes=nbytes, rounds=self.rounds, seed=self.seed)

    def _once(self, case: str, contender: Contender[T]) -> dict[str, Row]:
        nbytes = self.step.new.nbytes
        return race(case, [contender], nbytes=nbytes, rounds=1, seed=self.seed, warm_up=False)


def _blocks(bits: Bits) -> Iterator[Bits]:
    return (bits[at : at + BLOCK] for at in range(0, bits.size, BLOCK))


def _count_changes(pair: tuple[Bits, Bits]) -> int:
    return find(*pair, Rule.ORDINAL).count


def _sum_words(pair: tuple[Bits, Bits]) -> int:
    words = [bits.view(np.uint64) for bits in pair]
    for array in words:
        array.flags.writeable = False
    kind = "Array(uint64, 1, 'C', readonly=True)"
    return int(compiled(_sum, f"uint64({kind}, {kind})")(*words))


def _sum(one: Words, other: Words) -> np.uint64:
    total = np.uint64(0)
    for i in range(one.size):
        total += one[i] + other[i]
    return total


def _check_equal(want: int, found: int) -> None:
    if found != want:
        raise SystemExit(f"{found} where {want} is right")


def _bf16(bits: Bits) -> HostArray:
    return bits.view(ml_dtypes.bfloat16)
