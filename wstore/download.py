"""Reading one object with one or many ranged requests, all from one content of it."""

from __future__ import annotations

import io
import mmap
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore import ranges as planning
from wstore.buffers import writable_bytes
from wstore.errors import InvalidArgument, ObjectChanged, StoreError
from wstore.stores.base import capabilities_at
from wstore.transfer import check_cancel, run_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.buffers import WritableBuffer
    from wstore.stores.base import ObjectInfo, Read, Store

# A request on a store far away costs what about so many bytes cost: reading across is cheaper.
MAX_GAP = 512 << 10
# From here on memory is mapped: the kernel zeroes it page by page, where it is used.
_MAPPED = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read; None: the store's own figure. See `StoragePath.read_ranges`."""

    max_gap: int | None = None
    request_size: int | None = None
    concurrency: int | None = None
    tag: str | None = None
    cancel: threading.Event | None = None

    def resolve(self, store: Store, key: str) -> tuple[int, int]:
        """(request size, concurrency). Raises InvalidArgument where one is not positive."""
        capabilities = capabilities_at(store, key)
        request_size = (
            capabilities.request_bytes if self.request_size is None else self.request_size
        )
        concurrency = capabilities.concurrency if self.concurrency is None else self.concurrency
        if request_size < 1 or concurrency < 1:
            raise InvalidArgument(
                f"request_size {request_size} and concurrency {concurrency} must be positive"
            )
        return request_size, concurrency


DEFAULT = ReadOptions()


class _Object:
    """One object being read in many requests: the first reply pins the content, all others must be of
    the same. Requests sent before that reply are checked when they return."""

    def __init__(self, store: Store, key: str, tag: str | None) -> None:
        self._store = store
        self._key = key
        self._lock = threading.Lock()
        self.tag = tag
        self.info: ObjectInfo | None = None

    @property
    def url(self) -> str:
        return f"{self._store.url}/{self._key}"

    def stat(self) -> ObjectInfo:
        """Pin the present content, without reading."""
        info = self._store.stat(self._key)
        self._pin(info)
        return info

    def read(self, offset: int, length: int, buffer: memoryview | None = None) -> Read | None:
        """One request. None where the end is known to lie before `offset`."""
        if self.info is not None and offset >= self.info.size:
            return None
        read = self._store.read(self._key, offset, length, buffer=buffer, tag=self.tag)
        self._pin(read.info)
        expected = max(0, min(length, read.info.size - offset))
        if len(read.data) != expected:
            raise StoreError(
                f"the store gave {len(read.data)} bytes for [{offset}, {offset + length}) "
                f"of an object of {read.info.size}",
                url=self.url,
            )
        return read

    def _pin(self, info: ObjectInfo) -> None:
        with self._lock:
            if self.tag is None:
                self.tag = info.tag
            if self.info is None:
                self.info = info
        if info.tag != self.tag:
            raise ObjectChanged(
                f"replaced while it was read (tag {info.tag}, expected {self.tag}); read it again",
                url=self.url,
            )


def read_all(store: Store, key: str, *, cancel: threading.Event | None = None) -> bytes:
    """The whole object."""
    return read_range(store, key, 0, sys.maxsize, cancel=cancel)


def read_range(
    store: Store,
    key: str,
    offset: int,
    length: int,
    *,
    tag: str | None = None,
    cancel: threading.Event | None = None,
) -> bytes:
    """Bytes [offset, offset + length); one request where they fit one, else the rest in parallel.

    The first request tells the size, so no memory is taken for what the object does not hold.
    """
    planning.check_range(offset, length)
    check_cancel(cancel)
    if length == 0:
        return b""
    request_size, concurrency = ReadOptions().resolve(store, key)
    source = _Object(store, key, tag)
    first = source.read(offset, min(length, request_size))
    assert first is not None
    assert source.info is not None
    total = max(0, min(length, source.info.size - offset))
    if len(first.data) == total:
        return _as_bytes(first.data)
    # A BytesIO takes over the (not yet touched) bytes object, lends it as a buffer, and gives it back,
    # all without a copy.
    memory = io.BytesIO(bytes(total))
    with memory.getbuffer() as view:
        start = len(first.data)
        view[:start] = first.data
        del first
        _fill(source, view[start:], offset + start, request_size, concurrency, cancel)
    return memory.getvalue()


def read_into(
    store: Store, key: str, buffer: WritableBuffer, offset: int, *, options: ReadOptions = DEFAULT
) -> int:
    """Fill `buffer` from byte `offset` of the object on; returns the bytes read."""
    view = writable_bytes(buffer)
    planning.check_range(offset, len(view))
    check_cancel(options.cancel)
    if len(view) == 0:
        return 0
    request_size, concurrency = options.resolve(store, key)
    source = _Object(store, key, options.tag)
    return _fill(source, view, offset, request_size, concurrency, options.cancel)


