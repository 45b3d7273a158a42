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
from wstore.stores.s3.failures import Failure
from wstore.stores.s3.limits import LIMITS
from wstore.stores.s3.replies import server_time
from wstore.stores.s3.wire import Request
from wstore.stores.s3.writing import (
    WRITE_ID,
    checksum_headers,
    object_headers,
    put_object,
    write_id_of,
)

if TYPE_CHECKING:
    from wstore.stores.s3.replies import Reply
    from wstore.stores.s3.wire import Wire


class S3Upload:
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
        headers = object_headers(wire.config) | {WRITE_ID: self._write_id}
        if checksum:
            headers["x-amz-checksum-algorithm"] = "CRC32C"
        reply = wire.call(Request("POST", key, (("uploads", ""),), headers))
        self._id = documents.parse_upload_id(reply.body)

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Send a piece. `offset` is not needed: S3 orders pieces by number."""
        if not 0 <= number < LIMITS.max_pieces:
            text = f"piece {number + 1} of an upload: S3 takes {LIMITS.max_pieces}"
            raise InvalidArgument(text, url=self._wire.url(self._key))
        if data.nbytes > LIMITS.max_piece:
            text = f"a piece of {data.nbytes} bytes: S3 takes {LIMITS.max_piece}"
            raise InvalidArgument(text, url=self._wire.url(self._key))
        self._require_open()
        with self._lock:
            self._pieces.pop(number, None)
            self._failed.add(number)
        headers = checksum_headers(data) if self._checksum else {}
        query = (("partNumber", str(number + 1)), ("uploadId", self._id))
        reply = self._wire.call(Request("PUT", self._key, query, headers, data, bulk=True))
        etag = documents.normal_tag(reply.headers.get("etag", ""))
        if not etag:
            raise StoreError("the reply to a piece has no ETag", url=self._wire.url(self._key))
        piece = documents.Piece(number + 1, etag, headers.get("x-amz-checksum-crc32c"))
        with self._lock:
            self._pieces[number] = (piece, data.nbytes)
            self._failed.discard(number)

    def put_copied(self, number: int, source: dict[str, str], size: int) -> None:
        """Let S3 copy a piece: `source` are the `x-amz-copy-source*` headers that name it."""
        query = (("partNumber", str(number + 1)), ("uploadId", self._id))
        request = Request("PUT", self._key, query, source)
        body = call_that_may_fail_late(self._wire, request).body
        etag, _ = documents.parse_copied(body, "CopyPartResult")
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
            # S3 takes no upload without pieces: an empty object is one plain PUT.
            info = put_object(self._wire, self._key, memoryview(b""), write_id=self._write_id)
            self.abort()
            return info
        body = memoryview(documents.build_complete(pieces))
        request = Request("POST", self._key, (("uploadId", self._id),), {}, body)
        reply = call_that_may_fail_late(self._wire, request, accept=frozenset({200, 404}))
        if reply.status == 404:
            return self._settled(reply, size)
        self._ended = True
        tag = documents.parse_completed(reply.body)
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
        if size > LIMITS.max_object:
            text = f"an object of {size} bytes: S3 takes {LIMITS.max_object}"
            raise InvalidArgument(text, url=self._wire.url(self._key))
        return [piece for piece, _ in found], size

    def _settled(self, reply: Reply, size: int) -> ObjectInfo:
        """The service knows no such upload (any more): was it this one's earlier completion?"""
        if Failure.of(reply).code != "NoSuchUpload":
            raise self._wire.error(reply, self._key)
        self._ended = True
        url = self._wire.url(self._key)
        found, info = write_id_of(self._wire, self._key)
        if info is None or found != self._write_id:
            text = "the upload is gone: completed and replaced since, or aborted by someone else"
            raise OutcomeUnknown(text, url=url)
        if info.size != size:
            raise IntegrityError(f"{size} bytes were sent, {info.size} are stored", url=url)
        return info


def call_that_may_fail_late(
    wire: Wire, request: Request, *, accept: frozenset[int] = frozenset({200})
) -> Reply:
    """A call that S3 may answer with 200 before it knows the outcome: an `<Error>` then follows."""
    reply = wire.call(request, accept=accept)
    if reply.status == 200 and documents.parse_error(reply.body) is not None:
        late = Failure.of(reply)
        error = late.error(url=wire.url(request.key), bucket=wire.bucket, region=wire.config.region)
        raise error
    return reply
