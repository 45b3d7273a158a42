"""Parts that are read while the version that they belong to is still being written.

Nothing here is believed: frames are taken from what was read ahead only where the manifest of the committed
version names the same bytes by their hash. What belongs to an attempt that is not committed is dropped.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wstore.errors import IntegrityError, NotFound
from wstore_codecs.frame import Frame
from wstore_codecs.part import TAIL, index_range, parse_index
from wstore_transports.versions import layout
from wstore_transports.versions.documents import ObjectRef, Open
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from wstore.path import StoragePath
    from wstore_codecs.part import Row
    from wstore_transports.delta.shared_cache import SharedCache
    from wstore_transports.delta.spool import Kept, Spool
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions.place import Place

    Prepare = Callable[[Sequence[Frame]], Sequence[Frame]]

_log = logging.getLogger("wstore.delta")

MAX_PART_BYTES = 64 << 20
"""Larger objects are left for after the commit."""

_AT_ONCE = 4
_TAIL_BYTES = 64 << 10  # usually holds all of an index


@dataclass(slots=True, eq=False)
class PartAhead:
    """What was read of an object.

    Attributes:
        hash: xxh3-128 of all its bytes, 32 hex digits; "" where only some were read.
        pieces: bytes from an offset on.
        ready: by offset, frames that are parsed and prepared.
    """

    hash: str
    pieces: list[tuple[int, Kept]] = field(default_factory=list)
    ready: dict[int, Frame] = field(default_factory=dict)

    def proves(self, ref: ObjectRef) -> bool:
        """Whether these are all bytes of that object: then each of its frames is proven. Of what was spilled
        nobody knows what the file holds now."""
        spilled = any(kept.spilled for _, kept in self.pieces)
        return bool(self.hash) and self.hash == ref.hash and not spilled

    def views(self) -> list[tuple[int, memoryview]]:
        """The pieces, ascending; those that were spilled are read back. Raises IntegrityError."""
        return [(offset, kept.data()) for offset, kept in self.pieces]

    def drop(self) -> None:
        """Give the room back. Views that were handed out stay good."""
        for _, kept in self.pieces:
            kept.drop()
        self.pieces.clear()
        self.ready.clear()


class Ahead:
    """Reads the parts of one attempt as they appear, into the spool.

    `look` and `close` are for one thread.

    Args:
        directory: of the attempt, relative to the root.
        holding: what the reader holds; other frames are not read.
        cache: through which this host's engines read; None: each for itself.
        prepare: makes the frames ready to be applied, as far as that can be done before the commit.
    """

    def __init__(
        self,
        place: Place,
        directory: str,
        holding: Holding,
        spool: Spool,
        *,
        cache: SharedCache | None,
        prepare: Prepare,
    ) -> None:
        self.directory = directory
        self._place = place
        self._holding = holding
        self._spool = spool
        self._cache = cache
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(_AT_ONCE, "wstore-ahead")
        self._reads: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._found: dict[str, PartAhead] = {}  # by object
        self._closed = threading.Event()
        self.complete = False

    def look(self) -> None:
        """List the attempt's directory and begin to read the parts that are new. One request.

        A listing that lags costs time only: what it lacks is read after the commit.
        """
        try:
            entries = list(self._place.object(self.directory).iterdir())
        except NotFound:
            return
        for path in entries:
            if path.name == layout.MANIFEST:
                self.complete = True
            elif is_part(path.name) and path.name not in self._reads:
                self._reads[path.name] = self._pool.submit(self._read, path)

    def part(self, name: str) -> PartAhead | None:
        """What was read ahead of an object (its name relative to the root). Waits for a read of it that is
        under way."""
        prefix = self.directory + "/"
        read = self._reads.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if read is None:
            return None
        read.result()
        return self._found.get(name)

    def close(self) -> None:
        """Drop all. Views that were handed out stay good. Idempotent."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for part in self._found.values():
                part.drop()
            self._found.clear()

    def _read(self, path: StoragePath) -> None:
        name = f"{self.directory}/{path.name}"
        try:
            size = path.stat().size
            if size > MAX_PART_BYTES:
                return
            if self._cache is not None:
                self._take_part(name, self._read_cached(self._cache, path, name, size))
            elif not self._holding:
                data = path.read_range(0, size, cancel=self._closed)
                self._take_part(name, memoryview(data))
            else:
                self._read_some(path, name, size)
        except Exception as error:  # noqa: BLE001
            _log.debug("not read ahead, but after the commit: %s", error)

    def _take_part(self, name: str, data: memoryview) -> None:
        """A whole part."""
        self._keep(name, [(0, data)], xxhash.xxh3_128_hexdigest(data))
        first, stop = index_range(data[-TAIL:], len(data))
        rows = [row for row in parse_index(data[first:stop], data[-TAIL:]) if self._wants(row)]
        self._make_ready(name, [(row, data[row.offset : row.offset + row.nbytes]) for row in rows])

    def _make_ready(self, name: str, found: Sequence[tuple[Row, memoryview]]) -> None:
        """Parse and prepare frames. They are proven to be the manifest's after the commit."""
        frames = []
        for row, data in found:
            frame = Frame.parse_proven(data)
            row.check(frame)
            frames.append(frame)
        ready = self._prepare(frames)
        with self._lock:
            if not self._closed.is_set():
                offsets = (row.offset for row, _ in found)
                self._found[name].ready.update(zip(offsets, ready, strict=True))

    def _read_cached(
        self, cache: SharedCache, path: StoragePath, name: str, size: int
    ) -> memoryview:
        """Whole, so that it is at hand for all engines of this host. Its hash is not known yet."""
        ref = ObjectRef(name=name, size=size)
        data = np.empty(size, np.uint8).data

        def fetch(memory: memoryview) -> int:
            return path.read_into(memory, cancel=self._closed)

        with cache.open(self._place.root_id, ref, fetch, cancel=self._closed) as cached:
            cached.read_into(data)
        return data

    def _read_some(self, path: StoragePath, name: str, size: int) -> None:
        """Only the frames that the reader holds something of."""
        start = max(0, size - _TAIL_BYTES)
        end = memoryview(path.read_range(start, size - start, cancel=self._closed))
        first, stop = index_range(end[-TAIL:], size)
        index = (
            end[first - start : stop - start]
            if first >= start
            else memoryview(path.read_range(first, stop - first, cancel=self._closed))
        )
        wanted = [row for row in parse_index(index, end[-TAIL:]) if self._wants(row)]
        ranges = [(row.offset, row.nbytes) for row in wanted]
        replies = path.read_ranges(ranges, cancel=self._closed)
        found = list(zip(wanted, replies, strict=True))
        self._keep(name, [(row.offset, data) for row, data in found], "")
        self._make_ready(name, found)

    def _wants(self, row: Row) -> bool:
        if row.member is None:
            return True
        block = row.member.block
        if block.tensor not in self._holding:
            return True
        box = self._holding[block.tensor]
        return box is not None and block.clip(box) is not None

    def _keep(self, name: str, pieces: Sequence[tuple[int, memoryview]], found_hash: str) -> None:
        part = PartAhead(found_hash)
        try:
            for offset, data in pieces:
                part.pieces.append((offset, self._spool.keep(data)))
        except BaseException:
            part.drop()
            raise
        with self._lock:
            if self._closed.is_set():
                part.drop()
            else:
                self._found[name] = part


def read_open(place: Place, directory: str) -> Open | None:
    """What an attempt announces; None where that cannot be read (yet)."""
    try:
        return read_document(Open, place.object(directory) / layout.OPEN, root=place.root_id)
    except (NotFound, IntegrityError) as error:
        _log.debug("no attempt to read ahead: %s", error)
        return None


def is_part(name: str) -> bool:
    """Whether a file of an attempt is a part of a version."""
    head, _, tail = name.partition(".p")
    return layout.owner_rank(name) is not None and head.count(".") == 0 and tail.isdigit()
