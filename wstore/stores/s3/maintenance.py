"""Server-side copies, and the sweeping of uploads that nobody will finish."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from wstore.errors import NotFound, ObjectChanged, PreconditionFailed, WStoreError
from wstore.stores.base import ObjectInfo
from wstore.stores.s3 import documents, sigv4
from wstore.stores.s3.reading import head
from wstore.stores.s3.replies import server_time
from wstore.stores.s3.upload import PiecewiseUpload, call_that_may_fail_late
from wstore.stores.s3.wire import Request

if TYPE_CHECKING:
    from wstore.stores.s3.wire import Wire


def copy_object(wire: Wire, source: str, target: str, *, limit: int, piece: int) -> ObjectInfo:
    """Copy inside the bucket, atomically; the source's content is pinned by its tag.

    Args:
        limit: largest object, in bytes, that one CopyObject takes; above, the copy is an upload.
        piece: bytes a piece of such an upload; grows where 10,000 would not suffice.

    Raises:
        NotFound: names the source.
        ObjectChanged: the source was replaced meanwhile.
    """
    found = head(wire, source)
    if source == target:  # services refuse it; the object is what it would become
        return found
    origin = {
        wire.dialect.copy_source: sigv4.encode_path(wire.bucket, source),
        wire.dialect.copy_match: found.tag,
    }
    try:
        if found.size > limit:
            return _copy_in_pieces(wire, target, origin, size=found.size, piece=piece)
        request = Request("PUT", target, headers=wire.config.object_headers() | origin)
        reply = call_that_may_fail_late(wire, request)
    except PreconditionFailed as error:
        text = "the object was replaced while it was being copied"
        raise ObjectChanged(text, url=wire.url(source)) from error
    except NotFound as error:
        # The reply does not say which of the two keys it is about; only a source can be missing.
        raise NotFound(error.message, url=wire.url(source)) from error
    etag, modified = wire.parsed(reply, target, documents.parse_copied)
    tag = wire.dialect.tag_of({**reply.headers, "etag": etag})
    return ObjectInfo(found.size, modified, tag) if tag else head(wire, target)


def _copy_in_pieces(
    wire: Wire, target: str, origin: dict[str, str], *, size: int, piece: int
) -> ObjectInfo:
    step = max(piece, -(-size // 10_000))
    upload = PiecewiseUpload(wire, target, checksum=False)
    try:
        for number, start in enumerate(range(0, size, step)):
            end = min(start + step, size)
            part = origin | {f"{wire.dialect.copy_source}-range": f"bytes={start}-{end - 1}"}
            upload.put_copied(number, part, end - start)
        return upload.complete()
    except BaseException as error:
        try:
            upload.abort()
        except WStoreError as failure:
            error.add_note(f"the unfinished upload could not be removed: {failure}; sweep it later")
        raise


def abort_old_uploads(wire: Wire, prefix: str, *, older_than_s: float) -> list[str]:
    """Abort the unfinished uploads under `prefix` that began longer ago than that.

    Both times are the service's own: when the upload began, and its clock as it lists them.

    Returns:
        "key (upload id)" for each.
    """
    removed = []
    marker: tuple[str, str] | None = None
    while True:
        query = [("uploads", ""), ("encoding-type", "url"), ("prefix", prefix)]
        if marker is not None:
            query += [("key-marker", marker[0]), ("upload-id-marker", marker[1])]
        reply = wire.call(Request("GET", query=tuple(query)))
        limit = server_time(reply.headers) - timedelta(seconds=older_than_s)
        page = wire.parsed(reply, prefix, documents.parse_pending)
        for pending in page.uploads:
            if pending.initiated <= limit and pending.key.startswith(prefix):
                abort = Request("DELETE", pending.key, (("uploadId", pending.upload_id),))
                wire.call(abort, accept=frozenset({200, 204, 404}))
                removed.append(f"{pending.key} ({pending.upload_id})")
        if page.next_marker is None or page.next_marker == marker:
            return removed
        marker = page.next_marker
