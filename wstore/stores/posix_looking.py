"""Looking at files that other hosts change: what a cache of this host answers is not believed.

A network client may remember for a minute that a name is absent, and a handle may be stale after another
host's rename: such an answer is asked again after the parent directory was read. It may remember the attributes
of a replaced file as long, so that reads pinned to that tag would fail again and again: a `stat` asks the
server. A FUSE mount keeps them for a second or more, also over an `open`, so that the size of the old file
would be applied to the bytes of the new one: there each read asks its daemon too. The other clients ask
their server at each `open` anyhow.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeVar

from wstore.stores.mounts import file_system_of, file_system_of_device, refresh_directory
from wstore.stores.posix_errors import same_content
from wstore.stores.syscalls import ask_attributes

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# O_NONBLOCK: opening a FIFO without a writer returns (and is then refused) instead of hanging.
_OPEN_TO_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_GONE = (errno.ENOENT, errno.ESTALE)


def look_twice(path: bytes, look: Callable[[], T]) -> T:
    """Look; on a network file system believe ENOENT or ESTALE only after a refresh of the parent."""
    try:
        return look()
    except OSError as error:
        return look_again(error, path, look)


def look_again(error: OSError, path: bytes, look: Callable[[], T]) -> T:
    """Look once more where the first answer may come from a cache; else raise it."""
    parent = os.path.dirname(path)
    if error.errno not in _GONE or not _is_remote(parent):
        raise error
    refresh_directory(parent)
    return look()


def _is_remote(directory: bytes) -> bool:
    try:
        return file_system_of(directory).is_network
    except OSError:  # a stale handle, or a mount that is away: looking again says which
        return True


def stat_now(path: bytes) -> os.stat_result:
    """The status of `path`, following links, as its server has it. Raises OSError."""
    return look_twice(path, lambda: _stat(path))


def _stat(path: bytes) -> os.stat_result:
    status = os.stat(path)
    if file_system_of_device(status.st_dev).is_network:
        ask_attributes(path)
        status = os.stat(path)
    return status


def open_now(path: bytes) -> tuple[int, os.stat_result]:
    """Open to read, and the status of what was opened, as its server has it. Raises OSError."""
    fd = os.open(path, _OPEN_TO_READ)
    try:
        return fd, _fstat(fd)
    except BaseException:
        os.close(fd)
        raise


def is_unchanged(fd: int, before: os.stat_result) -> bool:
    """Whether the open file still has the content it had. Raises OSError."""
    try:
        return same_content(before, _fstat(fd))
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def _fstat(fd: int) -> os.stat_result:
    status = os.fstat(fd)
    if file_system_of_device(status.st_dev).is_fuse:
        ask_attributes(fd)
        status = os.fstat(fd)
    return status
