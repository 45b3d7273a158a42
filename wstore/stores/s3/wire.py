"""One HTTP exchange: signed, checked, translated. It neither repeats nor follows anything."""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions as transport

from wstore.errors import (
    ConnectionFailed,
    CredentialsMissing,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    StoreError,
    StoreTimeout,
    Unavailable,
    WStoreError,
)
from wstore.stores.s3 import sigv4
from wstore.stores.s3.dialect import Outgoing
from wstore.stores.s3.documents import MAX_DOCUMENT_BYTES
from wstore.stores.s3.environment import is_this_machine
from wstore.stores.s3.failures import Failure, printable
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wstore.stores.s3.dialect import Authority, Dialect, Service

T = TypeVar("T")

_MAX_ERROR_BYTES = 64 << 10
# urllib3 hands a body to one `sendall` a chunk, and a socket's timeout bounds the whole `sendall`: so
# the idle timeout allows this many bytes in that time.
_SEND_CHUNK = 1 << 20
_RECEIVE_CHUNK = 256 << 10
_POOL_CONNECTIONS = 64
_MAX_KEY_BYTES = 1024
# OpenSSL's words, up to 3.1 and since, for an answer that is no TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a bucket (`key` None) or to an object of it.

    Attributes:
        headers: names in lower case; all are signed.
        body: sent as it is. Its hash is signed where `bulk` is false.
        bulk: the body is protected by TLS and by a checksum header instead.
    """

    method: str
    key: str | None = None
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview = field(default=memoryview(b""), repr=False)
    bulk: bool = False


class Streamed:
    """A reply whose body is still to be read."""

    __slots__ = ("_dialect", "_response", "_url", "failure", "headers", "status")

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, dialect: Dialect) -> None:
        self._response = response
        self._url = url
        self._dialect = dialect
        self.failure: WStoreError | None = None
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def read_some(self, limit: int) -> bytes:
        """The next bytes, at least one and at most `limit`; b"" at the body's end.

        Raises:
            StoreTimeout, ConnectionFailed: nothing came, or the connection broke.
        """
        with translated(self._url, self._dialect):
            return self._response.read1(min(limit, _RECEIVE_CHUNK))

    def fill(self, view: memoryview) -> int:
        """Read until `view` is full or the body ends; returns the bytes read. Where something broke,
        `failure` says what (StoreTimeout, ConnectionFailed)."""
        filled = 0
        try:
            while filled < len(view) and (chunk := self.read_some(len(view) - filled)):
                view[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
        except (ConnectionFailed, StoreTimeout) as error:
            self.failure = error
        return filled

    def read_all(self, limit: int) -> bytes:
        """The whole body. Raises StoreError where it is longer than `limit`."""
        chunks, room = [], limit
        while chunk := self.read_some(room + 1):
            chunks.append(chunk)
            room -= len(chunk)
            if room < 0:
                raise StoreError(f"a control reply is longer than {limit} bytes", url=self._url)
        return b"".join(chunks)


class Wire:
    """A client of one bucket. Safe from any thread; a forked child opens connections of its own."""

    def __init__(self, bucket: str, config: Service, authority: Authority) -> None:
        self.bucket = bucket
        self.config = config
        self.dialect = config.dialect
        self._authority = authority
        self._target = config.target(bucket)
        self._proxy = proxy_for(self._target.scheme, self._target.host, self.place[0])
        self._pool = PerProcess(self._open_pool)

    @property
    def is_plain(self) -> bool:
        """Whether the service is reached without TLS and without a proxy."""
        return self._target.scheme == "http" and self._proxy is None

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the service."""
        parts = urlsplit(self._target.base)
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)

    def url(self, key: str | None = None) -> str:
        """The URL that errors name."""
        place = f"{self.dialect.scheme}://{self.bucket}"
        return place + (f"/{printable(key, _MAX_KEY_BYTES)}" if key else "")

    def call(self, request: Request, *, accept: frozenset[int] = frozenset({200})) -> Reply:
        """Send, and read the whole reply.

        Args:
            accept: the statuses that are returned; any other is raised as the error that it means.
        """
        with self.open(request) as streamed:
            good = streamed.status in accept and streamed.status < 300
            limit = MAX_DOCUMENT_BYTES if good else _MAX_ERROR_BYTES
            body = b"" if request.method == "HEAD" else streamed.read_all(limit)
            reply = Reply(streamed.status, streamed.headers, body)
        if reply.status not in accept:
            raise self.error(reply, request.key)
        return reply

    @contextlib.contextmanager
    def open(self, request: Request) -> Iterator[Streamed]:
        """Send; inside, the body may be read. A connection whose body was left unread is closed."""
        url = self.url(request.key)
        headers = self._headers(request)
        path = self._path(request.key)
        query = sigv4.encode_query(request.query)
        # A proxy wants the whole URL where it only forwards; with TLS it is asked for a tunnel instead.
        base = self._target.base if self._is_forwarded else ""
        with translated(url, self.dialect):
            response = self._pool.get().urlopen(
                request.method,
                f"{base}{path}{'?' if query else ''}{query}",
                body=_chunks(request.body) if request.body else None,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        whole = False
        try:
            yield Streamed(response, url, self.dialect)
            whole = request.method == "HEAD" or response.length_remaining == 0
        finally:
            if whole:
                # Nothing is left, but only a read marks the connection as free for the next request.
                response.drain_conn()
            else:
                response.close()
            response.release_conn()

    def head_of(self, request: Request) -> bytes:
        """The signed head of a request as it goes over the connection."""
        path, query = self._path(request.key), sigv4.encode_query(request.query)
        lines = [f"{request.method} {path}{'?' if query else ''}{query} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers(request).items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def error(self, reply: Reply, key: str | None) -> WStoreError:
        """What an error reply means."""
        url = self.url(key)
        if reply.status == 401 and self._authority.renewed():
            return Unavailable("the access token was refused; the next one is newer", url=url)
        return Failure.of(reply).error(url=url, bucket=self.bucket, region=self.config.region)

    def parsed(self, reply: Reply, key: str | None, parse: Callable[[bytes], T]) -> T:
        """What `parse` (of `documents`) reads in a reply about `key`.

        Raises:
            IntegrityError: the reply is no such document.
        """
        try:
            return parse(reply.body)
        except IntegrityError as error:
            text = f"{error.message}: is this {self.dialect.service}?"
            raise IntegrityError(text, url=self.url(key)) from error

    def close(self) -> None:
        """Close the idle connections of this process."""
        pool = self._pool.take()
        if pool is not None:
            pool.close()

    @property
    def _is_forwarded(self) -> bool:
        return self._proxy is not None and self._target.scheme == "http"

    def _path(self, key: str | None) -> str:
        try:
            if key is not None and len(key.encode()) > _MAX_KEY_BYTES:
                raise InvalidPath(f"a key is longer than {_MAX_KEY_BYTES} bytes", url=self.url(key))
        except UnicodeEncodeError as error:
            raise InvalidPath("a key is not valid Unicode", url=self.url(key)) from error
        if key is not None and self._is_forwarded and {".", ".."} & set(key.split("/")):
            text = (
                "a key with a '.' or '..' segment does not pass an HTTP proxy unchanged (NO_PROXY)"
            )
            raise InvalidPath(text, url=self.url(key))
        if self._target.bucket_in_path:
            return sigv4.encode_path(self.bucket, *([] if key is None else [key]))
        return sigv4.encode_path(key or "")

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"host": self._target.host, **request.headers, **self.config.request_headers()}
        outgoing = Outgoing(
            request.method,
            self._path(request.key),
            request.query,
            headers,
            None if request.bulk else request.body,
        )
        try:
            headers = self._authority.authorised(outgoing)
        except CredentialsMissing as error:
            error.url = error.url or self.url(request.key)
            raise
        if request.method in {"PUT", "POST"}:
            headers["content-length"] = str(request.body.nbytes)
        for name, value in headers.items():
            if not value.isprintable() or max(value, default="") > "\xff":
                text = f"what shall be sent as {name} has characters that no header may have"
                raise InvalidArgument(text, url=self.url(request.key))
        headers["accept-encoding"] = "identity"
        headers["user-agent"] = "wstore"
        return headers

    def _open_pool(self) -> urllib3.HTTPConnectionPool:
        # `ca_certs` concerns TLS only; without TLS urllib3 leaves it alone.
        timeout = urllib3.Timeout(
            connect=self.config.connect_timeout_s, read=self.config.idle_timeout_s
        )
        ca_bundle = self.config.ca_bundle
        manager = (
            urllib3.PoolManager(maxsize=_POOL_CONNECTIONS, timeout=timeout, ca_certs=ca_bundle)
            if self._proxy is None
            else urllib3.ProxyManager(
                self._proxy, maxsize=_POOL_CONNECTIONS, timeout=timeout, ca_certs=ca_bundle
            )
        )
        return manager.connection_from_url(self._target.base)


def proxy_for(scheme: str, netloc: str, host: str) -> str | None:
    """The proxy that the environment demands. Never one for this machine's own addresses: a proxy
    elsewhere would look for the service at itself."""
    proxy = getproxies().get(scheme)
    if not proxy or is_this_machine(host):
        return None
    return None if proxy_bypass(netloc) or proxy_bypass(host) else proxy


def _chunks(body: memoryview) -> Iterator[bytes]:
    for start in range(0, body.nbytes, _SEND_CHUNK):
        # Typed as bytes for urllib3; the socket below takes any buffer, so nothing is copied.
        yield cast("bytes", body[start : start + _SEND_CHUNK])


@contextlib.contextmanager
def translated(url: str, dialect: Dialect) -> Iterator[None]:
    """Transport failures as wstore errors: each is worth another attempt but those of trust and name."""
    try:
        yield
    except transport.NameResolutionError as error:
        cause = error.__cause__
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            raise StoreError(unknown_host(dialect), url=url) from error
        raise ConnectionFailed(f"the host name could not be resolved: {error}", url=url) from error
    except transport.NewConnectionError as error:
        raise unreachable(error.__cause__ or error, url, dialect) from error
    except transport.ConnectTimeoutError as error:
        raise ConnectionFailed("no connection within the connect timeout", url=url) from error
    except transport.TimeoutError as error:
        raise StoreTimeout("no byte within the idle timeout", url=url) from error
    except transport.SSLError as error:
        cause = error.__cause__ or error.args[0]
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            text = f"the endpoint answers without TLS: use http://, or check {dialect.endpoint_variable}"
            raise StoreError(text, url=url) from error
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = (
                f"the endpoint's certificate is not trusted ({error}): "
                f"if you trust its authority, name the authority's PEM file in {dialect.ca_variable}"
            )
            raise StoreError(text, url=url) from error
        raise ConnectionFailed(f"TLS failed: {error}", url=url) from error
    except (transport.HTTPError, OSError) as error:
        raise ConnectionFailed(_reason(error), url=url) from error


def unreachable(error: BaseException, url: str, dialect: Dialect) -> ConnectionFailed:
    """No connection came about; the likely mistake is in the endpoint."""
    text = f"the endpoint refuses connections ({printable(str(error), 200)})"
    return ConnectionFailed(f"{text}: check {dialect.endpoint_variable}", url=url)


def unknown_host(dialect: Dialect) -> str:
    """What to say of a host name that does not exist."""
    return f"the endpoint's host name is unknown: check {dialect.endpoint_variable}"


def _reason(error: Exception) -> str:
    return f"the connection failed: {printable(str(error) or type(error).__name__, 200)}"
