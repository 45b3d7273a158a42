"""Locks between the processes (and threads) of one host: `flock` on a file."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Self

from wstore.stores.forking import renew_after_fork

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class HostLock:
    """A lock that is held. It ends with `release`, with the process, or when it is collected.

    A child forked while it is held does not keep it: the child's copy is closed at once.

    Attributes:
        path: the locked file. Whoever holds the lock may rename or unlink it: `take` by others then
            fails until there is a new file, never locks the old one.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        renew_after_fork(self)

    @classmethod
    def take(cls, path: Path, *, create: bool = True) -> HostLock | None:
        """The lock, or None where another holder (also a thread of this process) has it.

        Args:
            create: make the file where it is missing; else a missing file is None.

        Raises:
            OSError: the file system cannot do this.
        """
        try:
            descriptor = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o666)
        except FileNotFoundError:
            if create:
                raise
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = cls(path, descriptor) if _is_at(descriptor, path) else None
        except BlockingIOError:
            lock = None
        except BaseException:
            os.close(descriptor)
            raise
        if lock is None:
            os.close(descriptor)
        return lock

    @property
    def held(self) -> bool:
        """Until it is released; in a forked child never."""
        return self._descriptor != -1

    def unlink(self) -> None:
        """Remove the locked file, where the path still names it. Raises OSError."""
        if _is_at(self._descriptor, self.path):
            self.path.unlink()

    def release(self) -> None:
        """Let it go. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            try:  # said in words: a copy in a child that is being forked would keep it
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def after_fork(self) -> None:
        """The lock stays the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still names this file; its last holder may have moved or removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
