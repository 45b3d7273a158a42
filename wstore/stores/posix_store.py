"""Files as objects: local disk, Lustre, NFS. Plain system calls, crash-safe, fork-safe.

A key is the absolute path without its first slash (of `root`, when that is another directory), never
decoded: `sub dir` and `sub%20dir` are two names. What a user may rely on beyond the Store protocol:

- **Writes.** The content goes to a hidden file `.wstore-<random>.tmp` beside the target, is made
  durable, and is then renamed; the directory, and each new parent directory, is made durable too. A
  new file gets its mode from the umask; an overwritten one keeps its mode and, where permitted, its
  owner, but not extended attributes or ACLs. Writers killed half-way leave the old content and a
  hidden file for `sweep`.
- **Symbolic links** are followed, as `open` does: writing replaces what the link points to, the link
  stays. They may lead out of `root`. `delete` removes the link itself, also one to a directory; so
  whoever removes a tree calls `delete` first and descends only on `IsADirectory`. Recursive listings
  do not enter linked directories. `Expect.ABSENT` counts a link, even a dangling one, as present.
- **Tags** are inode, modification time and size. A read checks the open file before and after, so a
  file changed in place meanwhile is `ObjectChanged`, as is one replaced when `tag` was given.
- **Create if absent** is link(2), else renameat2 without replace, else `UnsupportedOperation`; that at
  once on a file system whose mounts each decide by themselves (`FileSystem.creates_exclusively`).
- **Network file systems** (by mount type) may remember for a minute that a name is absent: where a
  lookup fails, the parent directory is read again before it is believed; see `posix_looking`.
- **Lustre**: large files are striped by their size; see `posix_striping`.
- A parent that is a file makes the object `NotFound` to readers and `NotADirectory` to writers. FIFOs,
  sockets and devices are refused. Deletions are not made durable: after a power cut the file may be
  back.
"""

from __future__ import annotations

import contextlib
import os
import stat as modes
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from wstore import errors
from wstore.stores.base import Capabilities, Expect, MiB, ObjectInfo, PieceLimits, Read
from wstore.stores.mounts import file_system_of
from wstore.stores.posix_copy import copy_content
from wstore.stores.posix_errors import OsErrors, info_of, require_file
from wstore.stores.posix_listing import list_directory, remove_old_temps
from wstore.stores.posix_looking import is_unchanged, look_again, look_twice, open_now, stat_now
from wstore.stores.posix_striping import STRIPE_BYTES
from wstore.stores.posix_temp import TempFile, is_temp_name, make_directories, sync_directory
from wstore.stores.posix_upload import PosixUpload

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from wstore.stores.base import Entry
    from wstore.stores.mounts import FileSystem

F = TypeVar("F")

_REREADS = 8
_CAPABILITIES = Capabilities(
    create_if_absent=True,
    if_match=False,
    directories=True,
    durable=True,
    pieces=PieceLimits(max_piece=1 << 40, max_pieces=1 << 30, max_put=1 << 62),
    request_bytes=8 * MiB,
    concurrency=8,
)
_ONE_PUBLISHER = replace(_CAPABILITIES, create_if_absent=False)
_ON_LUSTRE = replace(_CAPABILITIES, request_bytes=STRIPE_BYTES)