def _fill(
    source: _Object,
    view: memoryview,
    offset: int,
    request_size: int,
    concurrency: int,
    cancel: threading.Event | None,
) -> int:
    """Fill `view` with the object's bytes from `offset` on, in parallel."""
    length = len(view)

    def work(index: int) -> None:
        start = index * request_size
        end = min(start + request_size, length)
        source.read(offset + start, end - start, view[start:end])

    run_parallel(-(-length // request_size), work, concurrency=concurrency, cancel=cancel)
    assert source.info is not None
    return max(0, min(length, source.info.size - offset))


def read_ranges(
    store: Store, key: str, ranges: Sequence[tuple[int, int]], *, options: ReadOptions = DEFAULT
) -> list[memoryview]:
    """Each range's bytes, read-only, in the order asked."""
    request_size, concurrency = options.resolve(store, key)
    max_gap = MAX_GAP if options.max_gap is None else options.max_gap
    plan = planning.plan(ranges, max_gap=max_gap, request_size=request_size)
    check_cancel(options.cancel)
    source = _Object(store, key, options.tag)
    # Ranges longer than a request get memory of their own, so the size must be known before.
    size = sys.maxsize
    if any(span.length > request_size for span in plan.spans):
        size = source.stat().size
    job = _RangesJob(source, plan, request_size, size)
    if options.concurrency is None:
        concurrency = _in_flight(store, job.requests)
    run_parallel(len(job.requests), job.work, concurrency=concurrency, cancel=options.cancel)
    return job.results()


def _in_flight(store: Store, requests: Sequence[tuple[int, int, int]]) -> int:
    """How many of these requests to have under way: as many bytes as with full-sized ones, since small
    ones spend their time waiting for the network and, in a busy interpreter, for its lock."""
    capabilities = store.capabilities
    largest = max((length for _, _, length in requests), default=1)
    fitting = capabilities.concurrency * capabilities.request_bytes // largest
    return max(capabilities.concurrency, min(capabilities.small_concurrency, fitting))


class _RangesJob:
    """Executes a plan: one request a short span, several into shared memory for a long one."""

    def __init__(self, source: _Object, plan: planning.Plan, request_size: int, size: int) -> None:
        self._source = source
        self._plan = plan
        self._data: list[memoryview] = [memoryview(b"")] * len(plan.spans)
        self._results: list[memoryview] = [memoryview(b"")] * len(plan.placements)
        self._members: list[list[int]] = [[] for _ in plan.spans]
        for index, placement in enumerate(plan.placements):
            if placement is not None:
                self._members[placement.span].append(index)
        self.requests: list[tuple[int, int, int]] = []
        for number, span in enumerate(plan.spans):
            if span.length <= request_size:
                self.requests.append((number, span.offset, span.length))
            elif span.offset < size:
                length = min(span.length, size - span.offset)
                self._data[number] = allocate(length)
                pieces = planning.split(span.offset, length, request_size)
                self.requests.extend((number, at, count) for at, count in pieces)

    def work(self, index: int) -> None:
        number, offset, length = self.requests[index]
        span = self._plan.spans[number]
        memory = self._data[number]
        if memory:
            start = offset - span.offset
            self._source.read(offset, length, memory[start : start + length])
            return
        read = self._source.read(offset, length)
        if read is None:
            return
        if span.wanted * 2 >= span.length:
            self._data[number] = read.data
        else:  # mostly gaps: keep only what was asked, not the whole reply
            for member in self._members[number]:
                self._results[member] = memoryview(bytes(self._slice(member, read.data)))

    def results(self) -> list[memoryview]:
        for number, data in enumerate(self._data):
            if data:
                shared = data.toreadonly()
                for member in self._members[number]:
                    self._results[member] = self._slice(member, shared)
        return self._results

    def _slice(self, member: int, data: memoryview) -> memoryview:
        placement = self._plan.placements[member]
        assert placement is not None
        return data[placement.start : placement.start + placement.length]


def allocate(length: int) -> memoryview:
    """Writable memory; a large one is mapped, so that it costs nothing before it is filled."""
    if length < _MAPPED:
        return memoryview(bytearray(length))
    memory = mmap.mmap(-1, length)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _as_bytes(data: memoryview) -> bytes:
    owner = data.obj
    if type(owner) is bytes and len(owner) == len(data):
        return owner
    return bytes(data)
