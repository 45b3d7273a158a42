"""Whole states to frames: cut, packed, encoded over threads, handed out in order.

Threads work over blocks, never over tensors: an embedding that is half the model keeps all of them busy.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from wstore.errors import InvalidArgument
from wstore_codecs import tensors
from wstore_codecs.block import Block
from wstore_codecs.cutting import Member, cut, plan
from wstore_codecs.frame import encode_unit
from wstore_codecs.targets import as_held

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from wstore_codecs.cutting import Unit
    from wstore_codecs.frame import Frame
    from wstore_codecs.proof import Proof
    from wstore_codecs.targets import State
    from wstore_codecs.tensors import Array

    Cuts = Mapping[str, Sequence[Iterable[int]]]

T = TypeVar("T")
R = TypeVar("R")


def plan_state(state: State, *, cuts: Cuts | None = None) -> list[Unit]:
    """The units that a state is encoded in, in order: the same for the same names, shapes and cuts.

    Args:
        state: arrays by tensor name; `Held` where only a box of the tensor is here, None for nothing.
        cuts: by tensor name, positions in each dimension that no block reaches across (`cutting.cut`).

    Raises:
        InvalidArgument: an array that weights cannot be stored as, a box that leaves its tensor.
    """
    members = []
    for name, entry in state.items():
        if entry is None:
            continue
        held = as_held(entry, name=name)
        info = tensors.describe(held.array, name=name)
        box = Block(name, tuple(held.origin), info.shape)
        members += [
            (info.dtype, Member(block, tuple(held.shape)))
            for block in cut(box, cuts=(cuts or {}).get(name, ()))
        ]
    return plan(members)


def encode_state(
    new: State,
    base: State | None = None,
    *,
    codec: str = "auto",
    cuts: Cuts | None = None,
    proofs: Mapping[Unit, Proof] | None = None,
    digests: bool = False,
    threads: int = 1,
) -> Iterator[Frame]:
    """The frames of a state, one a unit, in the order of `plan_state`.

    At most `threads` + 1 frames are under way or wait to be taken, so memory is bounded however slowly they
    are. Stop taking them (close the iterator) to stop the work. The arrays must not change until the
    last frame was handed out.

    Args:
        new, base: states of equal names, dtypes, shapes and boxes; without `base`, whole weights.
        codec: for all units.
        proofs: what proves units of `base`, where that is known: the results of the frames that made them.
        digests: prove by digests, too.
        threads: how many blocks at once.

    Raises:
        InvalidArgument: as `frame.encode`, or `base` lacks a tensor.
    """
    known = proofs or {}
    units = plan_state(new, cuts=cuts)

    def one(unit: Unit) -> Frame:
        old = None if base is None else member_views(unit, base)
        proof = known.get(unit)
        return encode_unit(
            unit, member_views(unit, new), old, codec=codec, base_proof=proof, digests=digests
        )

    yield from in_order(one, units, threads=threads)


def in_order(
    work: Callable[[T], R], items: Iterable[T], *, threads: int
) -> Generator[R, None, None]:
    """What `work` makes of each item, in their order, `threads` of them at once.

    At most `threads` + 1 results are under way or wait to be taken. Close the iterator to stop.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, "wstore-codec")
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def member_views(unit: Unit, state: State) -> list[Array]:
    """The arrays of a unit's members in a state that holds all of them: views, one a member.

    Raises:
        InvalidArgument: a tensor is missing, has another shape, or is held only in part.
    """
    views = []
    for member in unit.members:
        name = member.block.tensor
        entry = state.get(name)
        if entry is None:
            raise InvalidArgument(f"tensor {name!r} is missing")
        held = as_held(entry, name=name)
        have = Block(name, tuple(held.origin), tensors.describe(held.array, name=name).shape)
        if tuple(held.shape) != member.shape or not have.contains(member.block):
            raise InvalidArgument(
                f"tensor {name!r}: {have} of {tuple(held.shape)} is held, not {member.block}"
            )
        views.append(tensors.box_view(held.array, have.local(member.block)))
    return views
