"""Listings of Google Cloud Storage's JSON API: pages of objects and prefixes, merged and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import StoreError
from wstore.stores.base import Entry
from wstore.stores.fsspec.gcs_replies import described, document
from wstore.stores.fsspec.gcs_session import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.stores.fsspec.gcs_session import Session

_FIELDS = "items(name,size,generation,updated),prefixes,nextPageToken"


def entries(
    session: Session, prefix: str, *, recursive: bool, start_after: str = ""
) -> Iterator[Entry]:
    """See `Store.list`; unfinished uploads included."""
    after = start_after.encode()
    # Some servers tell all prefixes with each page: they wait until the objects have come that far.
    waiting: dict[bytes, Entry] = {}
    for items, prefixes, is_last in _pages(session, prefix, recursive, start_after):
        waiting |= {entry.key.encode(): entry for entry in (*items, *prefixes)}
        end = items[-1].key.encode() if items else b""
        for key in sorted(waiting):
            if not is_last and key > end:
                break
            entry = waiting.pop(key)
            if key > after:
                after = key
                yield entry


def _pages(
    session: Session, prefix: str, recursive: bool, start_after: str
) -> Iterator[tuple[list[Entry], list[Entry], bool]]:
    """Objects, prefixes, and whether that is all."""
    url, token = session.url(prefix), ""
    query = [
        ("prefix", prefix),
        ("delimiter", "" if recursive else "/"),
        ("startOffset", start_after),
        ("fields", _FIELDS),
    ]
    while True:
        request = Request("GET", session.objects_path(), (*query, ("pageToken", token)))
        page = document(session.call(request, url), url)
        items = [Entry(_text(item, "name", url), described(item, url)) for item in _list(page, url)]
        prefixes = page.get("prefixes") or []
        if not isinstance(prefixes, list):
            raise StoreError("a page of a listing without a list of prefixes", url=url)
        before, token = token, str(page.get("nextPageToken") or "")
        if token and token == before:
            raise StoreError("the service gives the same page of a listing for ever", url=url)
        yield items, [Entry(str(name), None) for name in prefixes], not token
        if not token:
            return


def _list(page: dict[str, object], url: str) -> list[dict[str, object]]:
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise StoreError("a page of a listing without a list of objects", url=url)
    return items


def _text(item: dict[str, object], name: str, url: str) -> str:
    found = item.get(name)
    if not isinstance(found, str):
        raise StoreError(f"an entry of a listing without {name}", url=url)
    return found
