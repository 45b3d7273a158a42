"""Reads blocks of a version into targets: planned first, then many requests at once, each verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import IntegrityError
from wstore.progress import Tally
from wstore.transfer import run_parallel
from wstore_codecs.block import Block
from wstore_codecs.frame import Frame, decode_unit, member_digests
from wstore_transports.checkpoint.placement import MAX_BLOCK_BYTES, cut_blocks
from wstore_transports.versions.block_source import touched

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_transports.checkpoint.targets import Target
    from wstore_transports.versions import documents
    from wstore_transports.versions.copies import Copies

MAX_GAP = 64 << 10
"""Unwanted bytes that one request may read between two wanted blocks."""

DIRECT_FROM = 1 << 20
"""Blocks from this size on are read straight into the target; smaller ones share requests."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """One stored block that a target needs.

    Attributes:
        target: who needs it.
        box: where it lies in the tensor.
        object: index into the manifest's objects.
        offset, nbytes: where in the object.
        hash: xxh3-128 of its bytes; "" when nobody recorded one.
        digest: of the block's values; "" when nobody recorded one.
        framed: whether the bytes are a codec frame, which may hold further blocks.
        place: the target's memory for all of it; None when it must be staged and copied.
    """

    target: Target
    box: Block
    object: int
    offset: int
    nbytes: int
    hash: str
    digest: str
    framed: bool
    place: memoryview | None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One ranged read: the bytes [offset, offset + nbytes) of an object, and who gets which of them."""

    object: int
    offset: int
    nbytes: int
    fetches: tuple[Fetch, ...]

    @property
    def place(self) -> memoryview | None:
        """Memory of a target that takes the whole reply, else None."""
        return self.fetches[0].place if len(self.fetches) == 1 else None

    @property
    def memory(self) -> int:
        """Bytes that carrying it out takes: the reply, and the largest frame decoded."""
        decoded: dict[int, int] = {}
        for fetch in self.fetches:
            if fetch.framed:
                size = fetch.box.size * fetch.target.itemsize
                decoded[fetch.offset] = decoded.get(fetch.offset, 0) + size
        return self.nbytes + max(decoded.values(), default=0)


def plan(targets: Sequence[Target]) -> list[Request]:
    """The reads that fill all targets. Near small blocks share one; the order is that of the objects.

    Raises:
        IntegrityError: the manifest's blocks do not cover a target, or are of an unknown encoding.
    """
    fetches = sorted(
        (fetch for target in targets for fetch in _fetches(target)),
        key=lambda fetch: (fetch.object, fetch.offset),
    )
    requests: list[Request] = []
    group: list[Fetch] = []
    for fetch in fetches:
        if group and not _joins(group, fetch):
            requests.append(_request(group))
            group = []
        group.append(fetch)
    if group:
        requests.append(_request(group))
    return requests


def _fetches(target: Target) -> Iterator[Fetch]:
    covered = 0
    for stored, box, common in touched(target.tensor, target.box):
        flat = stored.encoding == "flat" and stored.nbytes == box.size * target.itemsize
        if not flat and stored.encoding != "frame":
            raise IntegrityError(
                f"tensor {target.name!r}: block at {box.origin} is neither plain bytes nor a frame"
            )
        covered += common
        yield from _cut(target, box, stored)
    if covered != target.box.size:
        raise IntegrityError(
            f"tensor {target.name!r}: the manifest's blocks hold {covered} of {target.box.size} elements"
        )


def _cut(target: Target, box: Block, stored: documents.Block) -> Iterator[Fetch]:
    """The block; what has no hash can be cut further, so less is read and staged."""
    offset = stored.offset
    if stored.hash:
        framed = stored.encoding == "frame"
        place = None if framed else target.place(box)
        yield Fetch(
            target,
            box,
            stored.object,
            offset,
            stored.nbytes,
            stored.hash,
            stored.digest,
            framed,
            place,
        )
        return
    for part in cut_blocks(box, target.itemsize):
        nbytes = part.size * target.itemsize
        if target.box.clip(part) is not None:
            place = target.place(part)
            yield Fetch(target, part, stored.object, offset, nbytes, "", "", False, place)
        offset += nbytes


def _joins(group: Sequence[Fetch], fetch: Fetch) -> bool:
    first, last = group[0], group[-1]
    if fetch.framed and (fetch.object, fetch.offset) == (last.object, last.offset):
        return True  # members of one group: its frame is read once, however large it is
    if first.object != fetch.object or any(
        f.place is not None and f.nbytes >= DIRECT_FROM for f in (first, fetch)
    ):
        return False
    end = max(last.offset + last.nbytes, fetch.offset + fetch.nbytes)
    return fetch.offset - (last.offset + last.nbytes) <= MAX_GAP and (
        end - first.offset <= MAX_BLOCK_BYTES
    )


def _request(group: list[Fetch]) -> Request:
    end = max(fetch.offset + fetch.nbytes for fetch in group)
    offset = group[0].offset
    return Request(group[0].object, offset, end - offset, tuple(group))


