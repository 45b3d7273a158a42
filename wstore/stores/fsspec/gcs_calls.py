"""What Google Cloud Storage does by itself: composing, rewriting and removing objects."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wstore.errors import StoreError, Unavailable, WStoreError
from wstore.stores.fsspec.gcs_replies import described, document
from wstore.stores.fsspec.gcs_session import Request
from wstore.stores.fsspec.gcs_writing import NEW_OBJECT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstore.stores.base import ObjectInfo
    from wstore.stores.fsspec.gcs_session import Session

_DELETES_AT_ONCE = 16
_INFO = "size,generation,updated"


def object_info(session: Session, key: str) -> ObjectInfo:
    """Describe an object."""
    url = session.url(key)
    request = Request("GET", session.object_path(key), (("fields", _INFO),))
    return described(document(session.call(request, url), url), url)


def rewrite(session: Session, source: str, target: str) -> ObjectInfo:
    """Copy one generation of `source` atomically, in as many requests as the service wants.

    Raises:
        NotFound: naming the source.
    """
    url, token, copied = session.url(source), "", -1
    generation = object_info(session, source).tag
    onto = session.object_path(target).removeprefix("/storage/v1")
    path = f"{session.object_path(source)}/rewriteTo{onto}"
    while True:
        query = [("sourceGeneration", generation), ("rewriteToken", token)]
        reply = document(session.call(Request("POST", path, query), url), url)
        made, token = reply.get("resource"), str(reply.get("rewriteToken") or "")
        if reply.get("done") is True and isinstance(made, dict):
            return described(made, session.url(target))
        if not token:
            raise StoreError("a copy that is not done and cannot go on", url=url)
        # The token may stay the same all along; the bytes may not.
        before, copied = copied, _count(reply.get("totalBytesRewritten"))
        if copied <= before:
            raise Unavailable(f"a copy does not get past byte {copied}", url=url)


def _count(value: object) -> int:
    """A number of bytes, which the service writes as a text; 0 for what is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def compose(session: Session, key: str, sources: list[str], url: str) -> ObjectInfo:
    """Make an object of at most 32 others' bytes, one after the other. `url` is what errors name."""
    body = {"sourceObjects": [{"name": name} for name in sources], "destination": NEW_OBJECT}
    request = Request(
        "POST",
        f"{session.object_path(key)}/compose",
        (("fields", "size,generation,updated"),),
        {"content-type": "application/json"},
        [memoryview(json.dumps(body).encode())],
    )
    return described(document(session.call(request, url), url), url)


def delete_all(session: Session, keys: Iterable[str]) -> None:
    """Remove objects, some at once; one that is gone already is fine.

    Raises:
        WStoreError: the first failure, after all were tried.
    """

    def delete(key: str) -> WStoreError | None:
        request = Request("DELETE", session.object_path(key))
        try:
            session.call(request, session.url(key), accept=frozenset({200, 204, 404}))
        except WStoreError as error:
            return error
        return None

    names = sorted(keys)
    if not names:
        return
    with ThreadPoolExecutor(min(_DELETES_AT_ONCE, len(names))) as pool:
        failures = [error for error in pool.map(delete, names) if error is not None]
    if failures:
        raise failures[0]
