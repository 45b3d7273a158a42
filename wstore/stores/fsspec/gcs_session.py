"""Requests to Google Cloud Storage's JSON API over gcsfs's connections.

gcsfs's own calls neither pin a generation nor check what they got, and repeat by themselves; so only its
connections are used. Endpoint and credentials are those of the XML client (`stores.gcs`). This neither
repeats nor follows anything.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from wstore.errors import (
    BodyCut,
    BodyStalled,
    ConnectionFailed,
    CredentialsMissing,
    InvalidArgument,
    InvalidPath,
    StoreError,
    StoreTimeout,
    Unavailable,
    WStoreError,
)
from wstore.stores.base import Read
from wstore.stores.fsspec.bridging import run_on
from wstore.stores.fsspec.gcs_replies import failure
from wstore.stores.fsspec.gcsfs_library import GCSFileSystem, open_gcsfs
from wstore.stores.gcs.credentials import Tokens
from wstore.stores.gcs.dialect import GCS
from wstore.stores.s3.dialect import Outgoing
from wstore.stores.s3.documents import MAX_DOCUMENT_BYTES
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.replies import Reply, extent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence

    from wstore.stores.base import ObjectInfo
    from wstore.stores.gcs.config import GcsConfig

T = TypeVar("T")

_MAX_ERROR_BYTES = 64 << 10
_MAX_KEY_BYTES = 1024
_SEND_CHUNK = 256 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        path: below the endpoint, encoded (see `object_path`).
        query: names and values, not encoded; empty values are left out.
        body: sent one after the other.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[memoryview] = field(default=(), repr=False)


class Session:
    """A client of one bucket. Safe from any thread; a forked child opens connections of its own."""

    def __init__(self, bucket: str, config: GcsConfig) -> None:
        self._bucket = bucket
        self._config = config
        self._tokens = Tokens(config)
        self._trust = _trust(config.ca_bundle)
        self._files: PerProcess[GCSFileSystem] = PerProcess(open_gcsfs)
        # No limit on the total: a slow transfer that makes progress finishes.
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s
        )

    def url(self, key: str = "") -> str:
        """The URL that errors name."""
        shown = key.encode("utf-8", "backslashreplace").decode()[:_MAX_KEY_BYTES]
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
        return f"gs://{self._bucket}" + (f"/{shown}" if key else "")

    def objects_path(self) -> str:
        """Of the bucket's objects."""
        return f"/storage/v1/b/{quote(self._bucket, safe='')}/o"

    def object_path(self, key: str) -> str:
        """Of one object. Raises InvalidPath for what no key can be."""
        return f"{self.objects_path()}/{self._encoded(key)}"

    def check_key(self, key: str) -> None:
        """Raises InvalidPath for what no key can be."""
        self._encoded(key)

    def call(
        self, request: Request, url: str, *, accept: frozenset[int] = frozenset({200})
    ) -> Reply:
        """Send, and read the whole reply.

        Args:
            accept: the statuses that are returned; any other is raised as the error that it means.
        """
        reply = self._exchange(request, url, _whole)
        if reply.status not in accept:
            raise self.error(reply, url)
        return reply

    def error(self, reply: Reply, url: str) -> WStoreError:
        """What an error reply means."""
        if reply.status == 401 and self._tokens.renewed():
            return Unavailable("the access token was refused; the next one is newer", url=url)
        return failure(reply, url)

    def read(
        self,
        request: Request,
        url: str,
        *,
        offset: int,
        length: int,
        buffer: memoryview | None,
    ) -> Read | Reply:
        """A ranged GET; the body goes straight to `buffer`, or to memory of its own. What is neither
        200 nor 206 is returned as it is.

        Raises:
            BodyCut, BodyStalled: the body ended early.
        """
        span = _Span(offset, length, buffer, url)
        got = self._exchange(request, url, span.receive)
        if got.info is None:
            return got.reply
        if got.filled == len(got.view) and got.cause is None:
            return Read(got.view, got.info)
        if got.filled == 0 and isinstance(got.cause, StoreTimeout):
            raise got.cause
        text = f"the body ended after {got.filled} of {len(got.view)} bytes"
        kind = BodyStalled if isinstance(got.cause, StoreTimeout) else BodyCut
        raise kind(text, url=url, read=Read(got.view[: got.filled], got.info)) from got.cause

    def close(self) -> None:
        """Close the connections of this process."""
        files = self._files.take()
        if files is not None and files.session is not None:
            run_on(files.loop, files.session.close())

    def _exchange(
        self,
        request: Request,
        url: str,
        receive: Callable[[aiohttp.ClientResponse], Coroutine[object, None, T]],
    ) -> T:
        """Send a request, and give the reply to `receive` while its body is still to be read."""
        files = self._files.get()
        headers = self._headers(request, url)
        query = urlencode([pair for pair in request.query if pair[1]])
        base = f"{self._config.endpoint}{request.path}"
        address = URL(f"{base}{'?' if query else ''}{query}", encoded=True)

        async def send() -> T:
            # gcsfs has no public name for opening the session in its own loop.
            session = await files._set_session()
            async with session.request(
                request.method,
                address,
                headers=headers,
                data=_chunks(request.body) if request.body else None,
                allow_redirects=False,
                ssl=self._trust,
                timeout=self._timeout,
            ) as response:
                return await receive(response)

        try:
            return run_on(files.loop, send())
        except WStoreError as error:
            error.url = error.url or url
            raise
        except Exception as error:
            raise translated(error, url) from error

    def _headers(self, request: Request, url: str) -> dict[str, str]:
        headers = {"accept-encoding": "identity", "user-agent": "wstore", **request.headers}
        headers |= self._config.request_headers()
        if request.body:
            headers["content-length"] = str(sum(part.nbytes for part in request.body))
        outgoing = Outgoing(request.method, request.path, tuple(request.query), headers, None)
        try:
            return self._tokens.authorised(outgoing)  # may ask Google for a fresh token
        except CredentialsMissing as error:
            error.url = error.url or url
            raise

    def _encoded(self, key: str) -> str:
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise InvalidPath("a key must be valid Unicode", url=self.url(key)) from error
        if not key:
            raise InvalidPath("the root is not an object", url=self.url())
        if size > _MAX_KEY_BYTES:
            raise InvalidPath(f"a key is longer than {_MAX_KEY_BYTES} bytes", url=self.url(key))
        # What lies between would take such a segment for a step in a path.
        return "%2E" * len(key) if key in {".", ".."} else quote(key, safe="")


