"""Files on an HTTP server, for reading: `https://host[:port]/path`.

No credentials are sent, here or to where a redirect leads. A server is believed in nothing that its
other words contradict (`http_replies`). There is no listing, and nothing can be written.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, TypeVar
from urllib.parse import urljoin, urlsplit

import urllib3

from wstore.errors import IsADirectory, StoreError, UnsupportedOperation
from wstore.stores.base import Capabilities, Expect, Read
from wstore.stores.objects.http_replies import HTTP, object_info, pin, ranged, refusal
from wstore.stores.objects.unlogged import queries_unlogged
from wstore.stores.s3.environment import Environment
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.reading import changed, receive, require_tag
from wstore.stores.s3.wire import Streamed, proxy_for, translated
from wstore.urls import Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wstore.stores.base import Entry, ObjectInfo, Store

F = TypeVar("F")

_CAPABILITIES = Capabilities(create_if_absent=False, if_match=False, durable=False, listing=False)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_POOL_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """How to reach servers; times in seconds.

    Attributes:
        ca_bundle: PEM file with the authorities to trust, None for the system's.
    """

    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> HttpConfig:
        """Raises InvalidArgument where a variable has a value that means nothing."""
        values = Environment(environment)
        return cls(
            ca_bundle=values.file("SSL_CERT_FILE"),
            connect_timeout_s=values.seconds("WSTORE_CONNECT_TIMEOUT", 10.0),
            idle_timeout_s=values.seconds("WSTORE_IDLE_TIMEOUT", 60.0),
        )


def open_http(scheme: str, root: str) -> Store:
    """The server `root` ("host" or "host:port"). No request is sent."""
    return HttpStore(scheme, root, HttpConfig.from_environment())


class HttpStore:
    """See the module. Safe from any thread, and in a forked child, which opens its own connections."""

    def __init__(self, scheme: str, root: str, config: HttpConfig) -> None:
        self._scheme = scheme
        self._root = root
        self._config = config
        self._pools = PerProcess(dict[str | None, urllib3.PoolManager])

    def __repr__(self) -> str:
        return f"HttpStore({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a store is not pickled; a StoragePath is, and opens its own")

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._root}"

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def stat(self, key: str) -> ObjectInfo:
        """One HEAD; where the server knows none, or gives no size, a GET of one byte."""
        url = self._url(key)
        with self._open("HEAD", url, {}) as reply:
            if reply.status == 200 and "content-length" in reply.headers:
                return object_info(reply.headers, url=url)
            if reply.status not in {200, 405, 501}:
                raise refusal(reply.status, reply.headers, url=url)
        return self.read(key, 0, 1).info

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """One ranged GET. From a server that ignores ranges, only a whole object that lies in the range.

        Raises:
            UnsupportedOperation: the server ignores ranges.
        """
        url = self._url(key)
        headers = {"range": f"bytes={offset}-{offset + length - 1}", **pin(tag)}
        with self._open("GET", url, headers) as reply:
            if reply.status in {200, 206}:
                got = ranged(reply.status, reply.headers, offset=offset, length=length, url=url)
                require_tag(got.info, tag, url)
                if not got.length:
                    return Read(memoryview(b""), got.info)
                return receive(reply, got, buffer, url)
            status, said = reply.status, reply.headers
        if status == 412 and tag is not None:
            raise changed(url)
        if status != 416:
            raise refusal(status, said, url=url)
        info = self.stat(key)
        require_tag(info, tag, url)
        if info.size > offset:
            raise StoreError("the server refuses a range that lies inside of the file", url=url)
        return Read(memoryview(b""), info)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> Never:
        """Refused."""
        raise self._read_only(key)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """Refused, at the call."""
        text = "an HTTP server has no listing: name the files"
        raise UnsupportedOperation(text, url=self._url(prefix))

    def delete(self, key: str) -> Never:
        """Refused."""
        raise self._read_only(key)

    def close(self) -> None:
        """Close the idle connections of this process."""
        for pool in (self._pools.take() or {}).values():
            pool.clear()

    def feature(self, kind: type[F]) -> F | None:
        return None

    def _read_only(self, key: str) -> UnsupportedOperation:
        return UnsupportedOperation("HTTP servers are for reading only", url=self._url(key))

    def _url(self, key: str) -> str:
        return Location(self._scheme, self._root, key).url

    @contextlib.contextmanager
    def _open(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[Streamed]:
        """Send, and follow where it leads; inside, the body may be read. A connection whose body was
        left unread is closed. `url` is what errors name: the rest of the way may be signed."""
        at = url
        for _ in range(_MAX_REDIRECTS + 1):
            with self._exchange(method, at, headers, url) as reply:
                if reply.status not in _REDIRECTS:
                    yield reply
                    return
                at = _followed(at, reply.headers.get("location", ""), url)
        raise StoreError(f"more than {_MAX_REDIRECTS} redirects", url=url)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, at: str, headers: Mapping[str, str], url: str
    ) -> Iterator[Streamed]:
        with queries_unlogged(), translated(url, HTTP):
            response = self._pool(at).urlopen(
                method,
                at,
                headers={"accept-encoding": "identity", "user-agent": "wstore", **headers},
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        whole = False
        try:
            yield Streamed(response, url, HTTP)
            whole = method == "HEAD" or response.length_remaining == 0
        finally:
            if whole:
                # Nothing is left, but only a read marks the connection as free for the next request.
                response.drain_conn()
            else:
                response.close()
            response.release_conn()

    def _pool(self, at: str) -> urllib3.PoolManager:
        parts = urlsplit(at)
        proxy = proxy_for(parts.scheme, parts.netloc, parts.hostname or "")
        pools = self._pools.get()
        return pools.get(proxy) or pools.setdefault(proxy, self._new_pool(proxy))

    def _new_pool(self, proxy: str | None) -> urllib3.PoolManager:
        config = self._config
        timeout = urllib3.Timeout(connect=config.connect_timeout_s, read=config.idle_timeout_s)
        if proxy is None:
            return urllib3.PoolManager(
                maxsize=_POOL_CONNECTIONS, timeout=timeout, ca_certs=config.ca_bundle
            )
        return urllib3.ProxyManager(
            proxy, maxsize=_POOL_CONNECTIONS, timeout=timeout, ca_certs=config.ca_bundle
        )


def _followed(at: str, location: str, url: str) -> str:
    """Where a redirect leads.

    Raises:
        IsADirectory: to the same path with a slash behind it, as servers do for directories.
        StoreError: nowhere, to something else than HTTP, from TLS to none, or with a password.
    """
    here = urlsplit(at)
    try:
        target = urljoin(at, location)
        there = urlsplit(target)
        urllib3.util.parse_url(target)  # its errors would repeat the address
    except (ValueError, urllib3.exceptions.LocationParseError):
        location = ""
    if not location or there.scheme not in {"http", "https"} or not there.hostname:
        raise StoreError("the server redirects to no HTTP address", url=url)
    if here.scheme == "https" and there.scheme != "https":
        raise StoreError("the server redirects from https to http: refused", url=url)
    if "@" in there.netloc:
        raise StoreError("the server redirects to an address with a user name: refused", url=url)
    if (there.netloc, there.path) == (here.netloc, f"{here.path}/"):
        raise IsADirectory("this is a directory of the server", url=url)
    return target
