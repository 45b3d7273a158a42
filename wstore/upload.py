"""Writing one object: in one atomic request where it is small, else in pieces, published at the end."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore import checksums, telemetry
from wstore.errors import InvalidArgument, UnsupportedOperation, WStoreError
from wstore.pieces import PIECE, largest_object, plan_pieces
from wstore.progress import Tally
from wstore.sources import MemorySource, ObjectSource, Sized, open_source
from wstore.stores.base import Copy, Expect, MiB, Multipart
from wstore.transfer import check_cancel, run_parallel

if TYPE_CHECKING:
    import threading

    from wstore.progress import Progress
    from wstore.sources import Data
    from wstore.stores.base import Capabilities, ObjectInfo, Store, Upload

_log = logging.getLogger(__name__)

MEMORY_BUDGET = 256 * MiB
ONE_REQUEST = 16 * MiB  # up to here one PUT is quicker than the requests around a piecewise upload
_DIGEST_CHUNK = 8 * MiB


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write; see `StoragePath.write_file`."""

    if_absent: bool = False
    if_match: str | None = None
    piece_size: int | None = None
    concurrency: int | None = None
    checksum: str | None = None
    progress: Progress | None = None
    max_memory: int = MEMORY_BUDGET
    cancel: threading.Event | None = None

    def __post_init__(self) -> None:
        if self.if_absent and self.if_match is not None:
            raise InvalidArgument("if_absent and if_match exclude each other")
        for name, value in (
            ("piece_size", self.piece_size),
            ("concurrency", self.concurrency),
            ("max_memory", self.max_memory),
        ):
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} is {value}; it must be positive")
        if self.checksum is not None:
            checksums.digest_for(self.checksum)

    @property
    def expect(self) -> Expect | str:
        if self.if_absent:
            return Expect.ABSENT
        return Expect.ANY if self.if_match is None else self.if_match

    @property
    def conditional(self) -> bool:
        return self.expect is not Expect.ANY

    def width(self, capabilities: Capabilities, piece: int) -> int:
        """How many pieces of that size may be in flight; at least one."""
        wanted = capabilities.concurrency if self.concurrency is None else self.concurrency
        return max(1, min(wanted, self.max_memory // max(1, piece)))


def write_file(store: Store, key: str, data: Data, options: WriteOptions) -> ObjectInfo:
    """Make the object from whatever holds its bytes."""
    from wstore.streaming import StreamWriter

    check_cancel(options.cancel)
    with telemetry.span("write", _url(store, key)) as operation:
        source = open_source(data)
        if not isinstance(source, MemorySource | ObjectSource):
            with StreamWriter(store, key, options) as writer:
                for chunk in source:
                    writer.write(chunk)
                info = writer.commit()
        else:
            info = _write_sized(store, key, source, options)
        operation.nbytes = info.size
    return info


def copy(
    store: Store, key: str, target: Store, target_key: str, options: WriteOptions
) -> ObjectInfo:
    """Copy an object, inside the store where it can."""
    with telemetry.span("copy", _url(store, key)) as operation:
        copier = store.feature(Copy) if store is target else None
        if copier is not None:
            info = copier.copy(key, target_key)
            Tally(options.progress, info.size).add(info.size)
        else:
            info = _write_sized(target, target_key, ObjectSource(store, key), options)
        operation.nbytes = info.size
    return info


def write_once(store: Store, key: str, data: memoryview, options: WriteOptions) -> ObjectInfo:
    """One atomic request, stamped with an id if it is conditional, so that a lost answer is settled."""
    write_id = os.urandom(16).hex() if options.conditional else None
    return store.write(key, data, expect=options.expect, write_id=write_id)


def require_one_request(store: Store, key: str, size: int, options: WriteOptions) -> None:
    """Raises UnsupportedOperation for a conditional write too large for one request in memory."""
    limit = conditional_limit(store, options)
    if size > limit:
        raise UnsupportedOperation(
            f"a conditional write of {size} bytes: at most {limit} can be created or replaced in one "
            "request; write the data under a name of its own and then a small conditional marker",
            url=_url(store, key),
        )


def conditional_limit(store: Store, options: WriteOptions) -> int:
    """The largest conditional write."""
    return min(options.max_memory, store.capabilities.pieces.max_put)


def abort(upload: Upload, error: BaseException | None) -> None:
    """Drop the upload, because of `error` if there is one; a failure to do so is added to it as a note,
    else logged."""
    try:
        upload.abort()
    except WStoreError as failure:
        text = f"the unfinished upload could not be removed: {failure}; sweep it later"
        if error is None:
            _log.warning("%s", text)
        else:
            error.add_note(text)


def _write_sized(store: Store, key: str, source: Sized, options: WriteOptions) -> ObjectInfo:
    limits = store.capabilities.pieces
    if source.size > max(limits.max_put, largest_object(limits)):
        raise InvalidArgument(
            f"{source.size} bytes are over the store's limit for one object", url=_url(store, key)
        )
    if options.conditional:
        require_one_request(store, key, source.size, options)
    if options.checksum is not None:
        _verify(source, options.checksum, _url(store, key))
    multipart = store.feature(Multipart)
    if options.conditional or multipart is None or _fits_one_request(store, source, options):
        if multipart is None and source.size > min(limits.max_put, options.max_memory):
            raise UnsupportedOperation(
                f"{source.size} bytes at once; the store takes no pieces", url=_url(store, key)
            )
        data = source.load(0, source.size)
        source.check()
        check_cancel(options.cancel)
        info = write_once(store, key, data, options)
        Tally(options.progress, source.size).add(source.size)
        return info
    return _write_pieces(store, key, source, options, multipart)


def _fits_one_request(store: Store, source: Sized, options: WriteOptions) -> bool:
    capabilities = store.capabilities
    if source.size > capabilities.pieces.max_put:
        return False
    if options.piece_size is not None:
        return source.size <= options.piece_size
    if source.size <= ONE_REQUEST:
        return True
    # A file system writes memory fastest in one sweep; pieces would only bring hand-overs.
    return capabilities.directories and source.in_memory and options.progress is None


def _write_pieces(
    store: Store, key: str, source: Sized, options: WriteOptions, multipart: Multipart
) -> ObjectInfo:
    capabilities = store.capabilities
    pieces = plan_pieces(source.size, capabilities.pieces, options.piece_size or PIECE)
    counter = Tally(options.progress, source.size)
    upload = multipart.upload(key, size=source.size)

    def work(number: int) -> None:
        offset, length = pieces[number]
        upload.put(number, offset, source.load(offset, length))
        counter.add(length)

    try:
        run_parallel(
            len(pieces),
            work,
            concurrency=options.width(capabilities, pieces[0][1]),
            cancel=options.cancel,
        )
        source.check()
        return upload.complete()
    except BaseException as error:
        abort(upload, error)
        raise


def _verify(source: Sized, expected: str, url: str) -> None:
    digest = checksums.digest_for(expected)
    for offset in range(0, source.size, _DIGEST_CHUNK):
        digest.update(source.load(offset, min(_DIGEST_CHUNK, source.size - offset)))
    checksums.require(digest, expected, url)


def _url(store: Store, key: str) -> str:
    return f"{store.url}/{key}"
