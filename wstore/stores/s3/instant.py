"""Socket calls that never wait, made without giving up the interpreter lock.

Python lets go of the lock around every call of a socket, also around one that returns at once. While
other threads compute, getting it back takes 5 ms for each of them: longer than most requests. A call
that cannot wait takes microseconds, so it keeps the lock instead. Where the platform has no such calls
nothing is moved, and the caller's ordinary call does all.
"""

from __future__ import annotations

import ctypes
import socket
import sys

MAX_BYTES = 256 << 10
"""The most that is moved with the lock held: some 50 microseconds of copying."""

_FLAGS = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)
_libc = ctypes.PyDLL(None) if sys.platform == "linux" else None
_ARGUMENTS = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
if _libc is not None:
    for _call in (_libc.send, _libc.recv):
        _call.argtypes, _call.restype = _ARGUMENTS, ctypes.c_ssize_t


def send_now(connection: socket.socket, data: bytes) -> int:
    """Send what the kernel takes at once; returns how many bytes, 0 also where the call failed (an
    ordinary call then meets the same failure and says what it is)."""
    if _libc is None:
        return 0
    count: int = _libc.send(connection.fileno(), data, min(len(data), MAX_BYTES), _FLAGS)
    return max(count, 0)


def receive_now(connection: socket.socket, view: memoryview) -> int:
    """Fill the front of `view` (writable bytes) with what has arrived; returns how many bytes, 0 also
    where nothing has, at the stream's end, and where the call failed."""
    if _libc is None or not view:
        return 0
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    count: int = _libc.recv(connection.fileno(), address, min(len(view), MAX_BYTES), _FLAGS)
    return max(count, 0)
