"""Three Linux system calls that the standard library lacks. Elsewhere each says that it is absent."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_AT_FDCWD = -100
_FALLOC_FL_KEEP_SIZE = 1
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2

_ABSENT = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM})

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _call(name: str, *arguments: object) -> int:
    """Call a libc function that answers 0 or sets errno; returns that errno (ENOSYS: no such function)."""
    function = getattr(_libc, name, None)
    if function is None:
        return errno.ENOSYS
    while function(*arguments) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            return code
    return 0


def preallocate(fd: int, size: int) -> None:
    """Reserve blocks for `size` bytes without changing the file's size; a no-op where unsupported.

    `os.posix_fallocate` is not used: where the file system lacks the call, glibc writes every block.

    Raises:
        OSError: the space is not there (ENOSPC, EDQUOT, EFBIG), or the device failed.
    """
    if size <= 0:
        return
    code = _call(
        "fallocate",
        ctypes.c_int(fd),
        ctypes.c_int(_FALLOC_FL_KEEP_SIZE),
        ctypes.c_int64(0),
        ctypes.c_int64(size),
    )
    if code and code not in _ABSENT:
        raise OSError(code, os.strerror(code))


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Tell the kernel to begin writing this range to the device, so that a later fsync is short.

    Only a hint: what fails here fails again, and is reported, in fsync.
    """
    _call(
        "sync_file_range",
        ctypes.c_int(fd),
        ctypes.c_int64(offset),
        ctypes.c_int64(length),
        ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
    )


def rename_without_replace(source: bytes, target: bytes) -> None:
    """Rename, atomically failing with EEXIST when `target` exists.

    Raises:
        OSError: EEXIST; ENOSYS or EINVAL where the kernel or the file system lacks it; others.
    """
    code = _call(
        "renameat2",
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(source),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(target),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    if code:
        raise OSError(code, os.strerror(code))
