"""Encoded bytes that wait for their turn: in memory up to a budget, then in a local file."""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wstore.errors import IntegrityError, NoSpace

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_BYTES = 256 << 20
"""Bytes that a spool keeps in memory, unless told otherwise."""


class Kept(Protocol):
    """Bytes that a spool keeps, until `drop`.

    Attributes:
        nbytes: how many.
        spilled: whether they are in the file.
    """

    nbytes: int

    @property
    def spilled(self) -> bool: ...

    def data(self) -> memoryview:
        """All of them; of a file, read into fresh memory. Raises IntegrityError when that fails."""

    def drop(self) -> None:
        """Give the room back. Idempotent."""


class Spool:
    """Room for bytes. Thread-safe.

    The file has no name where the system can do that, so a killed process leaves nothing behind; it goes
    when the spool is closed, or with the process.

    Args:
        memory_bytes: how much is kept in memory.
        directory: where the rest goes; the system's temporary directory when None.
    """

    def __init__(
        self, memory_bytes: int = MEMORY_BYTES, directory: Path | str | None = None
    ) -> None:
        self._left = memory_bytes
        self._directory = directory
        self._lock = threading.Lock()
        self._file: int | None = None
        self._end = 0
        self._live = 0  # kept things in the file; it is cut when there are none
        self.spilled_nbytes = 0

    def keep(self, data: memoryview) -> Kept:
        """Keep `data`: the memory itself where it fits, which must then not change, else a copy on disk.

        Raises:
            NoSpace: neither memory nor disk has room.
        """
        size = data.nbytes
        with self._lock:
            if size <= self._left:
                self._left -= size
                return _InMemory(self, size, data)
            at = self._end
            self._end += size
            self._live += 1
            self.spilled_nbytes += size
            if self._file is None:
                self._file = self._unnamed()
            file = self._file
        view = data
        while view:
            try:
                count = os.pwrite(file, view, at + size - view.nbytes)
            except OSError as error:
                self._give_back_file()
                raise NoSpace(
                    f"{size} bytes of encoded weights do not fit the memory budget, and cannot be spilled "
                    f"to {self._place()}: {error}"
                ) from error
            view = view[count:]
        return _InFile(self, size, file, at)

    def close(self) -> None:
        """Drop everything. Idempotent."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _place(self) -> str:
        return str(self._directory or tempfile.gettempdir())

    def _unnamed(self) -> int:
        try:
            with tempfile.TemporaryFile(dir=self._directory, prefix=".wstore-spool-") as file:
                return os.dup(file.fileno())
        except OSError as error:
            raise NoSpace(
                f"encoded weights do not fit the memory budget, and {self._place()} cannot take them: "
                f"{error}"
            ) from error

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._left += size

    def _give_back_file(self) -> None:
        with self._lock:
            self._live -= 1
            if self._live == 0 and self._file is not None:
                os.ftruncate(self._file, 0)
                self._end = 0


@dataclass(slots=True, eq=False)
class _InMemory:
    _spool: Spool
    nbytes: int
    _data: memoryview | None

    @property
    def spilled(self) -> bool:
        return False

    def data(self) -> memoryview:
        if self._data is None:
            raise AssertionError("used after it was dropped")
        return self._data

    def drop(self) -> None:
        if self._data is not None:
            self._data = None
            self._spool._give_back(self.nbytes)


@dataclass(slots=True, eq=False)
class _InFile:
    _spool: Spool
    nbytes: int
    _file: int
    _at: int
    _dropped: bool = False

    @property
    def spilled(self) -> bool:
        return True

    def data(self) -> memoryview:
        whole = np.empty(self.nbytes, np.uint8).data
        view, at = whole, self._at
        while view:
            count = os.preadv(self._file, [view], at)
            if count == 0:
                raise IntegrityError("a file of spilled weights is cut short")
            view, at = view[count:], at + count
        return whole

    def drop(self) -> None:
        if not self._dropped:
            self._dropped = True
            self._spool._give_back_file()