class PosixStore:
    """A `Store` (with Multipart, Copy, Directories, Sweep, Places) over a directory of this machine."""

    def __init__(self, root: str = "/") -> None:
        """`root`: the directory that keys are relative to; it need not exist yet.

        Raises:
            InvalidPath: `root` is not absolute.
        """
        if not root.startswith("/"):
            raise errors.InvalidPath("the root of a file store must be absolute", url=root)
        self._root = os.fsencode(root).rstrip(b"/") + b"/"
        self._url = "file://" + root.rstrip("/")

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """Those of the file system that the root is on; see `capabilities_at` for mounts below it."""
        with OsErrors(self._url):
            return _capabilities_on(file_system_of(self._root))

    def capabilities_at(self, key: str) -> Capabilities:
        """Those of the file system that `key` is on, or will be."""
        url, path = self._locate(key.removesuffix("/"), root=True)
        with OsErrors(url):
            return _capabilities_on(file_system_of(path))

    def stat(self, key: str) -> ObjectInfo:
        """Describe the file. On a network file system what its cache says is asked again."""
        url, path = self._locate(key)
        with OsErrors(url, lookup=True):
            status = stat_now(path)
        require_file(status, url)
        return info_of(status)

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """See `Store.read`. One open, one loop of preadv; without `buffer` the result is read-only.

        Raises:
            ObjectChanged: another content than `tag`, or the file changed under this very read.
            Unavailable: without a tag, the file changed under each of several reads.
        """
        # Lean on purpose: after each copy of megabytes the CPU has to fetch this code anew.
        url, path = _locate(self._url, self._root, key)
        try:
            return _read_file(url, path, offset, length, buffer, tag)
        except errors.ObjectChanged:
            if tag is not None:
                raise
            return _read_again(url, path, offset, length, buffer)
        except errors.WStoreError:
            raise
        except OSError as error:
            with OsErrors(url, lookup=True):
                return look_again(
                    error, path, lambda: _read_file(url, path, offset, length, buffer, tag)
                )

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """See `Store.write`. Durable when it returns. `write_id` is not kept: a lost answer of a
        network file system is settled here, by the count of links.

        Raises:
            UnsupportedOperation: `expect` is a tag; or `ABSENT` on a file system without hard links
                and without a rename that does not replace, or where two hosts could both succeed.
        """
        url, path = self._locate(key, write=True)
        if isinstance(expect, str):
            raise errors.UnsupportedOperation(
                "a file system cannot replace a file only if it has a given tag", url=url
            )
        absent = expect is Expect.ABSENT
        if absent:
            _require_exclusive(path, url)
        try:
            with OsErrors(url):
                temp = TempFile(path, url=url, size=len(data), replaces=not absent)
                try:
                    temp.write(0, data)
                    status = temp.finish(len(data))
                    if absent:
                        temp.create(url)
                    else:
                        temp.replace()
                except BaseException:
                    temp.discard()
                    raise
        except errors.AlreadyExists as error:
            if os.path.isdir(path):
                raise errors.IsADirectory("this is a directory, not a file", url=url) from error
            raise
        return info_of(status)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """See `Store.list`, and `posix_listing.list_directory` for links and special files."""
        url, directory = self._locate(prefix.removesuffix("/"), root=True)
        with OsErrors(url):
            yield from list_directory(
                directory,
                os.fsencode(prefix),
                recursive=recursive,
                start_after=_encode(start_after, url),
            )

    def delete(self, key: str) -> None:
        """Remove the file, or the symbolic link itself. Raises NotFound, IsADirectory."""
        url, path = self._locate(key)
        with OsErrors(url, lookup=True):
            os.unlink(path)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def feature(self, kind: type[F]) -> F | None:
        return self if isinstance(self, kind) else None

    # Multipart

    def upload(self, key: str, *, size: int | None = None) -> PosixUpload:
        """Begin an unconditional write of `key`; `size` bytes are reserved on the device."""
        url, path = self._locate(key, write=True)
        with OsErrors(url):
            return PosixUpload(TempFile(path, url=url, size=size, replaces=True), url)

    # Copy

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy inside the kernel where it can (a reflink where the file system has them).

        Raises:
            NotFound: names the source.
            ObjectChanged: the source changed meanwhile; the target is untouched.
        """
        source_url, source_path = self._locate(source)
        target_url, target_path = self._locate(target, write=True)
        with OsErrors(source_url, lookup=True):
            source_fd, before = look_twice(source_path, lambda: open_now(source_path))
        try:
            require_file(before, source_url)
            with OsErrors(target_url):
                temp = TempFile(target_path, url=target_url, size=before.st_size, replaces=True)
                try:
                    copied = copy_content(source_fd, temp, before.st_size)
                    if copied < before.st_size or not is_unchanged(source_fd, before):
                        raise errors.ObjectChanged("changed while it was copied", url=source_url)
                    status = temp.finish(before.st_size)
                    temp.replace()
                except BaseException:
                    temp.discard()
                    raise
        finally:
            os.close(source_fd)
        return info_of(status)

    # Directories

    def is_dir(self, key: str) -> bool:
        """Whether there is a directory (or a link to one). A trailing "/" is allowed; "" is the root."""
        url, path = self._locate(key.removesuffix("/"), root=True)
        try:
            with OsErrors(url, lookup=True):
                return modes.S_ISDIR(look_twice(path, lambda: os.stat(path)).st_mode)
        except errors.NotFound:
            return False

    def mkdir(self, key: str, *, parents: bool, exist_ok: bool) -> None:
        """Make a directory, durably; as `pathlib.Path.mkdir` does.

        Raises:
            AlreadyExists: there is a file, or a directory and not `exist_ok`.
            NotFound: the parent is missing and not `parents`.
        """
        url, path = self._locate(key.removesuffix("/"), root=True)
        with OsErrors(url):
            parent = os.path.dirname(path)
            if parents:
                make_directories(parent)
            try:
                os.mkdir(path)
            except FileExistsError:
                if exist_ok and os.path.isdir(path):
                    return
                raise
            sync_directory(parent)

    def rmdir(self, key: str) -> None:
        """Remove an empty directory. Hidden unfinished writes count as entries: `sweep` them first."""
        url, path = self._locate(key.removesuffix("/"))
        with OsErrors(url):
            os.rmdir(path)

    # Sweep

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        """Remove hidden temporary files and directories under `prefix` that stood still that long.

        Age is by the file system's own clock; a writer that is still alive but made no progress for
        `older_than_s` loses its temporary file and fails.
        """
        url, directory = self._locate(prefix.removesuffix("/"), root=True)
        with OsErrors(url):
            removed = remove_old_temps(directory, older_than_s=older_than_s)
        return [os.fsdecode(path[len(self._root) :]) for path in removed]

    def _locate(self, key: str, *, write: bool = False, root: bool = False) -> tuple[str, bytes]:
        """The URL and the path of a key.

        Raises:
            InvalidPath: no file can have this name; or (to write) it is reserved for unfinished writes.
            IsADirectory: the root, where `root` does not allow it.
        """
        url, path = _locate(self._url, self._root, key)
        if path == self._root and not root:
            raise errors.IsADirectory("this is the root, not a file", url=url)
        if write and is_temp_name(os.path.basename(path)):
            raise errors.InvalidPath("this name is reserved for unfinished writes", url=url)
        return url, path


@lru_cache(1024)  # as in posix_errors: many reads of one key
def _locate(root_url: str, root: bytes, key: str) -> tuple[str, bytes]:
    """Refuses "..", which could leave the root, NUL, a last segment that is empty, and surrogates that
    no file name has."""
    url = f"{root_url}/{key}"
    name = _encode(key, url)
    if b".." in name.split(b"/"):
        raise errors.InvalidPath('".." is not allowed in a path', url=url)
    if b"\0" in name:
        raise errors.InvalidPath("a path cannot contain a NUL character", url=url)
    if not name.strip(b"/"):
        return url, root
    if name.endswith(b"/"):
        raise errors.InvalidPath('the name of a file cannot end with "/"', url=url)
    return url, root + name


def _encode(key: str, url: str) -> bytes:
    try:
        return os.fsencode(key)
    except UnicodeEncodeError as error:
        shown = url.encode("utf-8", "backslashreplace").decode()
        raise errors.InvalidPath("not encodable as a file name", url=shown) from error


def _capabilities_on(file_system: FileSystem) -> Capabilities:
    if file_system.is_lustre:
        return _ON_LUSTRE
    return _CAPABILITIES if file_system.creates_exclusively else _ONE_PUBLISHER


def _require_exclusive(path: bytes, url: str) -> None:
    with OsErrors(url):
        file_system = file_system_of(os.path.dirname(path))
    if not file_system.creates_exclusively:
        raise errors.UnsupportedOperation(
            f"on a mount of type {file_system.type} writers on two hosts can both create one name, so "
            "create-if-absent is refused; one publisher at a time needs none",
            url=url,
        )


def _read_again(url: str, path: bytes, offset: int, length: int, buffer: memoryview | None) -> Read:
    """A FUSE daemon may put another file under an open one when a name is replaced: any whole content
    will do where no tag was asked for."""
    for _ in range(_REREADS):
        with contextlib.suppress(errors.ObjectChanged), OsErrors(url, lookup=True):
            return _read_file(url, path, offset, length, buffer, None)
    raise errors.Unavailable("the file changes faster than it can be read", url=url)


def _read_file(
    url: str, path: bytes, offset: int, length: int, buffer: memoryview | None, tag: str | None
) -> Read:
    fd, before = open_now(path)
    try:
        if not modes.S_ISREG(before.st_mode):
            require_file(before, url)
        info = info_of(before)
        if tag is not None and tag != info.tag:
            raise errors.ObjectChanged("the file was replaced or changed", url=url)
        wanted = max(0, min(length, before.st_size - offset))
        if buffer is None:
            data = _read_new(fd, offset, wanted)
        else:
            data = _read_into(fd, offset, buffer[:wanted])
        if len(data) < wanted or not is_unchanged(fd, before):
            raise errors.ObjectChanged("the file changed while it was read", url=url)
    finally:
        os.close(fd)
    return Read(data, info)


def _read_into(fd: int, offset: int, view: memoryview) -> memoryview:
    """Fill `view`; returns the part that the file had bytes for."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:] if done else view], offset + done)
        if count == 0:
            break
        done += count
    return view[:done]


def _read_new(fd: int, offset: int, length: int) -> memoryview:
    """The same into new memory, which pread does not fill with zeros first."""
    data = os.pread(fd, length, offset) if length else b""
    if len(data) in (0, length):
        return memoryview(data)
    parts = [data]  # the kernel reads at most 2 GiB at once, and may stop at a signal
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, offset + done)):
        parts.append(data)
        done += len(data)
    return memoryview(b"".join(parts))
