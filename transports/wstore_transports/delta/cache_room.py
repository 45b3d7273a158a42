"""Which files of a shared cache go when there is no room: the least recently used."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wstore_transports.delta.host_lock import HostLock

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = ".part"
"""What the name of an object ends with while it is downloaded; its lock lies on the same file."""

_OBJECT = re.compile(r"[0-9a-f]{32}-[0-9]{1,19}(\.part)?")


def mark_used(descriptor: int) -> None:
    """The object is in use now. Set by hand: many mounts do not keep the time of access."""
    status = os.fstat(descriptor)
    with suppress(PermissionError):  # another user's file: it only goes earlier
        os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))


def make_room(directory: Path, size: int, max_bytes: int) -> bool:
    """Remove least recently used objects until `size` more bytes fit; under the directory's lock.

    What killed downloads left is removed first, whoever wanted it. Objects that are open stay readable.

    Returns:
        False, with no object removed, where downloads that are under way leave too little room.

    Raises:
        OSError: the directory cannot be read, or a file in it not be removed.
    """
    busy = 0
    objects: list[tuple[int, int, Path]] = []
    for path, status in _files(directory):
        if path.name.endswith(PART):
            busy += 0 if _was_left(path) else status.st_size
        else:
            objects.append((status.st_atime_ns, status.st_size, path))
    if busy + size > max_bytes:
        return False
    used = busy + sum(nbytes for _, nbytes, _ in objects)
    for _, nbytes, path in sorted(objects):
        if used + size <= max_bytes:
            break
        path.unlink(missing_ok=True)
        used -= nbytes
    return True


def _was_left(part: Path) -> bool:
    """Whether a download has ended without its end; its file is then removed."""
    lock = HostLock.take(part, create=False)
    if lock is None:
        return False
    with lock:
        lock.unlink()
    return True


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for root in os.scandir(directory):
        if not root.is_dir(follow_symlinks=False):
            continue
        for entry in os.scandir(root):
            if _OBJECT.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # another process renamed or removed it just now
                    yield Path(entry), entry.stat(follow_symlinks=False)
