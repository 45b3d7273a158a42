"""The S3 subset that the fault server serves, in memory.

It answers as AWS documents it, also where SeaweedFS and moto differ: `If-Match` on a missing key is 404,
an upload's pieces but the last obey the lower limit, a list page holds 1,000 keys. Signatures are not
checked; checksums of bodies are.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import TYPE_CHECKING

import google_crc32c

from wstore.testing.fake_messages import Refused, Reply, Request, StoredObject
from wstore.testing.fake_service import FakeService

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeS3(FakeService):
    """Buckets in memory that answer as S3 does."""

    metadata = "x-amz-meta-"
    copy_source = "x-amz-copy-source"
    conditions = frozenset({"if-match", "if-none-match"})
    request_id = "x-amz-request-id"

    def check_digests(self, request: Request) -> None:
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
                raise Refused(400, "BadDigest")

    def check_read(self, request: Request, held: StoredObject) -> None:
        wanted = request.headers.get("if-match")
        if wanted not in (None, "*") and wanted.strip('"') != held.etag:
            raise Refused(412, "PreconditionFailed")

    def check_write(self, request: Request, held: StoredObject | None) -> None:
        if request.headers.get("if-none-match") == "*" and held is not None:
            raise Refused(412, "PreconditionFailed")
        wanted = request.headers.get("if-match")
        if wanted is not None:
            if held is None:
                raise Refused(404, "NoSuchKey")
            if wanted.strip('"') != held.etag:
                raise Refused(412, "PreconditionFailed")

    def check_copy(self, request: Request, source: StoredObject) -> None:
        wanted = request.headers.get("x-amz-copy-source-if-match")
        if wanted is not None and wanted.strip('"') != source.etag:
            raise Refused(412, "PreconditionFailed")

    def described(self, held: StoredObject) -> dict[str, str]:
        return {"etag": f'"{held.etag}"'}

    def listed(self, held: StoredObject) -> str:
        return f"<ETag>&quot;{held.etag}&quot;</ETag>"

    def delete(self, request: Request, held: StoredObject | None) -> Reply:
        self.drop(request)
        return Reply(204)
