"""Striping of large files over the servers of a Lustre file system, by its own tool `lfs`.

A file's layout is fixed before its first byte, so the tool makes the empty file. Without it, or where it
fails, files follow the default of their directory: striping is speed, never a condition of a write.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from wstore.stores.base import MiB

_log = logging.getLogger(__name__)

STRIPE_BYTES = 16 * MiB
"""Of each stripe, and of each request on Lustre: 16 MiB is the largest RPC of a Lustre client, and a
request that is aligned to a stripe (in reads of whole objects each is) occupies one server, those in flight
beside it others."""

BYTES_PER_SERVER = 256 * MiB
"""What one server holds of a file: a second or less of its disks. Fewer make a server the bottleneck of
all readers; more cost each open and stat a message to each server, for nothing."""

MOST_SERVERS = 32
"""Enough for tens of GB/s; the more servers a file needs, the more often one of them is slow."""

_PATIENCE_S = 5.0
_REST_S = 600.0  # a tool that hung once would delay every write


@dataclass(frozen=True, slots=True)
class Stripes:
    """A file's layout: over how many servers, in stripes of how many bytes."""

    count: int
    size: int = STRIPE_BYTES


def stripes_for(size: int | None) -> Stripes | None:
    """The layout for a file of that size; None where one server, the usual default, is right or the
    size is unknown."""
    if size is None or size <= BYTES_PER_SERVER:
        return None
    return Stripes(min(MOST_SERVERS, -(-size // BYTES_PER_SERVER)))


class _Tool:
    """`lfs`: complained of once, and left alone for a while after it hung."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._complained = False
        self._rests_until = 0.0

    def make(self, path: bytes, stripes: Stripes) -> bool:
        """Make the file with that layout; whether it did."""
        if time.monotonic() < self._rests_until:
            return False
        command = shutil.which("lfs")
        if command is None:
            _log.debug("there is no `lfs` on PATH: %r follows its directory's layout", path)
            return False
        layout = ["-c", str(stripes.count), "-S", str(stripes.size)]
        trouble = _run([command, "setstripe", *layout, path])
        if trouble:
            self._complain(trouble, path)
        return not trouble

    def _complain(self, trouble: str, path: bytes) -> None:
        with self._lock:
            first, self._complained = not self._complained, True
            if trouble == _NO_ANSWER:
                self._rests_until = time.monotonic() + _REST_S
        level = logging.WARNING if first else logging.DEBUG
        _log.log(level, "lfs setstripe: %s; %r follows its directory's layout", trouble, path)


_NO_ANSWER = f"no answer within {_PATIENCE_S:g} s"
_tool = _Tool()


def make_striped(path: bytes, stripes: Stripes) -> bool:
    """Make the empty file `path` with that layout; whether `lfs` said that it did. Never raises."""
    return _tool.make(path, stripes)


def _run(command: list[str | bytes]) -> str:
    """What went wrong; "" where nothing did."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return f"could not be run: {error.strerror}"
    try:
        _, said = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
            process.communicate(timeout=0.2)
        return _NO_ANSWER
    if process.returncode == 0:
        return ""
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    return f"status {process.returncode}: {last}"


@lru_cache(64)
def note_ignored(file_system: str) -> None:
    """One debug line for each other file system on which a large file is written."""
    _log.debug("files are not striped on a file system of type %r", file_system or "unknown")
