"""Listings in order through `ls`, one directory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import NotFound
from wstore.stores.base import Entry
from wstore.stores.fsspec.descriptions import described, is_directory
from wstore.stores.posix_temp import is_temp_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Rows = list[Mapping[str, object]]


def is_hidden(key: str) -> bool:
    """Whether this is the temporary file of an unfinished write."""
    return is_temp_name(key.rpartition("/")[2].encode("utf-8", "surrogateescape"))


def entries(
    list_directory: Callable[[str], Rows],
    prefix: str,
    *,
    recursive: bool,
    after: str,
    url: str,
) -> Iterator[Entry]:
    """See `Store.list`; temporary files included.

    Args:
        list_directory: what is directly under a prefix: names without their parent, raises NotFound.
    """
    try:
        rows = list_directory(prefix)
    except NotFound:
        return
    found = {}
    for row in rows:
        key = prefix + str(row["name"])
        found[key + "/" if is_directory(row) else key] = row
    for key in sorted(found, key=_order):
        if key.endswith("/") and recursive:
            # All keys below it come before `after`, unless that is below it too.
            if _order(key) > _order(after) or after.startswith(key):
                yield from entries(list_directory, key, recursive=True, after=after, url=url)
        elif _order(key) > _order(after):
            yield Entry(key, None if key.endswith("/") else described(found[key], url))


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
