"""An SFTP server on real files, in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncssh
from fsspec.config import conf

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "correct horse"


_connections: set[asyncssh.SSHServerConnection] = set()


class _Server(asyncssh.SSHServer):
    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        _connections.add(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == PASSWORD


async def _end_connections() -> None:
    while _connections:
        connection = _connections.pop()
        connection.abort()
        await connection.wait_closed()
    await asyncio.sleep(0.1)  # transports close in the loop's next turns


@contextmanager
def sftp_server() -> Iterator[str]:
    """Its root, "user@127.0.0.1:port"; fsspec's configuration has the password meanwhile."""
    started: list[int] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def listen() -> asyncssh.SSHAcceptor:
        key = asyncssh.generate_private_key("ssh-ed25519")
        acceptor = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=_Server, server_host_keys=[key], sftp_factory=True
        )
        started.append(acceptor.get_port())
        return acceptor

    def serve() -> None:
        asyncio.set_event_loop(loop)
        acceptor = loop.run_until_complete(listen())
        ready.set()
        loop.run_forever()
        acceptor.close()
        loop.run_until_complete(_end_connections())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait(30)
    conf["sftp"] = {"password": PASSWORD, "allow_agent": False, "look_for_keys": False}
    try:
        yield f"me@127.0.0.1:{started[0]}"
    finally:
        del conf["sftp"]
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
