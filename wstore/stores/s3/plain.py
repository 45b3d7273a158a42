"""Ranged reads over plain HTTP: the kernel puts the body straight into the caller's memory.

Without TLS nothing has to be decrypted, so one `recv` with MSG_WAITALL takes a whole body in one system
call: nothing is copied in between, and the interpreter lock is asked for twice a request (head, body)
however large it is. With TLS Python cannot do that; there `bulk` reads.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING

from wstore.errors import ConnectionFailed, StoreError, StoreTimeout, WStoreError
from wstore.stores.s3.failures import printable
from wstore.stores.s3.instant import MAX_BYTES, receive_now, send_now
from wstore.stores.s3.per_process import generation
from wstore.stores.s3.wire import unknown_host, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wstore.stores.s3.wire import Request, Wire

_MAX_HEAD_BYTES = 64 << 10
_FIRST_READ_BYTES = 16 << 10
_MAX_IDLE = 64
# What lies between forgets a silent connection without a word, so that a request on it would cost the
# whole idle timeout. The shortest such memory in common use is a minute.
_MAX_IDLE_S = 30.0
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) (\d{3})(?: .*)?")


class NotPlain(Exception):
    """The reply does not simply say where it ends: only the wire client can read it."""


class PlainStream:
    """A reply whose body is still to be read; the bare socket's counterpart of `wire.Streamed`."""

    __slots__ = ("_connection", "_left", "_rest", "_url", "failure", "headers", "status")

    def __init__(
        self,
        connection: socket.socket,
        status: int,
        headers: Mapping[str, str],
        rest: memoryview,
        url: str,
    ) -> None:
        self._connection = connection
        self._url = url
        self.status = status
        self.headers = headers
        self.failure: WStoreError | None = None
        self._left = int(headers["content-length"])
        self._rest = rest

    @property
    def is_reusable(self) -> bool:
        """Whether the body was read to its end, and the connection can carry another request."""
        options = self.headers.get("connection", "").lower().split(",")
        return not self._left and not self._rest and "close" not in map(str.strip, options)

    def fill(self, view: memoryview) -> int:
        """Read until `view` is full or the body ends; returns the bytes read. Where something broke,
        `failure` says what (StoreTimeout, ConnectionFailed)."""
        view = view[: self._left]
        filled = min(len(view), len(self._rest))
        view[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        if len(view) - filled <= MAX_BYTES:
            filled += receive_now(self._connection, view[filled:])
        # The kernel's timeout bounds all waiting of one `recv`, so a slow body comes in several; silence
        # is noticed after one to two idle timeouts.
        try:
            while filled < len(view):
                count = self._connection.recv_into(view[filled:], 0, socket.MSG_WAITALL)
                if count == 0:
                    self.failure = ConnectionFailed("the connection was closed", url=self._url)
                    break
                filled += count
        except OSError as error:
            self.failure = _translated(error, self._url)
        self._left -= filled
        return filled

    def read_all(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            StoreError: it is longer than `limit`.
            StoreTimeout, ConnectionFailed: it did not come whole.
        """
        if self._left > limit:
            raise StoreError(f"a control reply is longer than {limit} bytes", url=self._url)
        body = bytearray(self._left)
        self.fill(memoryview(body))
        if self.failure is not None:
            raise self.failure
        return bytes(body)


class Plain:
    """Bare HTTP/1.1 connections to the service of one bucket. Safe from any thread and after a fork."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._idle: deque[tuple[socket.socket, float]] = deque()  # and since when
        self._generation = generation()

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def open(self, request: Request) -> Iterator[PlainStream]:
        """Send a request without a body; inside, the reply's body may be read.

        A connection whose body was left unread is closed.

        Raises:
            NotPlain: where the body ends is not known beforehand.
            StoreTimeout, ConnectionFailed: no whole head came.
            StoreError: it was no HTTP, or the host does not exist.
        """
        url, head = self._wire.url(request.key), self._wire.head_of(request)
        connection, stream = self._exchange(head, url)
        keep = False
        try:
            yield stream
            keep = stream.is_reusable and len(self._idle) < _MAX_IDLE
        finally:
            if keep:
                self._idle.append((connection, time.monotonic()))
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        # No name of a module is used: this also runs while the interpreter takes modules down.
        try:
            while True:
                self._idle.pop()[0].close()
        except IndexError:
            return

    def _exchange(self, head: bytes, url: str) -> tuple[socket.socket, PlainStream]:
        connection = self._kept()
        if connection is not None:
            # The server may have closed it meanwhile, or may have sent more than the last body (which is
            # then no HTTP reply). Neither says anything about this request.
            with contextlib.suppress(ConnectionFailed, StoreError):
                return connection, _converse(connection, head, url)
        connection = self._connect(url)
        return connection, _converse(connection, head, url)

    def _kept(self) -> socket.socket | None:
        """The connection that was used last, unless even that was long ago."""
        if self._generation != generation():
            # Closing gives up this child's share of the connection; the parent's goes on.
            self.close()
            self._generation = generation()
        try:
            connection, since = self._idle.pop()
        except IndexError:
            return None
        if time.monotonic() - since < _MAX_IDLE_S:
            return connection
        connection.close()
        self.close()
        return None

    def _connect(self, url: str) -> socket.socket:
        config = self._wire.config
        try:
            connection = socket.create_connection(self._wire.place, config.connect_timeout_s)
        except (socket.gaierror, UnicodeError) as error:
            if isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME:
                raise StoreError(unknown_host(self._wire.dialect), url=url) from error
            raise ConnectionFailed(f"no name resolution: {error}", url=url) from error
        except TimeoutError as error:
            raise ConnectionFailed("no connection within the connect timeout", url=url) from error
        except OSError as error:
            raise unreachable(error, url, self._wire.dialect) from error
        # Blocking, with the kernel's own timeouts: Python's would make each `recv` return early.
        connection.settimeout(None)
        whole, part = divmod(config.idle_timeout_s, 1)
        limit = struct.pack("@ll", int(whole), max(int(part * 1e6), 0 if whole else 1))
        try:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, limit)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            # Some systems refuse options on a connection that was reset meanwhile.
            connection.close()
            raise _translated(error, url) from error
        return connection


def _converse(connection: socket.socket, head: bytes, url: str) -> PlainStream:
    """Send the request, read the reply's head. Closes the connection where that fails."""
    try:
        if rest := head[send_now(connection, head) :]:
            connection.sendall(rest)
        return _receive_head(connection, url)
    except OSError as error:
        connection.close()
        if isinstance(error, WStoreError):
            raise
        raise _translated(error, url) from error
    except BaseException:
        connection.close()
        raise


def _receive_head(connection: socket.socket, url: str) -> PlainStream:
    buffer = bytearray(_FIRST_READ_BYTES)
    filled, end = 0, -1
    while end < 0:
        if filled == len(buffer):
            if filled >= _MAX_HEAD_BYTES:
                raise StoreError(f"a reply's head is longer than {filled} bytes", url=url)
            buffer.extend(bytes(filled))
        with memoryview(buffer) as view:
            count = connection.recv_into(view[filled:])
        if count == 0:
            text = "the connection was closed before a reply"
            raise ConnectionFailed(text + (" was whole" if filled else " came"), url=url)
        end = buffer.find(b"\r\n\r\n", max(filled - 3, 0), filled + count)
        filled += count
    status, headers = parse_head(bytes(buffer[:end]), url)
    return PlainStream(connection, status, headers, memoryview(buffer)[end + 4 : filled], url)


def parse_head(head: bytes, url: str) -> tuple[int, dict[str, str]]:
    """Status and headers (names in lower case) of a reply's head, without its final empty line.

    Raises:
        NotPlain: the body is not simply the next Content-Length bytes.
        StoreError: this is not HTTP/1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise StoreError(f"no HTTP/1 reply: {printable(first, 60)!r}", url=url)
    status = int(match[2])
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or (name == "content-length" and name in headers):
            raise NotPlain
        headers[name] = value.strip()
    length = headers.get("content-length", "")
    if not length.isascii() or not length.isdecimal() or "transfer-encoding" in headers:
        raise NotPlain
    if status < 200 or status in {204, 304}:  # these have no body, whatever the length says
        raise NotPlain
    if len(length) > 18:
        raise StoreError(f"the reply's Content-Length is {length[:40]!r}", url=url)
    if match[1] == "0":
        headers["connection"] = "close"
    return status, headers


def _translated(error: OSError, url: str) -> ConnectionFailed | StoreTimeout:
    if isinstance(error, BlockingIOError):  # SO_RCVTIMEO and SO_SNDTIMEO end as EAGAIN
        return StoreTimeout("no byte within the idle timeout", url=url)
    reason = printable(str(error) or type(error).__name__, 200)
    return ConnectionFailed(f"the connection failed: {reason}", url=url)
