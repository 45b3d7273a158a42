"""The S3 subset that the fault server serves, in memory: objects, conditions, ranges, uploads, listings.

It answers as AWS documents it, also where SeaweedFS and moto differ: `If-Match` on a missing key is 404,
an upload's pieces but the last obey the lower limit, a list page holds 1,000 keys. Signatures are not
checked; checksums of bodies are.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import threading
import time
import zlib
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGE = 1000
XML = {"content-type": "application/xml"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: header names in lower case, `key` and `query` decoded."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def range(self) -> str:
        """The Range header, such as "bytes=0-99", or ""."""
        return self.headers.get("range", "")

    @property
    def piece(self) -> int | None:
        """The part number (from 1, as S3 counts) when this request concerns one piece of an upload."""
        return int(self.query["partNumber"]) if "partNumber" in self.query else None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `content-length` is added when it is sent."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of one key: `etag` without quotes, `headers` such as x-amz-meta-*."""

    data: bytes
    etag: str
    modified_s: float
    headers: dict[str, str]


@dataclass(slots=True)
class _Upload:
    bucket: str
    key: str
    started_s: float
    headers: dict[str, str]
    pieces: dict[int, tuple[bytes, str]] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        self.reply = error_reply(status, code, headers)


def error_reply(
    status: int, code: str, headers: Mapping[str, str] | None = None, message: str = "as scripted"
) -> Reply:
    """S3's XML error document under `status`."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Reply(status, XML | dict(headers or {}), body)


class FakeS3:
    """Buckets in memory. Thread-safe; each request is one atomic step.

    Args:
        min_piece: the least bytes of a piece that is not the last (AWS: 5 MiB).
        max_pieces: the highest part number (AWS: 10,000).
    """

    def __init__(self, *, min_piece: int, max_pieces: int) -> None:
        self._lock = threading.RLock()
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._min_piece = min_piece
        self._max_pieces = max_pieces

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
        """Give the object another ETag, as if it had been replaced by equal bytes."""
        with self._lock:
            held = self._buckets[bucket][key]
            self._buckets[bucket][key] = replace(held, etag=secrets.token_hex(16))

    def pending_uploads(self) -> list[str]:
        """The keys of all uploads that were neither completed nor aborted."""
        with self._lock:
            return sorted(upload.key for upload in self._uploads.values())

    def handle(self, request: Request) -> Reply:
        """Serve one request."""
        with self._lock:
            try:
                return self._route(request)(request)
            except _Refused as refusal:
                return refusal.reply

    def _route(self, request: Request) -> Callable[[Request], Reply]:
        if request.method == "PUT" and not request.key:
            return self._make_bucket
        if request.bucket not in self._buckets:
            raise _Refused(404, "NoSuchBucket")
        if not request.key:
            if "uploads" in request.query:
                return self._list_uploads
            return {"GET": self._list, "HEAD": self._make_bucket}.get(request.method, _unknown)
        if "uploadId" in request.query:
            if request.query["uploadId"] not in self._uploads:
                raise _Refused(404, "NoSuchUpload")
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
        return Reply(200, {"x-amz-bucket-region": "us-east-1"})

    def _read(self, request: Request) -> Reply:
        held = self._buckets[request.bucket].get(request.key)
        if held is None:
            raise _Refused(404, "NoSuchKey")
        wanted = request.headers.get("if-match")
        if wanted not in (None, "*") and wanted.strip('"') != held.etag:
            raise _Refused(412, "PreconditionFailed")
        headers = held.headers | {
            "etag": f'"{held.etag}"',
            "last-modified": formatdate(held.modified_s, usegmt=True),
            "accept-ranges": "bytes",
            "content-type": "binary/octet-stream",
        }
        size = len(held.data)
        span = _span(request.range, size)
        if span is None:
            return Reply(200, headers, held.data)
        start, stop = span
        if start >= size or stop <= start:
            raise _Refused(416, "InvalidRange", {"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
        return Reply(206, headers, held.data[start:stop])

    def _write(self, request: Request) -> Reply:
        _check_digests(request)
        self._check_conditions(request)
        kept = _kept(request.headers)
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            held = self._store(request.bucket, request.key, request.body, None, kept)
            return Reply(200, {"etag": f'"{held.etag}"'})
        copied = self._source(source)
        held = self._store(request.bucket, request.key, copied.data, copied.etag, copied.headers)
        return Reply(200, XML, _copy_result("CopyObjectResult", held.etag, held.modified_s))

    def _delete(self, request: Request) -> Reply:
        self._buckets[request.bucket].pop(request.key, None)
        return Reply(204)

    def _start_upload(self, request: Request) -> Reply:
        name = secrets.token_hex(16)
        upload = _Upload(request.bucket, request.key, time.time(), _kept(request.headers))
        self._uploads[name] = upload
        text = (
            f"<InitiateMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
            f"<Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )
        return Reply(200, XML, text.encode())

    def _put_piece(self, request: Request) -> Reply:
        _check_digests(request)
        number = request.piece or 0
        if not 1 <= number <= self._max_pieces:
            raise _Refused(400, "InvalidArgument")
        data = request.body
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            whole = self._source(source).data
            span = _span(request.headers.get("x-amz-copy-source-range", ""), len(whole))
            data = whole if span is None else whole[span[0] : span[1]]
        etag = _md5(data)
        self._uploads[request.query["uploadId"]].pieces[number] = (data, etag)
        if source is not None:
            return Reply(200, XML, _copy_result("CopyPartResult", etag, time.time()))
        return Reply(200, {"etag": f'"{etag}"'})

    def _complete(self, request: Request) -> Reply:
        upload = self._uploads[request.query["uploadId"]]
        self._check_conditions(request)
        text = request.body.decode()
        numbers = [int(n) for n in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
        etags = [
            e.strip('"').replace("&quot;", "") for e in re.findall(r"<ETag>(.*?)</ETag>", text)
        ]
        if not numbers:
            raise _Refused(400, "MalformedXML")
        if numbers != sorted(set(numbers)):
            raise _Refused(400, "InvalidPartOrder")
        for number, etag in zip(numbers, etags, strict=True):
            if upload.pieces.get(number, (b"", ""))[1] != etag.strip('"'):
                raise _Refused(400, "InvalidPart")
        pieces = [upload.pieces[number] for number in numbers]
        if any(len(data) < self._min_piece for data, _ in pieces[:-1]):
            raise _Refused(400, "EntityTooSmall")
        joined = hashlib.md5(b"".join(bytes.fromhex(etag) for _, etag in pieces)).hexdigest()
        etag = f"{joined}-{len(pieces)}"
        whole = b"".join(data for data, _ in pieces)
        self._store(request.bucket, request.key, whole, etag, upload.headers)
        del self._uploads[request.query["uploadId"]]
        text = (
            f"<CompleteMultipartUploadResult><Bucket>{request.bucket}</Bucket>"
            f"<Key>{escape(request.key)}</Key><ETag>&quot;{etag}&quot;</ETag>"
            "</CompleteMultipartUploadResult>"
        )
        return Reply(200, XML, text.encode())

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
                f"<ETag>&quot;{held[key].etag}&quot;</ETag><Size>{len(held[key].data)}</Size>"
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

    def _check_conditions(self, request: Request) -> None:
        held = self._buckets[request.bucket].get(request.key)
        if request.headers.get("if-none-match") == "*" and held is not None:
            raise _Refused(412, "PreconditionFailed")
        wanted = request.headers.get("if-match")
        if wanted is not None:
            if held is None:
                raise _Refused(404, "NoSuchKey")
            if wanted.strip('"') != held.etag:
                raise _Refused(412, "PreconditionFailed")

    def _store(
        self, bucket: str, key: str, data: bytes, etag: str | None, headers: dict[str, str]
    ) -> StoredObject:
        held = StoredObject(data, etag or _md5(data), time.time(), headers)
        self._buckets[bucket][key] = held
        return held

    def _source(self, header: str) -> StoredObject:
        bucket, _, key = unquote(header).lstrip("/").partition("/")
        held = self._buckets.get(bucket, {}).get(key)
        if held is None:
            raise _Refused(404, "NoSuchKey")
        return held


def _unknown(request: Request) -> Reply:
    raise _Refused(501, "NotImplemented")


def _span(header: str, size: int) -> tuple[int, int] | None:
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _check_digests(request: Request) -> None:
    body = request.body
    known: dict[str, Callable[[], bytes]] = {
        "content-md5": lambda: hashlib.md5(body).digest(),
        "x-amz-checksum-sha256": lambda: hashlib.sha256(body).digest(),
        "x-amz-checksum-crc32": lambda: zlib.crc32(body).to_bytes(4, "big"),
        "x-amz-checksum-crc32c": lambda: google_crc32c.value(body).to_bytes(4, "big"),
    }
    for name, digest in known.items():
        sent = request.headers.get(name)
        if sent is not None and base64.b64decode(sent) != digest():
            raise _Refused(400, "BadDigest")


def _copy_result(name: str, etag: str, modified_s: float) -> bytes:
    return (
        f"<{name}><ETag>&quot;{etag}&quot;</ETag>"
        f"<LastModified>{_iso(modified_s)}</LastModified></{name}>"
    ).encode()


def _listed(key: str, request: Request) -> str:
    return quote(key) if request.query.get("encoding-type") == "url" else escape(key)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
