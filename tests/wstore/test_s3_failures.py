"""Error replies and reply headers, read without a network: which error, which words, no secrets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wstore.errors import (
    AccessDenied,
    CredentialsMissing,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    NoSpace,
    NotFound,
    PreconditionFailed,
    StoreError,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import ObjectInfo
from wstore.stores.s3.failures import Failure
from wstore.stores.s3.replies import Extent, Reply, extent, retry_after_s

URL = "s3://bucket/key"
DATE = "Mon, 30 Nov 2026 11:40:00 GMT"


def error(status: int, code: str, *, headers: dict[str, str] | None = None) -> WStoreError:
    body = (
        f"<Error><Code>{code}</Code><Message>told</Message><Token-0>very-secret</Token-0></Error>"
    )
    reply = Reply(status, headers or {}, body.encode() if code else b"")
    return Failure.of(reply).error(url=URL, bucket="bucket", region="us-east-1")


@pytest.mark.parametrize(
    ("status", "code", "kind", "retryable", "words"),
    [
        (404, "NoSuchKey", NotFound, False, "no such object"),
        (404, "NoSuchBucket", NotFound, False, "no bucket 'bucket'"),
        (404, "", NotFound, False, "or no bucket"),
        (403, "AccessDenied", AccessDenied, False, "may not"),
        (403, "SignatureDoesNotMatch", AccessDenied, False, "secret key does not fit"),
        (403, "InvalidAccessKeyId", AccessDenied, False, "does not know this access key"),
        (403, "RequestTimeTooSkewed", AccessDenied, False, "clock"),
        (400, "ExpiredToken", CredentialsMissing, False, "expired"),
        (401, "", AccessDenied, False, "denied"),
        (403, "", AccessDenied, False, "missing key"),
        (412, "PreconditionFailed", PreconditionFailed, False, "another content"),
        (409, "ConditionalRequestConflict", Unavailable, True, "again"),
        (409, "BucketNotEmpty", StoreError, False, "refused"),
        (408, "", Unavailable, True, "again"),
        (429, "", Unavailable, True, "again"),
        (400, "RequestTimeout", Unavailable, True, "again"),
        (200, "InternalError", Unavailable, True, "again"),
        (500, "", Unavailable, True, "again"),
        (503, "SlowDown", Unavailable, True, "again"),
        (400, "BadDigest", IntegrityError, True, "damaged"),
        (400, "EntityTooLarge", InvalidArgument, False, "refused"),
        (400, "KeyTooLongError", InvalidPath, False, "refused"),
        (507, "", NoSpace, False, "space"),
        (501, "NotImplemented", UnsupportedOperation, False, "refused"),
        (400, "InvalidRequest", StoreError, False, "refused"),
        (301, "PermanentRedirect", StoreError, False, "AWS_REGION"),
    ],
)
def test_meaning(
    status: int, code: str, kind: type[WStoreError], retryable: bool, words: str
) -> None:
    found = error(status, code)
    assert type(found) is kind
    assert found.retryable is retryable
    assert words in str(found)
    assert str(found).startswith(URL)
    assert "very-secret" not in str(found)


def test_the_right_region_is_named() -> None:
    found = error(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"})
    assert "set AWS_REGION=eu-west-1" in str(found)


def test_foreign_text_is_escaped_and_cut() -> None:
    body = f"<Error><Code>X</Code><Message>a\n\x7f{'b' * 5000}</Message></Error>"
    failure = Failure.of(Reply(400, {"x-amz-request-id": "id\x1b[0m"}, body.encode()))
    assert failure.message.startswith("a\\n\\x7fbbb")
    assert len(failure.message) < 350
    assert failure.request_id == "id\\x1b[0m"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("999999", 3600.0),
        ("Mon, 30 Nov 2026 11:40:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:39:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_retry_after_counts_from_the_services_clock(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text, "date": DATE}) == seconds


def reply_headers(**changes: str) -> dict[str, str]:
    whole = {"etag": '"t"', "last-modified": DATE, "content-length": "10"}
    return whole | {name.replace("_", "-"): value for name, value in changes.items()}


def test_a_range_is_cut_at_the_objects_end() -> None:
    info = ObjectInfo(15, datetime(2026, 11, 30, 11, 40, tzinfo=UTC), '"t"')
    headers = reply_headers(content_range="bytes 5-14/15")
    assert extent(206, headers, offset=5, length=100, url=URL) == Extent(10, info)
    small = reply_headers()
    assert extent(200, small, offset=0, length=10, url=URL).info.size == 10


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, reply_headers()),
        (206, reply_headers(content_range="bytes 5-14/*")),
        (206, reply_headers(content_range="bytes 5-13/15")),
        (206, reply_headers(content_range="bytes 5-14/20")),
        (206, reply_headers(content_range="bytes 4-14/15")),
        (206, reply_headers(content_range="bytes 5-4/5")),
        (206, reply_headers(content_range="bytes 5-14/15", etag="")),
        (206, reply_headers(content_range="bytes 5-14/15", content_encoding="gzip")),
        (200, reply_headers()),
    ],
)
def test_any_other_range_is_refused(status: int, headers: dict[str, str]) -> None:
    with pytest.raises(StoreError):
        extent(status, headers, offset=5, length=100, url=URL)