class Fetcher:
    """Carries requests out against one version's objects."""

    def __init__(
        self,
        objects: Sequence[Copies],
        *,
        verify: bool,
        budget: int,
        progress: Progress | None,
        cancel: threading.Event | None,
    ) -> None:
        self._objects = objects
        self._verify = verify
        self._budget = budget
        self._progress = progress
        self._cancel = cancel

    def read(self, requests: Sequence[Request]) -> None:
        """Fill the targets, directly where they can take a reply as it comes."""
        self._each(requests, self._read_one)

    def check(self, requests: Sequence[Request]) -> None:
        """Read everything within the budget and verify it; touch no target."""
        self._each(
            requests,
            lambda request: self._take(request, np.empty(request.nbytes, np.uint8).data),
        )

    def stage(self, requests: Sequence[Request]) -> list[memoryview]:
        """Read and verify everything into new memory, in the order of `requests`; touch no target."""
        staged = [np.empty(request.nbytes, np.uint8).data for request in requests]
        places = {id(request): place for request, place in zip(requests, staged, strict=True)}
        self._each(requests, lambda request: self._take(request, places[id(request)]))
        return staged

    def _each(self, requests: Sequence[Request], work: Callable[[Request], None]) -> None:
        if not requests:
            return
        largest = max(request.memory for request in requests)
        most = self._objects[requests[0].object].concurrency
        counter = Tally(self._progress, sum(request.nbytes for request in requests))

        def one(index: int) -> None:
            work(requests[index])
            counter.add(requests[index].nbytes)

        width = max(1, min(most, self._budget // max(1, largest)))
        run_parallel(len(requests), one, concurrency=width, cancel=self._cancel)

    def _read_one(self, request: Request) -> None:
        if request.place is not None:
            self._take(request, request.place)
            return
        data = np.empty(request.nbytes, np.uint8).data
        self._take(request, data)
        put(request, data)

    def _take(self, request: Request, memory: memoryview) -> None:
        copies = self._objects[request.object]
        copies.read(lambda path: self._take_from(path, request, memory), self._cancel)

    def _take_from(self, path: StoragePath, request: Request, memory: memoryview) -> None:
        got = path.read_into(memory, request.offset, cancel=self._cancel)
        names = request.fetches[0].target.name
        if got != request.nbytes:
            raise IntegrityError(
                f"tensor {names!r}: the object ends at byte {request.offset + got}, "
                f"{request.nbytes - got} bytes before the tensor does",
                url=path.url,
            )
        if not self._verify:
            return
        checked = -1
        for fetch in request.fetches:
            if fetch.framed and fetch.offset == checked:
                continue  # the members of a group share its frame
            checked = fetch.offset
            data = _part(request, fetch, memory)
            if fetch.hash and xxhash.xxh3_128_hexdigest(data) != fetch.hash:
                raise IntegrityError(
                    f"tensor {fetch.target.name!r}: bytes {fetch.offset} to "
                    f"{fetch.offset + fetch.nbytes} do not have the hash that the manifest gives",
                    url=path.url,
                )


def put(request: Request, data: memoryview) -> None:
    """Copy a staged reply into the targets; frames are decoded, each once.

    Raises:
        IntegrityError: a frame that is damaged, or holds something else than the manifest says.
    """
    framed: list[Fetch] = []
    for fetch in request.fetches:
        if framed and (not fetch.framed or fetch.offset != framed[0].offset):
            _put_frame(request, framed, data)
            framed = []
        if fetch.framed:
            framed.append(fetch)
        else:
            fetch.target.put(fetch.box, _part(request, fetch, data))
    if framed:
        _put_frame(request, framed, data)


def _put_frame(request: Request, fetches: Sequence[Fetch], data: memoryview) -> None:
    frame = Frame.parse(_part(request, fetches[0], data))
    unit = frame.header.unit
    name = fetches[0].target.name
    if frame.header.base is not None:
        raise IntegrityError(
            f"tensor {name!r}: its frame is a delta, where whole weights should be"
        )
    arrays = decode_unit(frame)
    digests = (digest.hex for digest in member_digests(frame, arrays))
    members = {
        member.block: (member.shape, array, digest)
        for member, array, digest in zip(unit.members, arrays, digests, strict=True)
    }
    for fetch in fetches:
        target = fetch.target
        box = Block(target.name, fetch.box.origin, fetch.box.extent)
        shape, array, digest = members.get(box, ((), None, ""))
        kind = (unit.dtype.name, list(shape), digest)
        told = (target.tensor.dtype, target.tensor.shape, fetch.digest or digest)
        if array is None or kind != told:
            raise IntegrityError(
                f"tensor {target.name!r}: its frame holds something else than the manifest says"
            )
        target.put(fetch.box, array.reshape(-1).view(np.uint8).data)


def _part(request: Request, fetch: Fetch, data: memoryview) -> memoryview:
    start = fetch.offset - request.offset
    return data[start : start + fetch.nbytes]
