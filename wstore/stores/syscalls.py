"""Four Linux system calls that the standard library lacks. Elsewhere each says that it is absent."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_FORCE_SYNC = 0x2000
_FALLOC_FL_KEEP_SIZE = 1
_RENAME_NOREPLACE = 1
_STATX_BASIC_STATS = 0x7FF
_STATX_BYTES = 256  # sizeof(struct statx)
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


def ask_attributes(file: bytes | int) -> None:
    """Have the kernel fetch the attributes of a path or an open file from its server, now.

    The next `stat` or `fstat` gives these instead of what the kernel remembers. A no-op where the kernel
    lacks statx(2).

    Raises:
        OSError: as stat(2); ENOENT or ESTALE also where only this host's memory still has the file.
    """
    if isinstance(file, bytes):
        directory, path, flags = _AT_FDCWD, file, _AT_STATX_FORCE_SYNC
    else:
        directory, path, flags = file, b"", _AT_STATX_FORCE_SYNC | _AT_EMPTY_PATH
    code = _call(
        "statx",
        ctypes.c_int(directory),
        ctypes.c_char_p(path),
        ctypes.c_int(flags),
        ctypes.c_uint(_STATX_BASIC_STATS),
        ctypes.create_string_buffer(_STATX_BYTES),
    )
    if code and code not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(code, os.strerror(code))
