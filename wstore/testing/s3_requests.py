"""Signed S3 requests in their plainest form: the back door of tests, which shares no code with the stores.

One connection a request, no retries, no streaming. What wstore itself uses is `wstore.stores.s3`; a
test that checked that client with itself would prove little.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import http.client
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where an S3 server listens, and who we are to it.

    `secret_key` is kept out of `repr`, so that a failing test does not print it.
    """

    url: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def __repr__(self) -> str:
        return f"S3Endpoint(url={self.url!r}, access_key={self.access_key!r})"

    def environment(self) -> dict[str, str]:
        """The AWS_* variables that point any S3 client at this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment in which every client reaches this server, and nobody's endpoint or identity
        is left."""
        kept = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
        return kept | self.environment()


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply: status, headers with lower-case names, and the whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(
    endpoint: S3Endpoint,
    method: str,
    bucket: str = "",
    key: str = "",
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 30.0,
) -> Answer:
    """Send one request, signed with Signature Version 4, path-style, and return the answer as it came.

    Raises:
        OSError, http.client.HTTPException: the connection failed or broke.
    """
    parts = urlsplit(endpoint.url)
    path = f"/{bucket}" if bucket else "/"
    if key:
        path += "/" + quote(key, safe="/-_.~")
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in (query or {}).items())
    query_text = "&".join(f"{k}={v}" for k, v in pairs)
    sent = {name.lower(): value for name, value in (headers or {}).items()} | {"host": parts.netloc}
    sent |= _authorization(endpoint, method, path, query_text, sent, body)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=timeout_s
    )
    try:
        target = f"{path}?{query_text}" if query_text else path
        connection.request(method, target, body=body or None, headers=sent)
        reply = connection.getresponse()
        names = {name.lower(): value for name, value in reply.getheaders()}
        return Answer(reply.status, names, reply.read())
    finally:
        connection.close()


def create_bucket(endpoint: S3Endpoint, name: str) -> None:
    """Make a bucket; one that is there already, and is ours, is fine.

    Raises:
        RuntimeError: the server refused; the message holds its answer.
    """
    answer = request(endpoint, "PUT", name)
    if answer.status != 200 and b"BucketAlreadyOwnedByYou" not in answer.body:
        raise RuntimeError(f"bucket {name}: {answer.status} {answer.body[:500]!r}")


def get_object(endpoint: S3Endpoint, bucket: str, key: str) -> bytes | None:
    """The whole object, or None where there is none."""
    answer = request(endpoint, "GET", bucket, key)
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise RuntimeError(f"GET {bucket}/{key}: {answer.status} {answer.body[:500]!r}")
    return answer.body


def put_object(endpoint: S3Endpoint, bucket: str, key: str, data: bytes) -> None:
    """Write the whole object, unconditionally."""
    answer = request(endpoint, "PUT", bucket, key, body=data)
    if answer.status != 200:
        raise RuntimeError(f"PUT {bucket}/{key}: {answer.status} {answer.body[:500]!r}")


def pending_uploads(endpoint: S3Endpoint, bucket: str) -> list[str]:
    """The keys of all uploads in pieces that were begun and neither completed nor aborted.

    Raises:
        RuntimeError: the server refused, or there are more than one page of them.
    """
    answer = request(endpoint, "GET", bucket, query={"uploads": ""})
    if answer.status != 200 or b"<IsTruncated>true<" in answer.body:
        raise RuntimeError(f"uploads of {bucket}: {answer.status} {answer.body[:500]!r}")
    keys = re.findall(rb"<Upload>.*?<Key>(.*?)</Key>", answer.body, re.DOTALL)
    return [html.unescape(key.decode()) for key in keys]


def _authorization(
    endpoint: S3Endpoint, method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> dict[str, str]:
    now = datetime.now(UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    payload = hashlib.sha256(body).hexdigest()
    added = {"x-amz-date": stamp, "x-amz-content-sha256": payload}
    signed = dict(sorted((headers | added).items()))
    names = ";".join(signed)
    lines = "".join(f"{name}:{value.strip()}\n" for name, value in signed.items())
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"
    scope = f"{day}/{endpoint.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{endpoint.secret_key}".encode()
    for part in (day, endpoint.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{endpoint.access_key}/{scope}"
    added["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return added
