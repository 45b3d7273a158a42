"""Copying a file's content without moving it through this process, where the kernel can."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from wstore.stores.base import MiB
from wstore.stores.syscalls import start_writeback

if TYPE_CHECKING:
    from wstore.stores.posix_temp import TempFile

_CHUNK = 64 * MiB  # in the kernel
_BUFFER = 4 * MiB  # through memory
_NOT_HERE = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def copy_content(source_fd: int, target: TempFile, size: int) -> int:
    """Copy up to `size` bytes from the start; returns how many the source had. Raises OSError."""
    done = _copy_in_kernel(source_fd, target.fd, size)
    buffer = memoryview(bytearray(min(_BUFFER, size - done)))
    while done < size:
        count = os.preadv(source_fd, [buffer[: size - done]], done)
        if count == 0:
            break
        target.write(done, buffer[:count])
        done += count
    return done


def _copy_in_kernel(source_fd: int, target_fd: int, size: int) -> int:
    """As far as the file systems support it (some say so with an error, some with 0 bytes)."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source_fd, target_fd, min(_CHUNK, size - done), done, done)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            break
        if count == 0:
            break
        start_writeback(target_fd, done, count)
        done += count
    return done
