"""Buckets in memory behind S3's XML: what the services share that the fault server plays.

Objects, ranges, uploads in pieces, copies, pages of a listing. What a service does in its own way
(`fake_s3.FakeS3`, `fake_gcs.FakeGcs`) is a method to override. No code is shared with the stores.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import threading
import time
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from wstore.testing.fake_messages import XML, Refused, Reply, Request, StoredObject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGE = 1000


@dataclass(slots=True)
class _Upload:
    bucket: str
    key: str
    started_s: float
    headers: dict[str, str]
    pieces: dict[int, tuple[bytes, str]] = field(default_factory=dict)


class FakeService:
    """Buckets in memory. Thread-safe; each request is one atomic step.

    Args:
        min_piece: the least bytes of a piece that is not the last (AWS, Google: 5 MiB).
        max_pieces: the highest part number (AWS, Google: 10,000).

    Attributes:
        metadata: prefix of the headers that stay on an object.
        copy_source: the header that names the object to copy.
        conditions: the headers by which a request demands something of the key's present state.
        request_id: the header that names each answer.
    """

    metadata: str
    copy_source: str
    conditions: frozenset[str]
    request_id: str

    def __init__(self, *, min_piece: int, max_pieces: int) -> None:
        self._lock = threading.RLock()
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._min_piece = min_piece
        self._max_pieces = max_pieces
        self._generations = itertools.count(time.time_ns() // 1000)

    def check_access(self, request: Request) -> None:
        """Refuse who may not ask. Here everybody may."""

    def check_digests(self, request: Request) -> None:
        """Refuse a body that differs from a checksum sent with it."""
        raise NotImplementedError

    def check_read(self, request: Request, held: StoredObject) -> None:
        """Refuse a read whose condition the object does not meet."""
        raise NotImplementedError

    def check_write(self, request: Request, held: StoredObject | None) -> None:
        """Refuse a PUT or a completion whose condition the present object, or its absence, does not
        meet."""
        raise NotImplementedError

    def check_copy(self, request: Request, source: StoredObject) -> None:
        """Refuse a copy whose condition the source does not meet."""
        raise NotImplementedError

    def described(self, held: StoredObject) -> dict[str, str]:
        """The headers that identify an object's content, in the answers to reads and writes."""
        raise NotImplementedError

    def listed(self, held: StoredObject) -> str:
        """The elements that identify it in a listing."""
        raise NotImplementedError

    def delete(self, request: Request, held: StoredObject | None) -> Reply:
        """Remove the object, which may not be there."""
        raise NotImplementedError

    def held(self, bucket: str, key: str) -> StoredObject | None:
        """The present object."""
        return self._buckets[bucket].get(key)

    def drop(self, request: Request) -> None:
        """Remove the object if there is one."""
        self._buckets[request.bucket].pop(request.key, None)

    def create_bucket(self, name: str) -> None:
        with self._lock:
            self._buckets.setdefault(name, {})

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object from outside, without a request."""
        with self._lock:
            self._store(bucket, key, data, _md5(data), {})

    def get(self, bucket: str, key: str) -> bytes | None:
        """The object's bytes, or None, without a request."""
        with self._lock:
            found = self._buckets[bucket].get(key)
            return found.data if found else None

    def retag(self, bucket: str, key: str) -> None:
        """Give the object another tag, as if it had been replaced by equal bytes."""
        with self._lock:
            held = self._buckets[bucket][key]
            self._buckets[bucket][key] = replace(
                held, etag=secrets.token_hex(16), generation=next(self._generations)
            )

    def pending_uploads(self) -> list[str]:
        """The keys of all uploads that were neither completed nor aborted."""
        with self._lock:
            return sorted(upload.key for upload in self._uploads.values())

    def handle(self, request: Request) -> Reply:
        """Serve one request."""
        with self._lock:
            try:
                self.check_access(request)
                return self._route(request)(request)
            except Refused as refusal:
                return refusal.reply

    def _route(self, request: Request) -> Callable[[Request], Reply]:
        if request.method == "PUT" and not request.key:
            return self._make_bucket
        if request.bucket not in self._buckets:
            raise Refused(404, "NoSuchBucket")
        if not request.key:
            if "uploads" in request.query:
                return self._list_uploads
            return {"GET": self._list, "HEAD": self._make_bucket}.get(request.method, _unknown)
        if "uploadId" in request.query:
            if request.query["uploadId"] not in self._uploads:
                raise Refused(404, "NoSuchUpload")
            of_upload = {"PUT": self._put_piece, "POST": self._complete, "DELETE": self._abort}
            return of_upload.get(request.method, _unknown)
        if request.method == "POST" and "uploads" in request.query:
            return self._start_upload
        of_object = {
            "GET": self._read,
            "HEAD": self._read,
            "PUT": self._write,
            "DELETE": self._delete,
        }
        return of_object.get(request.method, _unknown)

    def _make_bucket(self, request: Request) -> Reply:
        self.create_bucket(request.bucket)
        return Reply(200)

    def _read(self, request: Request) -> Reply:
        held = self._buckets[request.bucket].get(request.key)
        if held is None:
            raise Refused(404, "NoSuchKey")
        self.check_read(request, held)
        headers = (
            held.headers
            | self.described(held)
            | {
                "last-modified": formatdate(held.modified_s, usegmt=True),
                "accept-ranges": "bytes",
                "content-type": "binary/octet-stream",
            }
        )
        size = len(held.data)
        span = _span(request.range, size)
        if span is None:
            return Reply(200, headers, held.data)
        start, stop = span
        if start >= size or stop <= start:
            raise Refused(416, "InvalidRange", {"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
        return Reply(206, headers, held.data[start:stop])

    def _write(self, request: Request) -> Reply:
        self.check_digests(request)
        source = request.headers.get(self.copy_source)
        copied = None if source is None else self._source(source)
        if copied is not None:
            self.check_copy(request, copied)
        self.check_write(request, self.held(request.bucket, request.key))
        if copied is None:
            kept = self._kept(request.headers)
            held = self._store(request.bucket, request.key, request.body, None, kept)
            return Reply(200, self.described(held))
        held = self._store(request.bucket, request.key, copied.data, copied.etag, copied.headers)
        body = _copy_result("CopyObjectResult", held.etag, held.modified_s)
        return Reply(200, XML | self.described(held), body)

    def _delete(self, request: Request) -> Reply:
        return self.delete(request, self.held(request.bucket, request.key))

    def _start_upload(self, request: Request) -> Reply:
        name = secrets.token_hex(16)
        upload = _Upload(request.bucket, request.key, time.time(), self._kept(request.headers))
        self._uploads[name] = upload
        text = (
            f"<InitiateMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
            f"<Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )
        return Reply(200, XML, text.encode())

    def _put_piece(self, request: Request) -> Reply:
        self.check_digests(request)
        number = request.piece or 0
        if not 1 <= number <= self._max_pieces:
            raise Refused(400, "InvalidArgument")
        data = request.body
        source = request.headers.get(self.copy_source)
        if source is not None:
            whole = self._source(source).data
            span = _span(request.headers.get(f"{self.copy_source}-range", ""), len(whole))
            data = whole if span is None else whole[span[0] : span[1]]
        etag = _md5(data)
        self._uploads[request.query["uploadId"]].pieces[number] = (data, etag)
        if source is not None:
            return Reply(200, XML, _copy_result("CopyPartResult", etag, time.time()))
        return Reply(200, {"etag": f'"{etag}"'})

    def _complete(self, request: Request) -> Reply:
        upload = self._uploads[request.query["uploadId"]]
        self.check_write(request, self.held(request.bucket, request.key))
        text = request.body.decode()
        numbers = [int(n) for n in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
        etags = [
            e.strip('"').replace("&quot;", "") for e in re.findall(r"<ETag>(.*?)</ETag>", text)
        ]
        if not numbers:
            raise Refused(400, "MalformedXML")
        if numbers != sorted(set(numbers)):
            raise Refused(400, "InvalidPartOrder")
        for number, etag in zip(numbers, etags, strict=True):
            if upload.pieces.get(number, (b"", ""))[1] != etag.strip('"'):
                raise Refused(400, "InvalidPart")
        pieces = [upload.pieces[number] for number in numbers]
        if any(len(data) < self._min_piece for data, _ in pieces[:-1]):
            raise Refused(400, "EntityTooSmall")
        joined = hashlib.md5(b"".join(bytes.fromhex(etag) for _, etag in pieces)).hexdigest()
        etag = f"{joined}-{len(pieces)}"
        whole = b"".join(data for data, _ in pieces)
        held = self._store(request.bucket, request.key, whole, etag, upload.headers)
        del self._uploads[request.query["uploadId"]]
        text = (
            f"<CompleteMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
            f"<Key>{escape(request.key)}</Key><ETag>&quot;{etag}&quot;</ETag>"
            "</CompleteMultipartUploadResult>"
        )
        return Reply(200, XML | self.described(held), text.encode())

    def _abort(self, request: Request) -> Reply:
        del self._uploads[request.query["uploadId"]]
        return Reply(204)

    def _list_uploads(self, request: Request) -> Reply:
        prefix = request.query.get("prefix", "")
        lines = [
            f"<Upload><Key>{_listed(u.key, request)}</Key><UploadId>{name}</UploadId>"
            f"<Initiated>{_iso(u.started_s)}</Initiated></Upload>"
            for name, u in sorted(self._uploads.items(), key=lambda item: item[1].key)
            if u.bucket == request.bucket and u.key.startswith(prefix)
        ]
        body = "".join(lines) + "<IsTruncated>false</IsTruncated>"
        return Reply(
            200, XML, f"<ListMultipartUploadsResult>{body}</ListMultipartUploadsResult>".encode()
        )

    def _list(self, request: Request) -> Reply:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        limit = min(int(query.get("max-keys", PAGE)), PAGE)
        held = self._buckets[request.bucket]
        found: dict[str, str] = {}
        for key in sorted(held, key=str.encode):
            if not key.startswith(prefix):
                continue
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = prefix + head + cut if cut else key
            if name.encode() <= after.encode() or name in found:
                continue
            found[name] = (
                f"<CommonPrefixes><Prefix>{_listed(name, request)}</Prefix></CommonPrefixes>"
                if cut
                else f"<Contents><Key>{_listed(key, request)}</Key>"
                f"<LastModified>{_iso(held[key].modified_s)}</LastModified>"
                f"{self.listed(held[key])}<Size>{len(held[key].data)}</Size>"
                "</Contents>"
            )
        page = list(found)[:limit]
        more = len(found) > limit
        body = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        if query.get("encoding-type") == "url":
            body += "<EncodingType>url</EncodingType>"
        if more:
            token = quote(page[-1], safe="")
            body += f"<NextContinuationToken>{token}</NextContinuationToken>"
        body += "".join(found[name] for name in page)
        return Reply(200, XML, f"<ListBucketResult>{body}</ListBucketResult>".encode())

    def _store(
        self, bucket: str, key: str, data: bytes, etag: str | None, headers: dict[str, str]
    ) -> StoredObject:
        number = next(self._generations)
        held = StoredObject(data, etag or _md5(data), number, time.time(), headers)
        self._buckets[bucket][key] = held
        return held

    def _kept(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.startswith(self.metadata)}

    def _source(self, header: str) -> StoredObject:
        bucket, _, key = unquote(header).lstrip("/").partition("/")
        held = self._buckets.get(bucket, {}).get(key)
        if held is None:
            raise Refused(404, "NoSuchKey")
        return held


def _unknown(request: Request) -> Reply:
    raise Refused(501, "NotImplemented")


def _span(header: str, size: int) -> tuple[int, int] | None:
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _copy_result(name: str, etag: str, modified_s: float) -> bytes:
    return (
        f"<{name}><ETag>&quot;{etag}&quot;</ETag>"
        f"<LastModified>{_iso(modified_s)}</LastModified></{name}>"
    ).encode()


def _listed(key: str, request: Request) -> str:
    return quote(key) if request.query.get("encoding-type") == "url" else escape(key)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
