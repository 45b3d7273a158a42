"""A link of limited speed in front of a server: a TCP proxy on the loopback that lets so many bytes a second
through, each direction on its own, all connections together."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.testing.s3_requests import S3Endpoint

CHUNK = 128 << 10


class Direction:
    """One direction of the link."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Return when so many bytes have passed."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self._rate
            left = self._free_at - now
        time.sleep(left)


@contextmanager
def throttled(endpoint: S3Endpoint, bytes_per_s: float) -> Iterator[S3Endpoint]:
    """The same server behind a link of that speed."""
    server = urlsplit(endpoint.url)
    up, down = Direction(bytes_per_s), Direction(bytes_per_s)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):  # the listener was closed
                while True:
                    client, _ = listener.accept()
                    inner = socket.create_connection((server.hostname, server.port))
                    for source, target, way in ((client, inner, up), (inner, client, down)):
                        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        start = threading.Thread(
                            target=_pump, args=(source, target, way), daemon=True
                        )
                        start.start()

        threading.Thread(target=accept, daemon=True).start()
        yield replace(endpoint, url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket, way: Direction) -> None:
    with suppress(OSError):  # either side has hung up
        while data := source.recv(CHUNK):
            way.take(len(data))
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
