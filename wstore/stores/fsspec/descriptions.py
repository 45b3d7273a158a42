"""What fsspec tells of a file, as an `ObjectInfo`: pure functions over its `info` dictionaries."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from wstore.errors import StoreError
from wstore.stores.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names that protocols give to a token of the content (s3, abfs, gcs, github, git, hf), the strongest first.
_TOKENS = ("generation", "ETag", "etag", "sha", "hex", "blob_id", "xet_hash")
_TIMES = (
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "updated",
    "modify",
    "last_commit",
    "created",
)
_MILLISECONDS = "modificationTime"  # webhdfs's word and unit
_NEVER = datetime.fromtimestamp(0, UTC)


def is_directory(raw: Mapping[str, object]) -> bool:
    """Whether this is a directory, or a prefix of keys."""
    return raw.get("type") == "directory"


def described(raw: Mapping[str, object], url: str) -> ObjectInfo:
    """Size, time and tag. The tag is the protocol's own where it has one; else it is made of size and
    time of change, and knows no better than these. A time that is not told is 1970.

    Raises:
        StoreError: the size is not told, or neither a tag nor a time.
    """
    size = raw.get("size")
    if not isinstance(size, int) or size < 0:
        raise StoreError("fsspec does not tell the size of this file", url=url)
    modified = next((found for name in _TIMES if (found := _time(raw.get(name)))), None)
    milliseconds = raw.get(_MILLISECONDS)
    if modified is None and isinstance(milliseconds, int):
        modified = _time(milliseconds / 1000)
    token = next((str(raw[name]).strip('"') for name in _TOKENS if raw.get(name)), "")
    if not token:
        if modified is None:
            text = "fsspec tells neither a tag nor a time of change that can be read: one content cannot"
            raise StoreError(f"{text} be told from another", url=url)
        token = f"{size}-{modified.timestamp():.6f}"
    return ObjectInfo(size, modified or _NEVER, token)


def _time(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str) and value:
        try:
            if value.endswith(" GMT"):  # HTTP's
                return parsedate_to_datetime(value)
            # FTP (RFC 3659) writes all digits together, which fromisoformat wants with a "T".
            together = value[:14].isdecimal()
            moment = datetime.fromisoformat(f"{value[:8]}T{value[8:]}" if together else value)
        except ValueError:
            return None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None
