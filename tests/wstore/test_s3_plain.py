"""Reads over bare sockets against replies that are allowed but odd, and against ones that are not."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from typing import TYPE_CHECKING, Self

import pytest

from wstore.errors import ConnectionFailed, InvalidArgument, InvalidPath, StoreError, WStoreError
from wstore.stores.s3 import S3Config, S3Store, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.testing.fault_server import FaultServer

BODY = b"0123456789"
FACTS = (
    b'Content-Range: bytes 0-9/10\r\nETag: "tag"\r\n'
    b"Last-Modified: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
)
LENGTH = b"Content-Length: 10\r\n"
GOOD = b"HTTP/1.1 206 Partial Content\r\n" + FACTS + LENGTH + b"\r\n" + BODY
CHUNKED = b"a\r\n" + BODY + b"\r\n0\r\n\r\n"


class RawServer:
    """Plays one script a connection, in order: for each request the bytes to send, then it closes.

    Args:
        step: bytes sent at once.

    Attributes:
        heads: of each connection, the heads of its requests.
    """

    def __init__(
        self,
        *scripts: list[bytes],
        family: socket.AddressFamily = socket.AF_INET,
        host: str = "127.0.0.1",
        step: int = 1 << 20,
    ) -> None:
        self._listener = socket.create_server((host, 0), family=family)
        self._scripts = scripts
        self._step = step
        self._thread = threading.Thread(target=self._serve)
        self.heads: list[list[bytes]] = []
        name = f"[{host}]" if family is socket.AF_INET6 else host
        self.url = f"http://{name}:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        for script in self._scripts:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.heads.append([])
                    for reply in script:
                        self._answer(connection, reply)

    def _answer(self, connection: socket.socket, reply: bytes) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            got = connection.recv(4096)
            if not got:
                return
            head += got
        self.heads[-1].append(head)
        for at in range(0, len(reply), self._step):
            connection.sendall(reply[at : at + self._step])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # `accept` returns at once on a listener that is shut down; scripts left over are not played.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def served(
    *scripts: list[bytes],
    family: socket.AddressFamily = socket.AF_INET,
    host: str = "127.0.0.1",
    step: int = 1 << 20,
) -> Iterator[tuple[S3Store, RawServer]]:
    """A store on a raw server with these scripts."""
    with RawServer(*scripts, family=family, host=host, step=step) as server:
        store = store_at(server.url)
        try:
            yield store, server
        finally:
            store.close()


def store_at(url: str) -> S3Store:
    environment = {"AWS_ENDPOINT_URL": url, "AWS_SKIP_SIGNATURE": "1"}
    return S3Store("bucket", S3Config.from_environment(environment))


def read(store: S3Store) -> bytes:
    return bytes(store.read("key", 0, 10).data)


def test_a_connection_serves_many_requests() -> None:
    with served([GOOD, GOOD, GOOD]) as (store, server):
        assert [read(store) for _ in range(3)] == [BODY] * 3
    assert [len(heads) for heads in server.heads] == [3]


@pytest.mark.parametrize(
    "first",
    [
        [GOOD],
        [GOOD + b"too much"],
        [GOOD, b"too much" + GOOD],
        [GOOD, b"\r\n" + GOOD],
        [GOOD, b""],
        [GOOD, GOOD[:30]],
        [GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")],
        [GOOD.replace(LENGTH, LENGTH + b"Connection: keep-alive, Close\r\n")],
    ],
    ids=["closed", "extra", "extra-later", "empty-line", "silent", "cut", "http-1.0", "said"],
)
def test_a_kept_connection_that_is_no_good_costs_no_attempt(first: list[bytes]) -> None:
    with served(first, [GOOD]) as (store, server):
        assert [read(store), read(store)] == [BODY, BODY]
    assert len(server.heads) == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served([GOOD, GOOD], [GOOD]) as (store, server):
        assert read(store) == BODY
        monkeypatch.setattr(plain, "_MAX_IDLE_S", 0.0)
        assert read(store) == BODY
    assert [len(heads) for heads in server.heads] == [1, 1]


@pytest.mark.parametrize(
    "reply",
    [
        GOOD.replace(LENGTH + b"\r\n" + BODY, b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED),
        GOOD.replace(LENGTH, b""),
        GOOD.replace(LENGTH, LENGTH + LENGTH),
        GOOD.replace(LENGTH, LENGTH + b"X: one\r\n two\r\n"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n" + GOOD,
    ],
    ids=["chunked", "no-length", "two-lengths", "folded", "interim", "interim-length"],
)
def test_what_is_not_plain_is_read_by_the_wire_client(reply: bytes) -> None:
    with served([reply], [reply]) as (store, server):
        assert read(store) == BODY
    assert [len(heads) for heads in server.heads] == [1, 1]


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"SSH-2.0-server\r\n\r\n", StoreError, "no HTTP/1 reply"),
        (b"HTTP/2 200 OK\r\n\r\n", StoreError, "no HTTP/1 reply"),
        (GOOD.replace(LENGTH, b"X: " + b"x" * 70_000 + b"\r\n"), StoreError, "head is longer"),
        (GOOD.replace(b"10\r\n\r\n", b"9" * 19 + b"\r\n\r\n"), StoreError, "Content-Length is"),
        (GOOD[:40], ConnectionFailed, "before a reply was whole"),
        (b"", ConnectionFailed, "before a reply came"),
        (GOOD[:-3], ConnectionFailed, "ended after 7 of 10 bytes"),
        (b"HTTP/1.1 400 No\r\n" + LENGTH + b"\r\n<Error>", ConnectionFailed, "closed"),
    ],
    ids=["ssh", "http-2", "long-head", "huge", "cut-head", "nothing", "cut-body", "cut-error"],
)
def test_what_is_no_whole_reply_is_an_error(
    reply: bytes, kind: type[WStoreError], words: str
) -> None:
    with served([reply]) as (store, _), pytest.raises(kind, match=words):
        read(store)


def test_a_reply_may_come_byte_by_byte() -> None:
    with served([GOOD, GOOD], step=1) as (store, server):
        assert [read(store), read(store)] == [BODY, BODY]
    assert len(server.heads) == 1


@pytest.mark.parametrize("tag", ['"a"\r\nx-evil: 1', '"a\x00"', '"\u20ac"'])
def test_a_tag_cannot_add_a_header(fault_server: FaultServer, tag: str) -> None:
    fault_server.put("key", BODY)
    store = store_at(fault_server.endpoint.url)
    with pytest.raises(InvalidArgument, match="if-match"):
        store.read("key", 0, 10, tag=tag)
    with pytest.raises(InvalidArgument, match="if-match"):
        store.write("key", memoryview(b"x"), expect=tag)
    assert fault_server.requests() == []


def test_a_key_cannot_add_a_header(fault_server: FaultServer) -> None:
    key = "a b\r\nx-evil: 1\x00?#%2F\u20ac"
    fault_server.put(key, BODY)
    assert bytes(store_at(fault_server.endpoint.url).read(key, 0, 10).data) == BODY
    (entry,) = fault_server.requests()
    assert entry.request.key == key
    assert "x-evil" not in entry.request.headers


def test_an_ipv6_endpoint() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    with served([GOOD], family=socket.AF_INET6, host="::1") as (store, server):
        assert read(store) == BODY
    assert b"\r\nhost: [::1]:" in server.heads[0][0]


def test_a_forgotten_store_leaves_no_open_socket() -> None:
    """An unclosed socket would be a ResourceWarning, which is an error here."""
    with RawServer([GOOD]) as server:
        assert read(store_at(server.url)) == BODY
        gc.collect()


def test_a_host_name_that_cannot_be_one() -> None:
    with pytest.raises(StoreError, match="host name"):
        read(store_at(f"http://{'a' * 70}.invalid"))


def test_a_proxy_that_the_environment_demands(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", fault_server.endpoint.url)
    monkeypatch.setenv("no_proxy", "other.invalid")
    store = store_at("http://storage.invalid:9000")
    store.write("a//b \u20ac", memoryview(BODY))
    assert bytes(store.read("a//b \u20ac", 2, 5).data) == BODY[2:7]
    assert [e.request.headers["host"] for e in fault_server.log] == ["storage.invalid:9000"] * 2
    with pytest.raises(InvalidPath, match="NO_PROXY"):
        store.read("a/../b", 0, 1)
    for exempt in ("storage.invalid", "storage.invalid:9000"):
        monkeypatch.setenv("no_proxy", exempt)
        with pytest.raises((StoreError, ConnectionFailed), match="name"):
            read(store_at("http://storage.invalid:9000"))


def test_a_loopback_endpoint_needs_no_proxy(
    fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    fault_server.put("key", BODY)
    store = store_at(fault_server.endpoint.url)
    assert read(store) == BODY
    assert store.stat("key").size == len(BODY)
