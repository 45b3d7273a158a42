"""What one HTTP reply of the service says, checked: pure functions over status, headers and body."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from wstore.errors import StoreError, WStoreError
from wstore.stores.base import ObjectInfo
from wstore.stores.s3.dialect import S3

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.stores.s3.dialect import Dialect

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_MAX_WAIT_S = 3600.0
# Google decodes what is stored compressed, ignores ranges of it, and says so in the second.
_ENCODINGS = ("content-encoding", "x-goog-stored-content-encoding")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply whose body was read. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class Extent:
    """What the body of a ranged GET holds: the first `length` bytes that were asked for."""

    length: int
    info: ObjectInfo


def instant(text: str) -> datetime | None:
    """An HTTP date, aware; None where it is none."""
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def server_time(headers: Mapping[str, str]) -> datetime:
    """The service's clock when it answered; the local one where it does not say."""
    return instant(headers.get("date", "")) or datetime.now(UTC)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for, whichever of its two forms it has; at most an hour."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), _MAX_WAIT_S)
    moment = instant(text)
    if moment is None:
        return None
    return min(max((moment - server_time(headers)).total_seconds(), 0.0), _MAX_WAIT_S)


def described(
    headers: Mapping[str, str], *, size: int, url: str, dialect: Dialect = S3
) -> ObjectInfo:
    """Size, time and tag of the object that a HEAD or GET reply describes.

    Raises:
        StoreError: there is no tag or no Last-Modified: this is no such service.
    """
    tag = dialect.tag_of(headers)
    modified = instant(headers.get("last-modified", ""))
    if not tag or modified is None:
        text = f"the reply has no {dialect.tag_element} or no Last-Modified: is this {dialect.service}?"
        raise StoreError(text, url=url)
    return ObjectInfo(size=size, modified=modified, tag=tag)


def content_length(headers: Mapping[str, str], *, url: str) -> int:
    """The `Content-Length`. Raises StoreError where it is missing or no number."""
    text = headers.get("content-length", "")
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise StoreError(f"the reply's Content-Length is {text[:40]!r}", url=url)
    return int(text)


def extent(
    status: int,
    headers: Mapping[str, str],
    *,
    offset: int,
    length: int,
    url: str,
    dialect: Dialect = S3,
) -> Extent:
    """Check a successful reply to "bytes [offset, offset + length)" before its body is read.

    A 206 must carry exactly that range, cut at the object's size. A 200 is right only where the whole
    object lies in what was asked (some services answer so for empty or small ones).

    Raises:
        StoreError: another range, or a whole object that was not asked for.
    """
    encodings = {headers.get(name, "") for name in _ENCODINGS}
    if not encodings <= {"identity", "", "aws-chunked"}:
        raise StoreError("the object is stored compressed in transit (Content-Encoding)", url=url)
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None:
            raise _wrong_range(headers, offset, length, url)
        first, last, size = map(int, match.groups())
        if first != offset or last != min(offset + length, size) - 1 or last < first:
            raise _wrong_range(headers, offset, length, url)
        return Extent(last - first + 1, described(headers, size=size, url=url, dialect=dialect))
    size = content_length(headers, url=url)
    if offset or size > length:
        raise StoreError("the server ignored the Range header and sent the whole object", url=url)
    return Extent(size, described(headers, size=size, url=url, dialect=dialect))


def _wrong_range(headers: Mapping[str, str], offset: int, length: int, url: str) -> WStoreError:
    said = headers.get("content-range", "no range")[:80]
    return StoreError(f"asked for {length} bytes from {offset}, the reply has {said!r}", url=url)
