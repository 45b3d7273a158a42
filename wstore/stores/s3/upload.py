"""Multipart uploads: an object in pieces, published at once or not at all."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

from wstore.errors import (
    IntegrityError,
    InvalidArgument,
    OutcomeUnknown,
    StoreError,
    UnsupportedOperation,
)
from wstore.stores.base import ObjectInfo
from wstore.stores.s3 import documents
from wstore.stores.s3.dialect import normal_tag
from wstore.stores.s3.failures import Failure
from wstore.stores.s3.replies import server_time
from wstore.stores.s3.wire import Request
from wstore.stores.s3.writing import checksum_headers, put_object, write_id_of

if TYPE_CHECKING:
    from wstore.stores.s3.replies import Reply
    from wstore.stores.s3.wire import Wire


class PiecewiseUpload:
    """One multipart upload (`stores.base.Upload`).

    It is stamped with a random id, which the finished object carries, so that a completion whose
    answer was lost is recognised as this upload's.

    Args:
        checksum: pieces carry a CRC-32C. Not for copied ones: their bytes never come by here.
    """

    def __init__(self, wire: Wire, key: str, *, checksum: bool) -> None:
        self._wire = wire
        self._key = key
        self._checksum = checksum
        self._write_id = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._pieces: dict[int, tuple[documents.Piece, int]] = {}
        self._failed: set[int] = set()
        self._ended = False
        self._dialect = wire.dialect
        headers = wire.config.object_headers() | {wire.dialect.write_id: self._write_id}
        if checksum:
            headers |= dict(wire.dialect.upload_extra)
        reply = wire.call(Request("POST", key, (("uploads", ""),), headers))
        self._id = wire.parsed(reply, key, documents.parse_upload_id)

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Send a piece. `offset` is not needed: the service orders pieces by number."""
        limits, url = self._dialect.limits, self._wire.url(self._key)
        if not 0 <= number < limits.max_pieces:
            text = f"piece {number + 1} of an upload: {self._dialect.service} takes {limits.max_pieces}"
            raise InvalidArgument(text, url=url)
        if data.nbytes > limits.max_piece:
            text = (
                f"a piece of {data.nbytes} bytes: {self._dialect.service} takes {limits.max_piece}"
            )
            raise InvalidArgument(text, url=url)
        self._require_open()
        with self._lock:
            self._pieces.pop(number, None)
            self._failed.add(number)
        headers = checksum_headers(data, self._dialect) if self._checksum else {}
        query = (("partNumber", str(number + 1)), ("uploadId", self._id))
        reply = self._wire.call(Request("PUT", self._key, query, headers, data, bulk=True))
        etag = normal_tag(reply.headers.get("etag", ""))
        if not etag:
            raise StoreError("the reply to a piece has no ETag", url=url)
        if self._dialect.stores_other(headers, reply.headers):
            raise IntegrityError("the service stored other bytes (their CRC-32C differs)", url=url)
        repeated = headers.get(self._dialect.checksum[0]) if self._dialect.piece_checksums else None
        piece = documents.Piece(number + 1, etag, repeated)
        with self._lock:
            self._pieces[number] = (piece, data.nbytes)
            self._failed.discard(number)

    def put_copied(self, number: int, source: dict[str, str], size: int) -> None:
        """Let the service copy a piece: `source` are the headers that name it."""
        query = (("partNumber", str(number + 1)), ("uploadId", self._id))
        request = Request("PUT", self._key, query, source)
        reply = call_that_may_fail_late(self._wire, request)
        etag, _ = self._wire.parsed(reply, self._key, documents.parse_copied_piece)
        with self._lock:
            self._pieces[number] = (documents.Piece(number + 1, etag, None), size)

    def complete(self) -> ObjectInfo:
        """Publish. May be repeated after a failure that is worth repeating.

        Raises:
            StoreError: a piece is missing or failed and was not repeated; nothing was published.
            OutcomeUnknown: the upload is gone, and the present object is not known to be its result.
        """
        pieces, size = self._all_pieces()
        if not pieces:
            # No service takes an upload without pieces: an empty object is one plain PUT.
            info = put_object(self._wire, self._key, memoryview(b""), write_id=self._write_id)
            self.abort()
            return info
        body = memoryview(documents.build_complete(pieces))
        request = Request("POST", self._key, (("uploadId", self._id),), {}, body)
        reply = call_that_may_fail_late(self._wire, request, accept=frozenset({200, 404}))
        if reply.status == 404:
            return self._settled(reply, size)
        try:
            etag = self._wire.parsed(reply, self._key, documents.parse_completed)
        except IntegrityError as error:
            return self._told_by_the_object(size, error)
        tag = self._dialect.tag_of({**reply.headers, "etag": etag})
        if not tag:
            return self._found(size)
        self._ended = True
        return ObjectInfo(size, server_time(reply.headers), tag)

    def abort(self) -> None:
        """Drop the pieces. An upload that is already gone is fine."""
        if self._ended:
            return
        request = Request("DELETE", self._key, (("uploadId", self._id),))
        self._wire.call(request, accept=frozenset({200, 204, 404}))
        self._ended = True

    def _require_open(self) -> None:
        if self._ended:
            text = "the upload was already completed or aborted"
            raise UnsupportedOperation(text, url=self._wire.url(self._key))

    def _all_pieces(self) -> tuple[list[documents.Piece], int]:
        with self._lock:
            numbers = sorted(self._pieces)
            missing = set(range(max(numbers, default=-1) + 1)).difference(numbers) | self._failed
            found = [self._pieces[number] for number in numbers]
        if missing:
            text = f"piece {min(missing) + 1} is missing or failed: nothing was published"
            raise StoreError(text, url=self._wire.url(self._key))
        self._require_open()
        size = sum(length for _, length in found)
        limit = self._dialect.limits.max_object
        if size > limit:
            text = f"an object of {size} bytes: {self._dialect.service} takes {limit}"
            raise InvalidArgument(text, url=self._wire.url(self._key))
        return [piece for piece, _ in found], size

    def _settled(self, reply: Reply, size: int) -> ObjectInfo:
        """The service knows no such upload (any more): was it this one's earlier completion?"""
        if Failure.of(reply).code != "NoSuchUpload":
            raise self._wire.error(reply, self._key)
        return self._found(size)

    def _told_by_the_object(self, size: int, error: IntegrityError) -> ObjectInfo:
        """The answer to a completion was no document: only the object says whether it took effect."""
        found, info = write_id_of(self._wire, self._key)
        if info is None or found != self._write_id:
            raise error
        return self._checked(info, size)

    def _found(self, size: int) -> ObjectInfo:
        """The finished object as the service has it now. Where it cannot be asked, completing may be
        repeated."""
        url = self._wire.url(self._key)
        found, info = write_id_of(self._wire, self._key)
        if info is None or found != self._write_id:
            self._ended = True
            text = "the upload is gone: completed and replaced since, or aborted by someone else"
            raise OutcomeUnknown(text, url=url)
        return self._checked(info, size)

    def _checked(self, info: ObjectInfo, size: int) -> ObjectInfo:
        self._ended = True
        if info.size != size:
            text = f"{size} bytes were sent, {info.size} are stored"
            raise IntegrityError(text, url=self._wire.url(self._key))
        return info


def call_that_may_fail_late(
    wire: Wire, request: Request, *, accept: frozenset[int] = frozenset({200})
) -> Reply:
    """A call that may be answered with 200 before the outcome is known: an `<Error>` then follows."""
    reply = wire.call(request, accept=accept)
    if reply.status == 200 and documents.parse_error(reply.body) is not None:
        raise wire.error(reply, request.key)
    return reply
