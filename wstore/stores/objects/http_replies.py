"""What a file server's HTTP reply says, checked against what was asked: pure functions.

A server of files promises less than an object store. Without an ETag the tag is made of size and time
of change, which tells two contents apart unless they have one size and were written within one second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wstore.errors import (
    AccessDenied,
    NotFound,
    StoreError,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.s3.dialect import S3
from wstore.stores.s3.replies import Extent, content_length, described, extent, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.stores.base import ObjectInfo

HTTP = replace(
    S3,
    service="a file server",
    scheme="http",
    endpoint_variable="the URL and HTTP(S)_PROXY",
    ca_variable="SSL_CERT_FILE",
)
_EPOCH = "Thu, 01 Jan 1970 00:00:00 GMT"


def object_info(headers: Mapping[str, str], *, url: str) -> ObjectInfo:
    """The object that a whole reply (or one to HEAD) describes.

    Raises:
        StoreError: it does not say its size, or nothing by which its content can be told.
    """
    if headers.get("content-encoding", "identity") != "identity":
        raise StoreError("the server compresses the object on its way (Content-Encoding)", url=url)
    size = content_length(headers, url=url)
    return described(_completed(headers, size, url), size=size, url=url, dialect=HTTP)


def pin(tag: str | None) -> dict[str, str]:
    """What a read of that content sends. A weak ETag matches nothing (RFC 9110, 13.1.1), and a tag made
    of size and time is none of the server's: then the reply alone tells."""
    if tag is None or tag.startswith('"W/') or " " in tag:
        return {}
    return {"if-match": tag}


def ranged(
    status: int, headers: Mapping[str, str], *, offset: int, length: int, url: str
) -> Extent:
    """Check a successful reply to "bytes [offset, offset + length)" before its body is read.

    Raises:
        UnsupportedOperation: the server ignores ranges, and more than was asked for would come.
        StoreError: another range than asked for, or a reply that does not say which.
    """
    if status == 206:
        size = headers.get("content-range", "").rpartition("/")[2]
        whole = _completed(headers, size, url)
        got = extent(206, whole, offset=offset, length=length, url=url, dialect=HTTP)
        if "content-length" in headers and content_length(headers, url=url) != got.length:
            said = headers["content-length"][:40]
            text = f"the reply's range has {got.length} bytes, its Content-Length is {said}"
            raise StoreError(text, url=url)
        return got
    info = object_info(headers, url=url)
    if offset >= info.size:
        return Extent(0, info)
    if offset or info.size > length:
        raise UnsupportedOperation(
            f"the server ignores ranges: asked for {length} bytes from {offset}, it sends all "
            f"{info.size}. Download the file whole by other means, or serve it by a server with ranges",
            url=url,
        )
    return Extent(info.size, info)


def refusal(status: int, headers: Mapping[str, str], *, url: str) -> WStoreError:
    """What a reply without success means."""
    if status in {404, 410}:
        return NotFound(f"there is no such file (HTTP {status})", url=url)
    if status in {401, 403, 407}:
        text = f"access denied (HTTP {status}); wstore sends no credentials to file servers"
        return AccessDenied(text, url=url)
    if status in {408, 425, 429} or (status >= 500 and status not in {501, 505}):
        text = f"the server asks to try again later (HTTP {status})"
        return Unavailable(text, url=url, retry_after_s=retry_after_s(headers))
    return StoreError(f"the server refused the request (HTTP {status})", url=url)


def _completed(headers: Mapping[str, str], size: int | str, url: str) -> dict[str, str]:
    """The headers, with a tag and a time where the server gave none."""
    tag, modified = headers.get("etag", "").strip(), headers.get("last-modified", "").strip()
    if not tag and not modified:
        text = "the server gives neither ETag nor Last-Modified: one content cannot be told from another"
        raise StoreError(text, url=url)
    return {**headers, "etag": tag or f"{size} {modified}", "last-modified": modified or _EPOCH}
