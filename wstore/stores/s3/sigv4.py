"""AWS Signature Version 4 in its header form, as pure functions.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference. S3 differs from
other services in that the path is encoded once and never normalised, so `//`, `.` and `..` survive.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. Its secrets are in no repr, and pickling it is a TypeError."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials are not pickled; each process finds its own")


@dataclass(frozen=True, slots=True)
class Unsigned:
    """What is signed of one request.

    Attributes:
        method: the HTTP verb.
        path: as `encode_path` gives it, exactly as it is sent.
        query: names and values, not yet encoded, in any order.
        headers: all that shall be signed, `host` among them; names in lower case.
        payload_hash: hex SHA-256 of the body, or `UNSIGNED_PAYLOAD`.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    payload_hash: str


def encode_path(*parts: str) -> str:
    """The path of a request: the parts joined by "/", each byte but `A-Za-z0-9-._~/` as %XX.

    A part (the bucket, the key) may hold "/" itself; nothing is collapsed or resolved.
    """
    return "/" + "/".join(quote(part, safe="-._~/") for part in parts)


def encode_query(query: Iterable[tuple[str, str]]) -> str:
    """The query string, sorted as the signature wants it, which is also what is sent."""
    pairs = sorted((quote(name, safe="-._~"), quote(value, safe="-._~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def canonical_request(request: Unsigned) -> str:
    """The text whose hash is signed."""
    names = sorted(request.headers)
    lines = (f"{name}:{' '.join(request.headers[name].split())}" for name in names)
    return "\n".join(
        (
            request.method,
            request.path,
            encode_query(request.query),
            *lines,
            "",
            ";".join(names),
            request.payload_hash,
        )
    )


def string_to_sign(request: Unsigned, *, timestamp: str, region: str) -> str:
    """The text that the signing key signs. `timestamp` is `amz_date` of the request."""
    digest = hashlib.sha256(canonical_request(request).encode()).hexdigest()
    return "\n".join((ALGORITHM, timestamp, _scope(timestamp, region), digest))


def amz_date(now: datetime) -> str:
    """`now` (aware, UTC) as the `x-amz-date` header wants it."""
    return now.strftime("%Y%m%dT%H%M%SZ")


def sign(
    request: Unsigned, *, credentials: Credentials, region: str, now: datetime
) -> dict[str, str]:
    """All headers to send: those of `request`, the date, the payload hash, the token, the signature."""
    timestamp = amz_date(now)
    headers = dict(request.headers)
    headers["x-amz-date"] = timestamp
    headers["x-amz-content-sha256"] = request.payload_hash
    if credentials.token is not None:
        headers["x-amz-security-token"] = credentials.token
    full = Unsigned(request.method, request.path, request.query, headers, request.payload_hash)
    text = string_to_sign(full, timestamp=timestamp, region=region)
    key = signing_key(credentials.secret_key, timestamp[:8], region)
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{_scope(timestamp, region)}, "
        f"SignedHeaders={';'.join(sorted(headers))}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=16)
def signing_key(secret_key: str, day: str, region: str) -> bytes:
    """The key of one day (YYYYMMDD) and region."""
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _scope(timestamp: str, region: str) -> str:
    return f"{timestamp[:8]}/{region}/s3/aws4_request"