@dataclass(slots=True)
class _Received:
    """A ranged GET: what was answered, and as much of the body as came."""

    reply: Reply
    info: ObjectInfo | None = None
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    filled: int = 0
    cause: WStoreError | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    """What a ranged GET asked for, and where it goes."""

    offset: int
    length: int
    buffer: memoryview | None
    url: str

    async def receive(self, response: aiohttp.ClientResponse) -> _Received:
        if response.status not in {200, 206}:
            return _Received(await _whole(response))
        reply = Reply(response.status, _lower(response))
        found = extent(
            reply.status,
            reply.headers,
            offset=self.offset,
            length=self.length,
            url=self.url,
            dialect=GCS,
        )
        count, info = found.length, found.info
        view = memoryview(bytearray(count)) if self.buffer is None else self.buffer[:count]
        got = _Received(reply, info, view)
        try:
            async for chunk in response.content.iter_any():
                end = got.filled + len(chunk)
                if end > count:
                    raise StoreError("the body is longer than its range", url=self.url)
                view[got.filled : end] = chunk
                got.filled = end
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, WStoreError):
                raise
            got.cause = translated(error, self.url)
        return got


async def _whole(response: aiohttp.ClientResponse) -> Reply:
    limit = MAX_DOCUMENT_BYTES if response.status < 300 else _MAX_ERROR_BYTES
    chunks, left = [], limit
    async for chunk in response.content.iter_any():
        left -= len(chunk)
        if left < 0:
            raise StoreError(f"a control reply is longer than {limit} bytes")
        chunks.append(chunk)
    return Reply(response.status, _lower(response), b"".join(chunks))


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _trust(ca_bundle: str | None) -> ssl.SSLContext | bool:
    """Whom TLS trusts; True: the system's authorities."""
    if ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ValueError) as error:
        text = f"WSTORE_GCS_CA_BUNDLE holds no certificate in PEM form: {error}"
        raise InvalidArgument(text) from error


async def _chunks(body: Iterable[memoryview]) -> AsyncIterator[bytes]:
    """Copies, since a connection that breaks may keep what it was given for a while."""
    for part in body:
        for start in range(0, part.nbytes, _SEND_CHUNK):
            yield bytes(part[start : start + _SEND_CHUNK])


def translated(error: Exception, url: str) -> WStoreError:
    """What a failure of the connection means: each may pass, but those of trust and name."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return StoreError(f"the endpoint's certificate is not trusted ({error})", url=url)
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, socket.gaierror
    ):
        if error.os_error.errno == socket.EAI_NONAME:
            text = "the endpoint's host name is unknown: check WSTORE_GCS_ENDPOINT, STORAGE_EMULATOR_HOST"
            return StoreError(text, url=url)
        return ConnectionFailed(f"the host name could not be resolved: {error}", url=url)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectionFailed("no connection within the connect timeout", url=url)
    if isinstance(error, TimeoutError):
        return StoreTimeout("no byte within the idle timeout", url=url)
    if isinstance(error, aiohttp.ClientError | OSError):
        return ConnectionFailed(f"the connection failed: {error or type(error).__name__}", url=url)
    return StoreError(f"the request failed: {type(error).__name__}", url=url)
