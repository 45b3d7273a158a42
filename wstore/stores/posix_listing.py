"""Walking a directory tree: listings in the order of an object store, and the search for debris."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from typing import TYPE_CHECKING

from wstore.stores.base import Entry
from wstore.stores.posix_errors import info_of
from wstore.stores.posix_looking import look_twice
from wstore.stores.posix_temp import is_temp_name, new_temp_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_ONE_ENTRY = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESTALE,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EACCES,
        errno.EPERM,
    }
)


def list_directory(
    directory: bytes, prefix: bytes, *, recursive: bool, start_after: bytes
) -> Iterator[Entry]:
    """The files (and, without `recursive`, the directories) in `directory`, by the bytes of their key.

    A directory sorts as its name and "/", as its files do: "a.b" before "a/c". Symbolic links show as
    what they point to, but `recursive` does not enter those to directories (they may form a loop, or
    lead out of the tree). Dangling links, FIFOs and devices are not objects and do not show; what
    vanishes meanwhile does not either.

    Args:
        prefix: the key of `directory`: "" or ending with "/".
        start_after: only keys after this one.

    Raises:
        OSError: a directory could not be read.
    """
    for name, entry, is_link in _sorted_entries(directory):
        key = prefix + name
        if not name.endswith(b"/"):
            if key > start_after and (listed := _file_entry(key, entry)) is not None:
                yield listed
        elif not recursive:
            if key > start_after:
                yield Entry(os.fsdecode(key), None)
        elif not is_link and (key > start_after or start_after.startswith(key)):
            yield from list_directory(entry.path, key, recursive=True, start_after=start_after)


def _sorted_entries(directory: bytes) -> list[tuple[bytes, os.DirEntry[bytes], bool]]:
    """(name, entry, is a symbolic link), directories with a trailing "/". None if it is gone."""
    try:
        # A network client may remember that a directory is absent which another host has just made.
        found = look_twice(directory, lambda: _entries(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found.sort(key=lambda item: item[0])
    return found


def _entries(directory: bytes) -> list[tuple[bytes, os.DirEntry[bytes], bool]]:
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_temp_name(entry.name):
                continue
            try:
                is_directory = entry.is_dir()
            except OSError as error:
                _require_passing_by(error)
                continue
            name = entry.name + b"/" if is_directory else entry.name
            found.append((name, entry, entry.is_symlink()))
    return found


def _file_entry(key: bytes, entry: os.DirEntry[bytes]) -> Entry | None:
    try:
        status = entry.stat()
    except OSError as error:
        _require_passing_by(error)
        return None
    return Entry(os.fsdecode(key), info_of(status)) if stat.S_ISREG(status.st_mode) else None


def left_out(directory: bytes) -> Iterator[bytes]:
    """The paths below that a recursive `list_directory` does not show: links to directories, dangling
    ones, FIFOs and the like. Unfinished writes are not among them.

    Raises:
        OSError: a directory could not be read.
    """
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if is_temp_name(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from left_out(entry.path)
        elif _file_entry(b"", entry) is None:
            yield entry.path


def _require_passing_by(error: OSError) -> None:
    """Raise what is not of one entry (a dangling or looping link, one just gone, one of others): a mount
    that is lost half-way must not pass for a short listing."""
    if error.errno not in _OF_ONE_ENTRY:
        raise error


def remove_old_temps(directory: bytes, *, older_than_s: float) -> list[bytes]:
    """Remove unfinished writes under `directory` whose last change is older; returns their paths.

    A directory with the name of an unfinished write is one too (a whole tree that was to appear at
    once); its last change is the newest in it.

    Ages are by the clock of the file system (a network one has its server's): that of a new file.
    """
    removed = []
    for path, modified_ns in _temps(directory):
        age_ns = _file_system_time_ns(os.path.dirname(path)) - modified_ns
        if age_ns >= older_than_s * 1e9:
            with contextlib.suppress(FileNotFoundError):  # its writer, or another sweep, was faster
                _remove(path)
                removed.append(path)
    return removed


def _remove(path: bytes) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path)


def _temps(directory: bytes) -> Iterator[tuple[bytes, int]]:
    try:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_temp_name(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.path, _last_change_ns(entry)
                elif entry.is_dir(follow_symlinks=False):
                    yield from _temps(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _last_change_ns(entry: os.DirEntry[bytes]) -> int:
    last = entry.stat(follow_symlinks=False).st_mtime_ns
    if entry.is_dir(follow_symlinks=False):
        with os.scandir(entry.path) as inside:
            last = max([last, *map(_last_change_ns, inside)])
    return last


def _file_system_time_ns(directory: bytes) -> int:
    """Now, by the clock that stamps files in `directory`."""
    probe = os.path.join(directory, new_temp_name())
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(probe)
