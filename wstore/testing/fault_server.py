"""An S3 or GCS server on a loopback port that misbehaves on command and remembers what it was asked.

    with FaultServer() as server:
        server.put("weights", b"0123456789")
        server.script(Status(503, "SlowDown"), key="weights", times=2)
        server.script(Cut(0.3, reset=True), key="weights", method="GET")
        ...                                    # point a client at server.endpoint, bucket server.bucket
        assert [entry.status for entry in server.requests("GET", "weights")] == [503, 503, 206, 206]

Rules are tried in the order in which they were scripted; the first that matches and is not used up
plays its fault. A request that no rule matches is served honestly. See `faults` for what can go wrong.
"""

from __future__ import annotations

import itertools
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass, field
from http.client import parse_headers
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, unquote

from wstore.testing.fake_messages import Reply, Request
from wstore.testing.fake_s3 import FakeS3
from wstore.testing.faults import Fault, Honest
from wstore.testing.s3_requests import S3Endpoint

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from wstore.testing.fake_service import FakeService

FOREVER = 1 << 30
CHUNK = 256 * 1024


@dataclass(slots=True)
class LogEntry:
    """One request that the server saw; times are `time.monotonic()`.

    Attributes:
        request: without its body.
        fault: what was played (`Honest()` where no rule matched).
        status: the status sent; 0 while none was.
        received, sent: bytes of body that came and went.
        finished_s: None while the answer is not through.
    """

    request: Request
    fault: Fault
    started_s: float
    status: int = 0
    received: int = 0
    sent: int = 0
    finished_s: float | None = None


@dataclass(slots=True)
class _Rule:
    fault: Fault
    key: str | None
    method: str | None
    query: str | None
    piece: int | None
    skip: int
    times: int
    each_target: bool
    seen: dict[tuple[object, ...], int] = field(default_factory=dict)

    def takes(self, request: Request) -> bool:
        """Whether this rule plays for the request; counts it if the request matches."""
        matches = (
            (self.key is None or self.key == request.key)
            and (self.method is None or self.method == request.method)
            and (self.query is None or self.query in request.query)
            and (self.piece is None or self.piece == request.piece)
        )
        if not matches:
            return False
        target = (
            (request.method, request.key, request.piece, request.range) if self.each_target else ()
        )
        number = self.seen.get(target, 0)
        self.seen[target] = number + 1
        return self.skip <= number < self.skip + self.times


