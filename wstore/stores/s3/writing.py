"""Whole objects in one PUT, and the headers that every new object gets."""

from __future__ import annotations

import base64
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
from wstore.stores.s3.documents import normal_tag
from wstore.stores.s3.failures import Failure
from wstore.stores.s3.limits import LIMITS
from wstore.stores.s3.replies import content_length, described, server_time
from wstore.stores.s3.wire import Request

if TYPE_CHECKING:
    from wstore.stores.s3.config import S3Config
    from wstore.stores.s3.wire import Wire

WRITE_ID = "x-amz-meta-wstore-write"
_CRC = "x-amz-checksum-crc32c"
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
    url = wire.url(key)
    if data.nbytes > LIMITS.max_put:
        text = f"{data.nbytes} bytes in one write: S3 takes {LIMITS.max_put}"
        raise InvalidArgument(text, url=url)
    headers = object_headers(wire.config)
    if wire.config.checksum:
        headers |= checksum_headers(data)
    if write_id is not None:
        headers[WRITE_ID] = write_id
    if expect is Expect.ABSENT:
        headers["if-none-match"] = "*"
    elif isinstance(expect, str):
        headers["if-match"] = expect
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
    stored = reply.headers.get(_CRC)
    if stored is not None and _CRC in headers and stored != headers[_CRC]:
        raise IntegrityError("the service stored other bytes (their CRC-32C differs)", url=url)
    tag = normal_tag(reply.headers.get("etag", ""))
    if not tag:
        raise StoreError("the reply to a write has no ETag: is this S3?", url=url)
    return ObjectInfo(data.nbytes, server_time(reply.headers), tag)


def write_id_of(wire: Wire, key: str) -> tuple[str | None, ObjectInfo | None]:
    """The write id on the present object, and the object; (None, None) where there is none."""
    url = wire.url(key)
    try:
        reply = wire.call(Request("HEAD", key))
    except NotFound:
        return None, None
    size = content_length(reply.headers, url=url)
    return reply.headers.get(WRITE_ID), described(reply.headers, size=size, url=url)


def object_headers(config: S3Config) -> dict[str, str]:
    """What a new object is created with."""
    headers = {}
    if config.encryption is not None:
        headers["x-amz-server-side-encryption"] = config.encryption
    if config.kms_key is not None:
        headers["x-amz-server-side-encryption-aws-kms-key-id"] = config.kms_key
    return headers


def checksum_headers(data: memoryview) -> dict[str, str]:
    """The CRC-32C of a body, which the service compares with what it received."""
    crc = 0
    # The library takes nothing but `bytes`; small copies stay in the processor's cache.
    for start in range(0, data.nbytes, _CRC_CHUNK):
        crc = google_crc32c.extend(crc, bytes(data[start : start + _CRC_CHUNK]))
    text = base64.b64encode(crc.to_bytes(4, "big")).decode()
    return {_CRC: text, "x-amz-sdk-checksum-algorithm": "CRC32C"}
