"""A file that becomes visible whole or not at all: hidden temp, fsync, rename, fsync of the directory."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from typing import TYPE_CHECKING

from wstore import errors
from wstore.stores.base import MiB
from wstore.stores.mounts import file_system_of
from wstore.stores.posix_errors import require_file
from wstore.stores.posix_striping import make_striped, note_ignored, stripes_for
from wstore.stores.syscalls import preallocate, rename_without_replace, start_writeback

if TYPE_CHECKING:
    from collections.abc import Callable

# The name does not contain the target's, so it fits whatever the length of that.
_TEMP_NAME = re.compile(rb"\.wstore-[0-9a-f]{32}\.tmp")
_CHUNK = 8 * MiB  # written, then handed to the device, at a time
_WORTH_RESERVING = 1 * MiB
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.02
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_CHOWN = frozenset({errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_TIMES = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


def is_temp_name(name: bytes) -> bool:
    """Whether this file name is one of ours for an unfinished write. Such names are never listed."""
    return _TEMP_NAME.fullmatch(name) is not None


def new_temp_name() -> bytes:
    """A fresh one: 128 random bits, so two writers never meet, whatever host they are on."""
    return b".wstore-%s.tmp" % secrets.token_hex(16).encode()


def sync_directory(directory: bytes) -> None:
    """Make the entries of `directory` durable. A file system without the notion is left alone."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def make_directories(directory: bytes) -> None:
    """Make `directory` and its missing parents, each durable in its own parent."""
    try:
        os.mkdir(directory)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        return
    except FileNotFoundError:
        parent = os.path.dirname(directory)
        if parent == directory:
            raise
        make_directories(parent)
        make_directories(directory)
        return
    sync_directory(os.path.dirname(directory))


def write_all(fd: int, offset: int, data: memoryview) -> None:
    """Write all of `data` at `offset`, each chunk on its way to the device before the next one."""
    done = 0
    while done < len(data):
        chunk = os.pwrite(fd, data[done : done + _CHUNK], offset + done)
        start_writeback(fd, offset + done, chunk)
        done += chunk


