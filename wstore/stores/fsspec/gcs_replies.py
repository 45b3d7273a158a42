"""What one reply of Google Cloud Storage's JSON API says, checked: pure functions.

Source: "Cloud Storage JSON API: Objects" and "HTTP status and error codes for JSON", Google.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wstore.errors import (
    AccessDenied,
    CredentialsMissing,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    StoreError,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import ObjectInfo
from wstore.stores.s3.replies import instant, retry_after_s

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DOCUMENT_BYTES = 16 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_GENERATION = re.compile(r"[1-9][0-9]{0,18}")
_STORED_ENCODING = "x-goog-stored-content-encoding"
_MAX_TEXT = 300

WRITE_ID = "wstore-write"
"""The name of an object's metadata that holds the id of the write that made it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply whose body was read. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False, default=b"")


def is_generation(tag: str) -> bool:
    """Whether a tag can be a generation at all."""
    return _GENERATION.fullmatch(tag) is not None


def document(reply: Reply, url: str) -> dict[str, object]:
    """The JSON object of a reply. Raises StoreError where it is none."""
    try:
        found = json.loads(reply.body)
    except ValueError as error:
        raise StoreError("the reply is no JSON: is this Google Cloud Storage?", url=url) from error
    if not isinstance(found, dict):
        raise StoreError("the reply is no JSON object", url=url)
    return found


def described(resource: Mapping[str, object], url: str) -> ObjectInfo:
    """Size, time and generation of an object resource. Raises StoreError where one is missing."""
    size, tag = str(resource.get("size", "")), str(resource.get("generation", ""))
    try:
        modified = datetime.fromisoformat(str(resource.get("updated", "")))
    except ValueError:
        modified = None
    if not is_generation(tag) or not size.isdecimal() or len(size) > 19 or modified is None:
        raise StoreError("an object without size, generation or time of change", url=url)
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=UTC)
    return ObjectInfo(int(size), modified.astimezone(UTC), tag)


def written_by(resource: Mapping[str, object]) -> str | None:
    """The id of the write that made this object, where it was stamped with one."""
    metadata = resource.get("metadata")
    found = metadata.get(WRITE_ID) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else None


def extent(reply: Reply, *, offset: int, length: int, url: str) -> tuple[int, ObjectInfo]:
    """How many bytes the body of a ranged GET holds, and the object they belong to.

    A 206 must carry exactly what was asked, cut at the object's size; a 200 is right only where the
    whole object lies in what was asked.

    Raises:
        StoreError: another range, a whole object that was not asked for, or one that is stored
            compressed (the service would decode it and ignore ranges).
    """
    headers = reply.headers
    encodings = (headers.get("content-encoding", ""), headers.get(_STORED_ENCODING, ""))
    if not {"", "identity"}.issuperset(encodings):
        raise StoreError("the object is stored compressed (Content-Encoding)", url=url)
    if reply.status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        first, last, size = (-1, -1, -1) if match is None else map(int, match.groups())
        if first != offset or last != min(offset + length, size) - 1 or last < first:
            said = headers.get("content-range", "no range")[:80]
            text = f"asked for {length} bytes from {offset}, the reply has {said!r}"
            raise StoreError(text, url=url)
        return last - first + 1, _of_headers(headers, size, url)
    text = headers.get("content-length", "")
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if size < 0 or offset or size > length:
        raise StoreError("the server ignored the Range header and sent the whole object", url=url)
    return size, _of_headers(headers, size, url)


def _of_headers(headers: Mapping[str, str], size: int, url: str) -> ObjectInfo:
    tag = headers.get("x-goog-generation", "")
    modified = instant(headers.get("last-modified", ""))
    if not is_generation(tag) or modified is None:
        text = "the reply has no generation or no Last-Modified: is this Google Cloud Storage?"
        raise StoreError(text, url=url)
    return ObjectInfo(size, modified, tag)


def server_time(reply: Reply) -> datetime:
    """The service's clock when it answered; the local one where it does not say."""
    return instant(reply.headers.get("date", "")) or datetime.now(UTC)


def failure(reply: Reply, url: str) -> WStoreError:
    """What an error reply means."""
    status, text = reply.status, _text(reply)
    if status == 404:
        return NotFound(f"no such object, or no such bucket ({text})", url=url)
    if status == 401:
        return CredentialsMissing(f"the service wants other credentials ({text})", url=url)
    if status == 403:
        return AccessDenied(f"access denied: these credentials may not do this ({text})", url=url)
    if status == 412:
        return PreconditionFailed(f"the object has another content ({text})", url=url)
    if status in {408, 429} or status >= 500:
        if status == 501:
            return UnsupportedOperation(f"this service cannot do this ({text})", url=url)
        wait_s = retry_after_s(reply.headers)
        later = f"the service asks to try again later ({text})"
        return Unavailable(later, url=url, retry_after_s=wait_s)
    if status in {400, 413}:
        return InvalidArgument(f"the service refused the request ({text})", url=url)
    return StoreError(f"the service refused the request ({text})", url=url)


def no_credentials(error: Exception, url: str) -> CredentialsMissing:
    """google-auth found none, or could not renew them. Its texts may quote a token: only the kind of
    its error is told."""
    return CredentialsMissing(
        f"no usable Google credentials ({type(error).__name__}): set GOOGLE_APPLICATION_CREDENTIALS, "
        "run `gcloud auth application-default login`, or FSSPEC_GCS_TOKEN=anon for public buckets",
        url=url,
    )


def _text(reply: Reply) -> str:
    """ "HTTP 404: Not Found", from either of the forms that the service uses."""
    said = reply.body[:4096].decode("utf-8", "replace")
    try:
        found = json.loads(reply.body)
        said = str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        pass
    shown = "".join(c if c.isprintable() else " " for c in said)[:_MAX_TEXT].strip()
    return f"HTTP {reply.status}: {shown}" if shown else f"HTTP {reply.status}"
