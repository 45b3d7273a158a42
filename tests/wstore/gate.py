"""A proxy in a process of its own that holds back the rest of a long answer until it is told to let go.

    python gate.py HOST PORT SECONDS

It prints its port, then "held" once 4 MiB of an answer have passed and the rest waits: far more than the
system's buffers take, so that the reader is in the middle of it. A line on its standard input lets go. After `SECONDS` of holding it ends instead, which breaks the connection: a reader
that keeps everybody else from asking fails, and does not hang.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

PASSED = 4 << 20
_SEND_BUFFER = 1 << 16
_DRAINED_S = 0.1  # by then the reader has what was passed, and waits


def main(host: str, port: int, seconds: float) -> None:
    """Serve until the standard input ends."""
    opened = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(
        target=_accept, args=(listener, (host, port), opened, seconds), daemon=True
    ).start()
    for _ in sys.stdin:
        opened.set()


def _accept(
    listener: socket.socket, server: tuple[str, int], opened: threading.Event, seconds: float
) -> None:
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        upstream = socket.create_connection(server)
        threading.Thread(target=_send, args=(client, upstream), daemon=True).start()
        threading.Thread(
            target=_answer, args=(upstream, client, opened, seconds), daemon=True
        ).start()


def _send(client: socket.socket, upstream: socket.socket) -> None:
    while data := client.recv(1 << 16):
        upstream.sendall(data)
    upstream.shutdown(socket.SHUT_WR)


def _answer(
    upstream: socket.socket, client: socket.socket, opened: threading.Event, seconds: float
) -> None:
    passed = 0
    while data := upstream.recv(1 << 16):
        if passed > PASSED and not opened.is_set():
            time.sleep(_DRAINED_S)
            print("held", flush=True)
            if not opened.wait(seconds):
                os._exit(1)
        client.sendall(data)
        passed += len(data)
    client.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