class TempFile:
    """The unfinished form of one file, in the directory where it will appear.

    `write` at any offsets from any threads; then `finish`, then `replace` or `create`; or `discard` at
    any point. The caller orders these; `os` errors pass through untranslated.

    Attributes:
        path: its hidden name.
        fd: open for writing until `finish` or `discard`.
    """

    def __init__(self, target: bytes, *, url: str, size: int | None, replaces: bool) -> None:
        """Open it, making missing parents of `target`.

        Args:
            target: where the file will appear. With `replaces`, a symbolic link there is followed, as
                `open` does, so the link stays and its target is replaced.
            size: reserve that many bytes now, so that a full disk shows before anything is written;
                on Lustre also stripe the file for that size.
            replaces: an existing regular file gives its mode, and where permitted its owner.
        """
        self._url = url
        self._old = _present(target, url) if replaces else None
        self._target = os.path.realpath(target) if replaces and os.path.islink(target) else target
        self._directory = os.path.dirname(self._target)
        self.path = os.path.join(self._directory, new_temp_name())
        self._status: os.stat_result | None = None
        striped = self._stripe(size)
        self.fd = self._open(striped=striped)
        try:
            if self._old is not None:
                self._take_after(self._old)
            elif striped:
                os.fchmod(self.fd, 0o666 & ~_umask())  # `lfs` made it with a mode of its own
            if size is not None and size >= _WORTH_RESERVING:
                preallocate(self.fd, size)
        except BaseException:
            self.discard()
            raise

    def _stripe(self, size: int | None) -> bool:
        """Let `lfs` make the empty file where that helps; whether it may have."""
        stripes = stripes_for(size)
        if stripes is None:
            return False
        file_system = file_system_of(self._directory)
        if not file_system.is_lustre:
            note_ignored(file_system.type)
            return False
        make_directories(self._directory)
        make_striped(self.path, stripes)
        return True

    def _open(self, *, striped: bool) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        if not striped:
            flags |= os.O_EXCL
        # A replacement of a private file must at no moment be readable by others.
        mode = 0o666 if self._old is None else 0o600
        for _ in range(_ATTEMPTS):  # a directory may be removed between making it and using it
            try:
                return os.open(self.path, flags, mode)
            except FileNotFoundError:
                make_directories(self._directory)
        return os.open(self.path, flags, mode)

    def _take_after(self, old: os.stat_result) -> None:
        mine = os.fstat(self.fd)
        if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self.fd, old.st_uid, old.st_gid)
            except OSError as error:
                # Only root may give files away; else the writer owns the new one.
                if error.errno not in _NO_CHOWN:
                    raise
        os.fchmod(self.fd, stat.S_IMODE(old.st_mode))

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`. Thread-safe."""
        write_all(self.fd, offset, data)

    def finish(self, size: int) -> os.stat_result:
        """Cut to `size`, make the content durable, close; returns the status it will be seen with.

        Again after it succeeded, it only returns that.
        """
        if self._status is not None:
            return self._status
        os.ftruncate(self.fd, size)  # drops what was reserved or written beyond
        # The kernel stamps files by its tick (4 ms): two quick replacements could share inode number
        # and time. The clock's nanoseconds keep their tags apart.
        now = time.time_ns()
        try:
            os.utime(self.fd, ns=(now, now))
        except OSError as error:
            if error.errno not in _NO_TIMES:
                raise
        os.fsync(self.fd)
        status = os.fstat(self.fd)
        fd, self.fd = self.fd, -1
        os.close(fd)  # a network file system may report here what did not fit
        self._status = status
        return status

    def replace(self) -> None:
        """Publish over whatever is there, durably. After `finish`.

        Raises:
            OutcomeUnknown: it is published, but perhaps not durable.
        """
        _patiently(lambda: os.rename(self.path, self._target), self._has_appeared)
        self._sync_published()

    def create(self, url: str) -> None:
        """Publish only if nothing has the target's name, durably. After `finish`; atomic among hosts.

        Raises:
            AlreadyExists: something has that name.
            OutcomeUnknown: it is published, but perhaps not durable.
            UnsupportedOperation: the file system has neither hard links nor a rename without replace.
        """
        try:
            os.link(self.path, self._target, follow_symlinks=False)
        except OSError as error:
            # An NFS server whose answer was lost is asked again and says EEXIST of our own link.
            # Nobody else knows the temp's name: a second link can only be the target.
            if self._links() < 2:
                if error.errno not in _NO_LINKS:
                    raise
                self._create_by_rename(url)
        # The link is made: that the temp's name stays is no failure, sweeping removes it.
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._sync_published()

    def _sync_published(self) -> None:
        try:
            _patiently(lambda: sync_directory(self._directory), lambda: False)
        except OSError as error:
            raise errors.OutcomeUnknown(
                "the new content is there and readers see it, but its directory could not be made "
                f"durable ({error.strerror}): a power cut may take it back; write it again to be sure",
                url=self._url,
            ) from error

    def _create_by_rename(self, url: str) -> None:
        try:
            rename_without_replace(self.path, self._target)
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise errors.UnsupportedOperation(
                    "this file system has neither hard links nor a rename that does not replace, "
                    "so create-if-absent cannot be atomic",
                    url=url,
                ) from error
            raise

    def discard(self) -> None:
        """Remove it, unless it was published. Idempotent; never raises."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            with contextlib.suppress(OSError):  # the content is being thrown away
                os.close(fd)
        with contextlib.suppress(OSError):  # what cannot be removed now is swept later
            os.unlink(self.path)

    def _links(self) -> int:
        try:
            return os.stat(self.path).st_nlink
        except OSError:
            return 0

    def _has_appeared(self) -> bool:
        try:
            present = os.stat(self._target)
        except OSError:
            return False
        return self._status is not None and present.st_ino == self._status.st_ino


def _umask() -> int:
    """This process's, without setting it: os.umask would, for an instant, for every thread."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line[6:], 8) for line in file if line.startswith("Umask:")), 0o022)


def _present(target: bytes, url: str) -> os.stat_result | None:
    """The status of the file to be replaced, None where there is none."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    require_file(status, url)
    return status


def _patiently(action: Callable[[], None], has_happened: Callable[[], bool]) -> None:
    """Do it; where a network file system answers ENOENT or ESTALE, see whether it was done, or repeat."""
    pause = _FIRST_PAUSE_S
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            if has_happened():
                return None
            if attempt + 1 == _ATTEMPTS:
                raise
        time.sleep(pause)
        pause *= 2
    return None
