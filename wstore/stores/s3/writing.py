"""Whole objects in one PUT, and the headers that every new object gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from wstore.errors import (
    AlreadyExists,
    IntegrityError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    StoreError,
)
from wstore.stores.base import Expect, ObjectInfo
from wstore.stores.s3.failures import Failure
from wstore.stores.s3.replies import content_length, described, server_time
from wstore.stores.s3.wire import Request

if TYPE_CHECKING:
    from wstore.stores.s3.dialect import Dialect
    from wstore.stores.s3.wire import Wire

_CRC_CHUNK = 256 << 10


def put_object(
    wire: Wire,
    key: str,
    data: memoryview,
    *,
    expect: Expect | str = Expect.ANY,
    write_id: str | None = None,
) -> ObjectInfo:
    """`Store.write`: one PUT. `modified` is the service's clock at its answer."""
    url, dialect = wire.url(key), wire.dialect
    limit = dialect.limits.max_put
    if data.nbytes > limit:
        text = f"{data.nbytes} bytes in one write: {dialect.service} takes {limit}"
        raise InvalidArgument(text, url=url)
    if isinstance(expect, str) and not dialect.read_tag(expect):
        raise PreconditionFailed("no object here has the tag that was given", url=url)
    headers = wire.config.object_headers() | dialect.expectation(expect)
    if wire.config.checksum:
        headers |= checksum_headers(data, dialect)
    if write_id is not None:
        headers[dialect.write_id] = write_id
    request = Request("PUT", key, headers=headers, body=data, bulk=True)
    reply = wire.call(request, accept=frozenset({200, 404, 412}))
    if reply.status == 412:
        if expect is Expect.ABSENT:
            raise AlreadyExists("there is an object under this key", url=url)
        raise PreconditionFailed("the object has another content than the tag names", url=url)
    if reply.status == 404:
        if isinstance(expect, str) and Failure.of(reply).code != "NoSuchBucket":
            raise PreconditionFailed("there is no object to replace", url=url)
        raise wire.error(reply, key)
    if dialect.stores_other(headers, reply.headers):
        raise IntegrityError("the service stored other bytes (their CRC-32C differs)", url=url)
    tag = dialect.tag_of(reply.headers)
    if not tag:
        text = f"the reply to a write has no {dialect.tag_element}: is this {dialect.service}?"
        raise StoreError(text, url=url)
    return ObjectInfo(data.nbytes, server_time(reply.headers), tag)


def write_id_of(wire: Wire, key: str) -> tuple[str | None, ObjectInfo | None]:
    """The write id on the present object, and the object; (None, None) where there is none."""
    url = wire.url(key)
    try:
        reply = wire.call(Request("HEAD", key))
    except NotFound:
        return None, None
    size = content_length(reply.headers, url=url)
    info = described(reply.headers, size=size, url=url, dialect=wire.dialect)
    return reply.headers.get(wire.dialect.write_id), info


def checksum_headers(data: memoryview, dialect: Dialect) -> dict[str, str]:
    """The CRC-32C of a body, which the service compares with what it received."""
    crc = 0
    # The library takes nothing but `bytes`; small copies stay in the processor's cache.
    for start in range(0, data.nbytes, _CRC_CHUNK):
        crc = google_crc32c.extend(crc, bytes(data[start : start + _CRC_CHUNK]))
    return dialect.checksum_headers(crc)
