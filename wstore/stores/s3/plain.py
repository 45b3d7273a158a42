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
from collections import deque
from typing import TYPE_CHECKING

from wstore.errors import ConnectionFailed, StoreError, StoreTimeout, WStoreError
from wstore.stores.s3.failures import printable
from wstore.stores.s3.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wstore.stores.s3.wire import Request, Wire

_MAX_HEAD_BYTES = 64 << 10
_FIRST_READ_BYTES = 16 << 10
_MAX_IDLE = 64
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) (\d{3})(?: .*)?")


class NotPlain(Exception):
    """The reply does not say its length beforehand: only the wire client can read it."""


class PlainStream:
    """A reply whose body is still to be read; the bare socket's counterpart of `wire.Streamed`."""

    __slots__ = ("_connection", "_left", "_rest", "_url", "headers", "status")

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
        self._left = int(headers["content-length"])
        self._rest = rest[: self._left]

    @property
    def is_whole(self) -> bool:
        """Whether the body was read to its end."""
        return self._left == 0

    def fill(self, view: memoryview) -> int:
        """Read until `view` is full or the body is at its end; returns the bytes read.

        Raises:
            StoreTimeout, ConnectionFailed: before the first byte. Later ones end the read; the next
                call raises.
        """
        view = view[: self._left]
        filled = min(len(view), len(self._rest))
        view[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        while filled < len(view):
            try:
                count = self._connection.recv_into(view[filled:], 0, socket.MSG_WAITALL)
            except OSError as error:
                if filled:
                    break
                raise _translated(error, self._url) from error
            if count == 0:
                break
            filled += count
        self._left -= filled
        return filled

    def read_all(self, limit: int) -> bytes:
        """The whole body. Raises StoreError where it is longer than `limit`."""
        if self._left > limit:
            raise StoreError(f"a control reply is longer than {limit} bytes", url=self._url)
        body = bytearray(self._left)
        return bytes(body[: self.fill(memoryview(body))])


class Plain:
    """Bare HTTP/1.1 connections to the service of one bucket. Safe from any thread and after a fork."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._idle: PerProcess[deque[socket.socket]] = PerProcess(deque)

    @contextlib.contextmanager
    def open(self, request: Request) -> Iterator[PlainStream]:
        """Send a request without a body; inside, the reply's body may be read.

        A connection whose body was left unread is closed.

        Raises:
            NotPlain: the body's length is not known beforehand.
            StoreTimeout, ConnectionFailed: no whole head came.
        """
        url, head = self._wire.url(request.key), self._wire.head_of(request)
        connection, stream = self._exchange(head, url)
        keep = False
        try:
            yield stream
            keep = stream.is_whole and stream.headers.get("connection", "").lower() != "close"
        finally:
            idle = self._idle.get()
            if keep and len(idle) < _MAX_IDLE:
                idle.append(connection)
            else:
                connection.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections of this process."""
        for connection in self._idle.take() or ():
            connection.close()

    def _exchange(self, head: bytes, url: str) -> tuple[socket.socket, PlainStream]:
        """On a kept connection, which the server may have closed meanwhile, else on a new one."""
        with contextlib.suppress(IndexError):
            connection = self._idle.get().pop()
            with contextlib.suppress(ConnectionFailed):
                return connection, _converse(connection, head, url)
        connection = self._connect(url)
        return connection, _converse(connection, head, url)

    def _connect(self, url: str) -> socket.socket:
        config = self._wire.config
        try:
            connection = socket.create_connection(self._wire.place, config.connect_timeout_s)
            # Blocking, with the kernel's own timeouts: Python's would make each `recv` return early.
            connection.settimeout(None)
            whole, part = divmod(config.idle_timeout_s, 1)
            limit = struct.pack("@ll", int(whole), max(int(part * 1e6), 0 if whole else 1))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, limit)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except socket.gaierror as error:
            if error.errno == socket.EAI_NONAME:
                text = "the endpoint's host name is unknown: check AWS_ENDPOINT_URL"
                raise StoreError(text, url=url) from error
            raise ConnectionFailed(f"no name resolution: {error}", url=url) from error
        except TimeoutError as error:
            raise ConnectionFailed("no connection within the connect timeout", url=url) from error
        except OSError as error:
            raise _translated(error, url) from error
        return connection


def _converse(connection: socket.socket, head: bytes, url: str) -> PlainStream:
    """Send the request, read the reply's head. Closes the connection where that fails."""
    try:
        connection.sendall(head)
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
        NotPlain: no single Content-Length, or a transfer coding.
        StoreError: this is not HTTP/1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise StoreError(f"no HTTP/1 reply: {printable(first, 60)!r}", url=url)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or (name == "content-length" and name in headers):
            raise NotPlain
        headers[name] = value.strip()
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
        raise NotPlain
    if len(length) > 18:
        raise StoreError(f"the reply's Content-Length is {length[:40]!r}", url=url)
    if match[1] == "0":
        headers["connection"] = "close"
    return int(match[2]), headers


def _translated(error: OSError, url: str) -> ConnectionFailed | StoreTimeout:
    if isinstance(error, BlockingIOError):  # SO_RCVTIMEO and SO_SNDTIMEO end as EAGAIN
        return StoreTimeout("no byte within the idle timeout", url=url)
    reason = printable(str(error) or type(error).__name__, 200)
    return ConnectionFailed(f"the connection failed: {reason}", url=url)
