"""Server processes on free loopback ports that end with the process that started them.

Each runs in a process group of its own under a small guard process, which kills the group as soon as the
process that started it is gone, however that ended.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

GRPC_OFFSET = 10_000
# gRPC ports (+10000) end below 32768, where Linux begins to give ports to outgoing connections.
PORTS = range(10_240, 22_000)
START_TIMEOUT_S = 90.0
ATTEMPTS = 5

# Runs as `python -c GUARD command...`, leader of its group, and reads the pipe from the parent until
# the parent closes it or dies. Then it kills the whole group, itself included.
GUARD = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
def watch():
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
sys.exit(server.wait())
"""


class Exited(Exception):
    """The server ended before it answered; another port may help."""


def free_ports(count: int) -> list[int]:
    """`count` distinct ports that nothing listens on now, each with its gRPC port (+10000) free too.

    Another process may take one before it is used: callers start again with others then.
    """
    found: list[int] = []
    candidates = random.SystemRandom().sample(PORTS, k=len(PORTS))
    for port in candidates:
        if _is_free(port) and _is_free(port + GRPC_OFFSET):
            found.append(port)
            if len(found) == count:
                return found
    raise StoreError(f"no {count} free ports between {PORTS.start} and {PORTS.stop} on 127.0.0.1")


@contextmanager
def guarded(
    command: Sequence[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, its output appended to `log`; its whole group is killed on exit."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", GUARD, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def until_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    """Wait until `ready()`. Raises Exited, or StoreError with the log's end after 90 s."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None:
            raise Exited
        if time.monotonic() > deadline:
            raise StoreError(f"no answer within {START_TIMEOUT_S:.0f} s: {tail_of(log)}")
        time.sleep(0.1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def tail_of(log: Path) -> str:
    """The end of a log, for an error's message."""
    return log.read_text(errors="replace")[-1500:] if log.exists() else "no log"
