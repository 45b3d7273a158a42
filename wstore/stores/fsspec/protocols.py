"""What is known of fsspec's protocols: how each publishes atomically, if it can, and its package."""

from __future__ import annotations

import enum
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec

from wstore.errors import InvalidPath, MissingPackage
from wstore.stores.base import GiB, PieceLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from fsspec import AbstractFileSystem

_S3_PARTS = 4


class Publish(enum.Enum):
    """How a whole object appears in one step."""

    PUT = "one request makes the object (`pipe_file`, `put_file`)"
    RENAME = "a hidden file beside the target is renamed over it"
    NEVER = "the protocol has no atomic write that fsspec knows"


def _pipe(files: AbstractFileSystem, path: str, content: bytes) -> None:
    files.pipe_file(path, content)


def _put(files: AbstractFileSystem, path: str, local: str) -> None:
    files.put_file(local, path)


def _cat(files: AbstractFileSystem, path: str, start: int, end: int) -> bytes:
    found: bytes = files.cat_file(path, start=start, end=end)
    return found


def _move(files: AbstractFileSystem, path: str, target: str) -> None:
    files.mv(path, target)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol.

    Attributes:
        publish: how it writes.
        package: what `pip install` brings it.
        threads: its client may be used from several threads at once; async ones always may.
        buckets: the root is something that exists or not.
        send, put, fetch: a whole new file from memory, one from a local file (by its name), and the
            bytes from one offset to another.
        move: renames a file over another; never into a directory.
        whole_seconds: times of change are told in these: two contents of one size in one second would
            look the same.
        set_time: gives a file another time of change (seconds).
        refresh: called before each use of a client whose own caches cannot be switched off.
    """

    publish: Publish = Publish.NEVER
    package: str = ""
    threads: bool = False
    buckets: bool = False
    send: Callable[[AbstractFileSystem, str, bytes], None] = _pipe
    put: Callable[[AbstractFileSystem, str, str], None] = _put
    fetch: Callable[[AbstractFileSystem, str, int, int], bytes] = _cat
    move: Callable[[AbstractFileSystem, str, str], None] = _move
    whole_seconds: bool = False
    set_time: Callable[[AbstractFileSystem, str, float], None] | None = None
    refresh: Callable[[AbstractFileSystem], None] | None = None


def _sftp_send(files: AbstractFileSystem, path: str, content: bytes) -> None:
    """Blocks of 32 KiB without waiting for each one's answer, which `pipe_file` does."""
    files.ftp.putfo(io.BytesIO(content), path, confirm=False)


def _sftp_fetch(files: AbstractFileSystem, path: str, start: int, end: int) -> bytes:
    with files.ftp.open(path, "rb") as file:
        return b"".join(file.readv([(start, end - start)]))


def _sftp_time(files: AbstractFileSystem, path: str, seconds: float) -> None:
    files.ftp.utime(path, (seconds, seconds))


def _local_time(files: AbstractFileSystem, path: str, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def _local_move(files: AbstractFileSystem, path: str, target: str) -> None:
    """`mv` moves into a directory that has the target's name."""
    os.replace(path, target)


def _memory_send(files: AbstractFileSystem, path: str, content: bytes) -> None:
    if files.isdir(path):  # of keys below it, which `pipe_file` does not see
        raise IsADirectoryError(path)
    files.pipe_file(path, content)


def _memory_put(files: AbstractFileSystem, path: str, local: str) -> None:
    """`put_file` shows the object empty at first, and then block by block."""
    _memory_send(files, path, Path(local).read_bytes())


def _s3_put(files: AbstractFileSystem, path: str, local: str) -> None:
    """Each part on its way is 50 MiB of memory; s3fs alone would have ten."""
    files.put_file(local, path, max_concurrency=_S3_PARTS)


def _hf_refresh(files: AbstractFileSystem) -> None:
    """Listings, and which repositories exist: the client reads its listings back, so it needs them."""
    files.invalidate_cache()


# paramiko loses the answer of one thread where another reads it.
_SFTP = Protocol(
    Publish.RENAME,
    "paramiko",
    send=_sftp_send,
    fetch=_sftp_fetch,
    whole_seconds=True,
    set_time=_sftp_time,
)
_LOCAL = Protocol(Publish.RENAME, threads=True, move=_local_move, set_time=_local_time)
_S3 = Protocol(Publish.PUT, "'wstore[s3]'", buckets=True, put=_s3_put)
_AZURE = Protocol(Publish.PUT, "adlfs", buckets=True)
# fsspec's renames of smb and hdfs do not replace a file; hf makes a commit of each write.
_KNOWN = {
    "memory": Protocol(Publish.PUT, threads=True, send=_memory_send, put=_memory_put),
    "s3": _S3,
    "s3a": _S3,
    "gs": Protocol(Publish.PUT, "'wstore[gcs]'", buckets=True),
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "oss": Protocol(Publish.PUT, "ossfs", buckets=True),
    "file": _LOCAL,
    "local": _LOCAL,
    "sftp": _SFTP,
    "ssh": _SFTP,
    "ftp": Protocol(Publish.RENAME, whole_seconds=True),
    "hf": Protocol(package="huggingface_hub", refresh=_hf_refresh),
    "http": Protocol(package="aiohttp"),
    "https": Protocol(package="aiohttp"),
    "smb": Protocol(package="smbprotocol"),
}

# What `put_file` of the clients takes: S3's 10,000 parts of 50 MiB, more where parts grow.
LIMITS = PieceLimits(max_put=GiB, max_object=400 * GiB)


def protocol_of(scheme: str) -> Protocol:
    """What is known of it; one that is not known is only read."""
    return _KNOWN.get(scheme, Protocol())


def class_of(scheme: str) -> type[AbstractFileSystem]:
    """fsspec's class for a protocol.

    Raises:
        InvalidPath: fsspec has no such protocol.
        MissingPackage: its package is not installed.
    """
    url = f"{scheme}://"
    try:
        found: type[AbstractFileSystem] = fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise InvalidPath(f"fsspec has no protocol {scheme!r}", url=url) from error
    except ImportError as error:
        package = protocol_of(scheme).package
        how = f"pip install {package}" if package else str(error)
        raise MissingPackage(f"fsspec needs a package for {url}: {how}", url=url) from error
    return found
