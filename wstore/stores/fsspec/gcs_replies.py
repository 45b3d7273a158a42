"""What one reply of Google Cloud Storage's JSON API says, checked: pure functions.

Source: "Cloud Storage JSON API: Objects" and "HTTP status and error codes for JSON", Google.
"""

from __future__ import annotations

import json
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
from wstore.stores.gcs.dialect import generation
from wstore.stores.s3.replies import retry_after_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.stores.s3.replies import Reply

_MAX_TEXT = 300

WRITE_ID = "wstore-write"
"""The name of an object's metadata that holds the id of the write that made it."""


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
    if not generation(tag) or not size.isdecimal() or len(size) > 19 or modified is None:
        raise StoreError("an object without size, generation or time of change", url=url)
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=UTC)
    return ObjectInfo(int(size), modified.astimezone(UTC), tag)


def written_by(resource: Mapping[str, object]) -> str | None:
    """The id of the write that made this object, where it was stamped with one."""
    metadata = resource.get("metadata")
    found = metadata.get(WRITE_ID) if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else None


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