class FaultServer:
    """See the module. A context manager: listens when entered, ends every connection on exit.

    Args:
        min_piece: least bytes of an upload's piece that is not its last. AWS: 5 MiB.
        max_pieces: highest part number.
        service: serve this (`fake_gcs.FakeGcs`), which has limits of its own. None: S3.
        tls: serve https with it (`certificates.make_identity` makes one).

    Attributes:
        bucket: the one bucket that is there from the start.
        store: the objects behind.
        log: every request, in order of arrival.
    """

    def __init__(
        self,
        *,
        min_piece: int = 1,
        max_pieces: int = 10_000,
        service: FakeService | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.bucket = "bucket"
        self.store: FakeService = service or FakeS3(min_piece=min_piece, max_pieces=max_pieces)
        self.store.create_bucket(self.bucket)
        self.log: list[LogEntry] = []
        self.peak_connections = 0
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()
        self._scheme = "http" if tls is None else "https"
        self._server = _Listener(("127.0.0.1", 0), self, tls)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                _shut(connection)
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens: "scheme://host:port"."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def endpoint(self) -> S3Endpoint:
        """The same as S3's clients want it; any credentials are accepted."""
        return S3Endpoint(self.url, "fault-access", "fault-secret")

    def put(self, key: str, data: bytes) -> None:
        """Store an object in `bucket` without a request."""
        self.store.put(self.bucket, key, data)

    def get(self, key: str) -> bytes | None:
        """What `bucket` holds under the key, or None, without a request."""
        return self.store.get(self.bucket, key)

    def script(
        self,
        fault: Fault,
        *,
        key: str | None = None,
        method: str | None = None,
        query: str | None = None,
        piece: int | None = None,
        skip: int = 0,
        times: int = 1,
        each_target: bool = False,
    ) -> None:
        """Play `fault` for the next `times` requests that match, after letting `skip` of them pass.

        Args:
            key: exactly this key; "" is the bucket itself. None: any.
            method: GET, HEAD, PUT, POST or DELETE. None: any.
            query: this query parameter is present ("uploads", "uploadId", "list-type").
            piece: this part number (from 1).
            times: how often; `FOREVER` for always.
            each_target: count `skip` and `times` for every (method, key, part number, range) by
                itself: "the first attempt of every piece".
        """
        rule = _Rule(fault, key, method, query, piece, skip, times, each_target)
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """Forget all rules, the log and the peak of connections; objects stay."""
        with self._lock:
            self._rules.clear()
            self.log.clear()
            self.peak_connections = len(self._open)

    def requests(self, method: str | None = None, key: str | None = None) -> list[LogEntry]:
        """The entries of the log that match, in order of arrival."""
        with self._lock:
            return [
                entry
                for entry in self.log
                if method in (None, entry.request.method) and key in (None, entry.request.key)
            ]

    def peak_requests(self) -> int:
        """The most finished requests of the log that were in progress at one moment."""
        with self._lock:
            spans = [(e.started_s, e.finished_s) for e in self.log if e.finished_s is not None]
        edges = sorted([(s, 1) for s, _ in spans] + [(f, -1) for _, f in spans])
        return max(itertools.accumulate(step for _, step in edges), default=0)

    def begin(self, request: Request) -> LogEntry:
        """Choose the fault of a request and log it (called by connections)."""
        with self._lock:
            rule = next((rule for rule in self._rules if rule.takes(request)), None)
            entry = LogEntry(request, rule.fault if rule else Honest(), time.monotonic())
            self.log.append(entry)
            return entry

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
            self.peak_connections = max(self.peak_connections, len(self._open))

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def wait_for_stop(self) -> None:
        self._stopping.wait()


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(
        self, address: tuple[str, int], owner: FaultServer, tls: ssl.SSLContext | None
    ) -> None:
        self.owner = owner
        self._tls = tls
        super().__init__(address, _Connection)

    def finish_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Serve one connection, in its own thread, so that a slow handshake holds up nobody."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        assert isinstance(request, socket.socket)
        try:
            secured = self._tls.wrap_socket(request, server_side=True)
        except OSError:
            return  # the client does not trust this server, which is its right
        with secured:
            super().finish_request(secured, client_address)


class _Connection(socketserver.StreamRequestHandler):
    server: _Listener
    connection: socket.socket
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.server.owner.opened(self.connection)
        try:
            while (request := self._next()) is not None:
                exchange = _Exchange(self, request)
                try:
                    exchange.entry.fault.play(exchange)
                finally:
                    exchange.entry.finished_s = time.monotonic()
                if exchange.ended or request.headers.get("connection", "").lower() == "close":
                    return
        except OSError:
            return  # the client went away, which is its right
        finally:
            self.server.owner.closed(self.connection)

    def _next(self) -> Request | None:
        line = self.rfile.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return None
        method, target, _ = line
        headers = {name.lower(): value for name, value in parse_headers(self.rfile).items()}
        path, _, query_text = target.partition("?")
        if path.startswith("http://"):  # as to a proxy; this server is then every host
            path = path.removeprefix("http://").partition("/")[2]
        bucket, _, key = path.removeprefix("/").partition("/")
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        return Request(method, unquote(bucket), unquote(key), query, headers)


class _Exchange:
    """One request on one connection (the `faults.Exchange` protocol)."""

    def __init__(self, connection: _Connection, request: Request) -> None:
        self._connection = connection
        self._owner = connection.server.owner
        self.request = request
        self.store = self._owner.store
        self.entry = self._owner.begin(request)
        self.ended = False

    def receive(self, limit: int | None = None) -> None:
        headers = self.request.headers
        if headers.get("expect", "").lower() == "100-continue":
            self._connection.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            body = self._unchunk()
        else:
            length = int(headers.get("content-length", 0))
            wanted = length if limit is None else min(limit, length)
            body = self._connection.rfile.read(wanted)
            if len(body) < wanted:
                raise ConnectionResetError("the client went away within the body")
        self.entry.received += len(body)
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = _unchunk_signed(body)
        request = self.request
        self.request = Request(
            request.method, request.bucket, request.key, request.query, headers, body
        )

    def handle(self) -> Reply:
        return self.store.handle(self.request)

    def head(self, reply: Reply, length: int) -> None:
        self.entry.status = reply.status
        lines = [f"HTTP/1.1 {reply.status} {'OK' if reply.status < 300 else 'As scripted'}"]
        headers = reply.headers | {self.store.request_id: f"fault-{id(self.entry):x}"}
        if reply.status != 204:
            headers["content-length"] = str(length)
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._connection.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def body(self, data: bytes) -> None:
        if self.request.method == "HEAD":
            return
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            # Counted first: the client may look at the log as soon as it has the bytes.
            self.entry.sent += len(view[start : start + CHUNK])
            self._connection.wfile.write(view[start : start + CHUNK])

    def close(self) -> None:
        self.ended = True
        _shut(self._connection.connection)

    def reset(self) -> None:
        self.ended = True
        # A socket that lingers for zero seconds is closed with RST.
        self._connection.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self._connection.rfile.close()
        self._connection.connection.close()

    def hang(self) -> None:
        self._owner.wait_for_stop()
        self.reset()

    def _unchunk(self) -> bytes:
        stream = self._connection.rfile
        parts: list[bytes] = []
        while size := int(stream.readline(1024).split(b";")[0], 16):
            parts.append(stream.read(size))
            stream.readline(1024)
        while stream.readline(65536) not in (b"\r\n", b"\n", b""):
            pass
        return b"".join(parts)


def _unchunk_signed(body: bytes) -> bytes:
    """The payload of an aws-chunked body (its signatures and trailers are dropped)."""
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = body.index(b"\r\n", at)
        size = int(body[at:line_end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


def _shut(connection: socket.socket) -> None:
    try:
        # Below TLS too: no farewell of its own, and no state that another thread is reading.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # the peer was quicker
