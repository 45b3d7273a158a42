"""Whole objects in one upload, conditional by generation, checked by CRC-32C."""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING

from wstore import checksums
from wstore.errors import AlreadyExists, IntegrityError, InvalidArgument, PreconditionFailed
from wstore.stores.base import Expect, GiB, PieceLimits
from wstore.stores.fsspec.gcs_replies import (
    WRITE_ID,
    described,
    document,
    failure,
)
from wstore.stores.fsspec.gcs_session import Request
from wstore.stores.gcs.dialect import generation

if TYPE_CHECKING:
    from wstore.stores.base import ObjectInfo
    from wstore.stores.fsspec.gcs_session import Session

# One upload takes 5 TiB; beyond `max_put` a repeat after a failure costs too much.
LIMITS = PieceLimits(max_piece=5 * GiB, max_pieces=10_000, max_put=5 * GiB, max_object=5 << 40)
# Google would serve what the public may read from caches for up to an hour.
NEW_OBJECT = {"cacheControl": "no-cache", "contentType": "application/octet-stream"}
_UPLOADED = "size,generation,updated,crc32c"


def put_object(
    session: Session,
    key: str,
    data: memoryview,
    *,
    expect: Expect | str = Expect.ANY,
    write_id: str | None = None,
) -> ObjectInfo:
    """`Store.write`: one request. Not `uploadType=media`: emulators ignore conditions on that."""
    url = session.url(key)
    session.check_key(key)
    if data.nbytes > LIMITS.max_put:
        raise InvalidArgument(
            f"{data.nbytes} bytes in one write: at most {LIMITS.max_put}", url=url
        )
    if isinstance(expect, str) and not generation(expect):
        raise PreconditionFailed("no object ever had this tag", url=url)
    crc = _crc32c(data)
    resource: dict[str, object] = {"name": key, "crc32c": crc, **NEW_OBJECT}
    if write_id is not None:
        resource["metadata"] = {WRITE_ID: write_id}
    boundary = f"wstore-{secrets.token_hex(16)}"
    query = [("uploadType", "multipart"), ("fields", _UPLOADED)]
    if expect is not Expect.ANY:
        query.append(("ifGenerationMatch", expect if isinstance(expect, str) else "0"))
    request = Request(
        "POST",
        f"/upload{session.objects_path()}",
        query,
        {"content-type": f"multipart/related; boundary={boundary}"},
        _related(boundary, resource, data),
    )
    reply = session.call(request, url, accept=frozenset({200, 404, 412}))
    if reply.status == 412 and expect is Expect.ABSENT:
        raise AlreadyExists("there is an object under this key", url=url)
    if reply.status != 200:
        raise failure(reply, url)
    made = document(reply, url)
    info = described(made, url)
    if info.size != data.nbytes or made.get("crc32c", crc) != crc:
        damaged = IntegrityError("the service stored other bytes than were sent", url=url)
        # A repeat of a conditional write would meet the damaged object and take it for its success.
        damaged.retryable = expect is Expect.ANY
        raise damaged
    return info


def _related(boundary: str, resource: dict[str, object], data: memoryview) -> list[memoryview]:
    """A body of two parts (RFC 2387): what the object is to be, and its bytes."""
    head = (
        f"--{boundary}\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n"
        f"{json.dumps(resource)}\r\n"
        f"--{boundary}\r\ncontent-type: application/octet-stream\r\n\r\n"
    )
    end = f"\r\n--{boundary}--\r\n"
    return [memoryview(head.encode()), data, memoryview(end.encode())]


def _crc32c(data: memoryview) -> str:
    """As the service writes it: base64 of the big-endian bytes."""
    _, _, digits = checksums.crc32c([data]).partition(":")
    return base64.b64encode(bytes.fromhex(digits)).decode()
