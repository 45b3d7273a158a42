"""What the operating system answers, in this package's words: errors and `ObjectInfo`."""

from __future__ import annotations

import errno
import stat
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from wstore import errors
from wstore.stores.base import ObjectInfo

if TYPE_CHECKING:
    import os
    from types import TracebackType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_KINDS: dict[int, type[errors.WStoreError]] = {
    errno.ENOENT: errors.NotFound,
    errno.EEXIST: errors.AlreadyExists,
    errno.EACCES: errors.AccessDenied,
    errno.EPERM: errors.AccessDenied,
    errno.EROFS: errors.AccessDenied,
    errno.EISDIR: errors.IsADirectory,
    errno.ENOTDIR: errors.NotADirectory,
    errno.ENOTEMPTY: errors.DirectoryNotEmpty,
    errno.ENOSPC: errors.NoSpace,
    errno.EDQUOT: errors.NoSpace,
    errno.EFBIG: errors.InvalidArgument,
    errno.ENAMETOOLONG: errors.InvalidPath,
    errno.ELOOP: errors.InvalidPath,
    errno.ETIMEDOUT: errors.StoreTimeout,
    # What a network file system answers for a moment: the same call may succeed when repeated.
    errno.ESTALE: errors.Unavailable,
    errno.EAGAIN: errors.Unavailable,
    errno.EBUSY: errors.Unavailable,
    errno.EMFILE: errors.Unavailable,
    errno.ENFILE: errors.Unavailable,
    errno.EHOSTDOWN: errors.ConnectionFailed,
    errno.EHOSTUNREACH: errors.ConnectionFailed,
    # A mount whose daemon or server is gone; the first is what requests under way then get.
    errno.ECONNABORTED: errors.ConnectionFailed,
    errno.ENOTCONN: errors.ConnectionFailed,
    errno.ESHUTDOWN: errors.ConnectionFailed,
}

_MOUNT_GONE = (
    "the mount is not connected: its daemon or its server is gone; works again once it is back"
)


_ADVICE = {
    errno.ENOENT: "there is no such file",
    errno.EISDIR: "this is a directory, not a file",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "the file mode or that of a parent directory forbids it",
    errno.ENOSPC: "no space left on the device: free some, or write elsewhere",
    errno.EDQUOT: "the disk quota is used up: free some space, or raise the quota",
    errno.EFBIG: "larger than the file system or the process limit (ulimit -f) allows",
    errno.ENOTDIR: "a parent of this path is a file, not a directory",
    errno.ELOOP: "too many symbolic links on the way: they probably form a loop",
    errno.ECONNABORTED: _MOUNT_GONE,
    errno.ENOTCONN: _MOUNT_GONE,
    errno.ESHUTDOWN: _MOUNT_GONE,
    errno.EMFILE: "too many open files in this process (ulimit -n)",
}


class OsErrors:
    """Context manager that turns `OSError` into `wstore.errors` naming `url`; the cause is kept."""

    __slots__ = ("_lookup", "_url")

    def __init__(self, url: str, *, lookup: bool = False) -> None:
        """`lookup`: a parent that is a file means that the object is absent, as on any store."""
        self._url = url
        self._lookup = lookup

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, errors.WStoreError):
            raise translate(error, self._url, lookup=self._lookup) from error


def translate(error: OSError, url: str, *, lookup: bool = False) -> errors.WStoreError:
    """What `error` means for `url`; see `OsErrors`."""
    code = error.errno or 0
    if lookup and code == errno.ENOTDIR:
        code = errno.ENOENT
    message = _ADVICE.get(code) or error.strerror or str(error)
    return _KINDS.get(code, errors.StoreError)(message, url=url)


def info_of(status: os.stat_result) -> ObjectInfo:
    """Describe a regular file. The tag is inode, time of the last change in nanoseconds, and size.

    Not the ctime: making a second hard link, chmod and rename change it, and they leave the content.
    Not the device: its number differs between the hosts of one network file system.
    """
    return _describe(status.st_ino, status.st_mtime_ns, status.st_size)


# The reads of one file ask again and again, each after its copy emptied the CPU's cache.
@lru_cache(1024)
def _describe(inode: int, modified_ns: int, size: int) -> ObjectInfo:
    try:
        modified = datetime.fromtimestamp(modified_ns / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        modified = _EPOCH  # a foreign file may claim any time; the tag keeps the true one
    return ObjectInfo(size, modified, f"{inode:x}-{modified_ns:x}-{size:x}")


def same_content(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether two looks at one open file would give the same tag."""
    return before.st_mtime_ns == after.st_mtime_ns and before.st_size == after.st_size


def require_file(status: os.stat_result, url: str) -> None:
    """Refuse what is not a regular file: opening a FIFO or a device may hang or act.

    Raises:
        IsADirectory: it is a directory.
        UnsupportedOperation: it is a FIFO, a socket or a device.
    """
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise errors.IsADirectory("this is a directory, not a file", url=url)
    raise errors.UnsupportedOperation("a FIFO, a socket or a device is not an object", url=url)
