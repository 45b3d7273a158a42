"""Ranged reads in one GET, by the wire client or over a plain connection, checked against what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wstore.errors import BodyCut, BodyStalled, ObjectChanged, StoreTimeout, Unavailable
from wstore.stores.base import Read
from wstore.stores.s3.replies import Reply, content_length, described, extent
from wstore.stores.s3.wire import Request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from wstore.errors import WStoreError
    from wstore.stores.base import ObjectInfo
    from wstore.stores.s3.replies import Extent
    from wstore.stores.s3.wire import Wire

_MAX_ERROR_BYTES = 64 << 10


class Body(Protocol):
    """A reply whose body is still to be read: `wire.Streamed` or `plain.PlainStream`."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def failure(self) -> WStoreError | None: ...

    def fill(self, view: memoryview) -> int: ...

    def read_all(self, limit: int) -> bytes: ...


class Opener(Protocol):
    """Sends one request: `wire.Wire` or `plain.Plain`."""

    def open(self, request: Request) -> AbstractContextManager[Body]: ...


def head(wire: Wire, key: str) -> ObjectInfo:
    """Describe the object.

    A HEAD reply has no body, so an error other than "not found" is asked for again as a GET of one
    byte, whose body says what is wrong.
    """
    url = wire.url(key)
    reply = wire.call(Request("HEAD", key), accept=frozenset({200, 301, 307, 400, 401, 403}))
    if reply.status == 200:
        size = content_length(reply.headers, url=url)
        return described(reply.headers, size=size, url=url, dialect=wire.dialect)
    probe = Request("GET", key, headers={"range": "bytes=0-0"})
    wire.call(probe, accept=frozenset({200, 206, 416}))
    raise wire.error(reply, key)


def read_range(
    wire: Wire,
    key: str,
    offset: int,
    length: int,
    *,
    buffer: memoryview | None,
    tag: str | None,
    opener: Opener,
) -> Read:
    """`Store.read` in one GET. `opener` is the client that sends it; `wire` explains what failed."""
    headers = {"range": f"bytes={offset}-{offset + length - 1}"} | wire.dialect.pin(tag)
    url = wire.url(key)
    with opener.open(Request("GET", key, headers=headers)) as streamed:
        if streamed.status in {200, 206}:
            got = extent(
                streamed.status,
                streamed.headers,
                offset=offset,
                length=length,
                url=url,
                dialect=wire.dialect,
            )
            require_tag(got.info, tag, url)
            return receive(streamed, got, buffer, url)
        reply = Reply(streamed.status, streamed.headers, streamed.read_all(_MAX_ERROR_BYTES))
    if reply.status == 416:
        return _past_the_end(head(wire, key), offset, tag, url)
    if reply.status == 412 and tag is not None:
        raise changed(url)
    raise wire.error(reply, key)


def require_tag(info: ObjectInfo, tag: str | None, url: str) -> None:
    """Raise ObjectChanged where a tag was asked for and another came (a server may ignore conditions)."""
    if tag is not None and info.tag != tag:
        raise changed(url)


def changed(url: str) -> ObjectChanged:
    """The error for an object that no longer has the content that was asked for."""
    return ObjectChanged("the object was replaced while it was being read", url=url)


def target(buffer: memoryview | None, length: int) -> memoryview:
    """Where a body of `length` bytes goes: the front of the caller's buffer, or memory of its own."""
    return memoryview(bytearray(length)) if buffer is None else buffer[:length]


def receive(body: Body, got: Extent, buffer: memoryview | None, url: str) -> Read:
    """Take a checked reply's body; one that ends early is BodyCut or BodyStalled, with what came."""
    view = target(buffer, got.length)
    # Never read at the end of a body that is shorter than its range: urllib3 would take the connection
    # for clean, and what the server sends after all would be the next reply's beginning.
    end = got.length
    if "content-length" in body.headers:
        end = min(end, content_length(body.headers, url=url))
    filled = body.fill(view[:end])
    if filled == got.length:
        return Read(view, got.info)
    cause = body.failure
    if filled == 0 and isinstance(cause, StoreTimeout):
        raise cause
    text = f"the body ended after {filled} of {got.length} bytes"
    if cause is not None:
        text += f": {cause.message}"
    kind = BodyStalled if isinstance(cause, StoreTimeout) else BodyCut
    raise kind(text, url=url, read=Read(view[:filled], got.info)) from cause


def _past_the_end(info: ObjectInfo, offset: int, tag: str | None, url: str) -> Read:
    require_tag(info, tag, url)
    if info.size > offset:
        raise Unavailable("the object grew while it was being read", url=url)
    return Read(memoryview(b""), info)
