"""What an apply needs to go back: kept in memory up to a budget, then in a local file.

A delta of `xor` or `ulp` is its own undo and keeps nothing. Where the changes of a block cannot be found
again from its new content (`context`), they are kept; where a block is replaced, its old bytes are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wstore.errors import IntegrityError, InvalidArgument, NoSpace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from wstore_codecs.tensors import Bits

DEFAULT_MEMORY = 256 << 20
"""Bytes of undo that an apply keeps in memory, unless told otherwise."""


class Kept(Protocol):
    """Arrays that were put away."""

    def arrays(self) -> list[Bits]:
        """The arrays again, bit for bit. Raises IntegrityError when the file cannot be read."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the undo of an apply may go.

    Attributes:
        memory_bytes: how much of it may be in memory.
        spill: a local directory for the rest; None: there is none, an apply that needs more is refused.
    """

    memory_bytes: int = DEFAULT_MEMORY
    spill: Path | str | None = None

    def open(self, sizes: Sequence[int]) -> Keeper:
        """Room for the undo of several blocks, of so many bytes each.

        Raises:
            NoSpace: there is none; nothing was written.
            InvalidArgument: the spill directory cannot be used.
        """
        needed = sum(sizes)
        file: int | None = None
        if needed > self.memory_bytes:
            if self.spill is None:
                raise NoSpace(
                    f"undoing this apply may need {needed} bytes, the budget is {self.memory_bytes} and "
                    "no spill directory is given: raise Journal(memory_bytes=), give spill=, or use "
                    "apply_to_copies"
                )
            # What is left of the memory may be too little for each of those that are still to come.
            beyond = min(needed, needed - self.memory_bytes + max(sizes))
            try:
                free = shutil.disk_usage(self.spill).free
                if free < beyond:
                    raise NoSpace(
                        f"undoing this apply may need {beyond} bytes in {self.spill}, which has {free}"
                    )
                file = _unnamed(self.spill)
            except OSError as error:
                if isinstance(error, NoSpace):
                    raise
                raise InvalidArgument(f"the spill directory cannot be used: {error}") from error
        return Keeper(self.memory_bytes, file)


def _unnamed(folder: Path | str) -> int:
    """A new file without a name, where the system can: a killed process leaves nothing behind."""
    with tempfile.TemporaryFile(dir=folder, prefix=".wstore-undo-") as file:
        return os.dup(file.fileno())


class Keeper:
    """Puts arrays away and hands them out again. Safe from several threads; the file vanishes with it."""

    def __init__(self, memory_bytes: int, file: int | None) -> None:
        self._left = memory_bytes
        self._file = file
        self._at = 0
        self._lock = threading.Lock()

    def keep(self, arrays: Sequence[Bits]) -> Kept:
        """Copies of these 1-d arrays. Raises NoSpace when the file cannot take them."""
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            fits = size <= self._left
            if fits:
                self._left -= size
            else:
                at, self._at = self._at, self._at + size
        if fits:
            return _InMemory([array.copy() for array in arrays])
        if self._file is None:
            raise NoSpace("the undo of an apply outgrew its memory and there is no spill directory")
        lengths = []
        for array in arrays:
            _write(self._file, array, at)
            lengths.append((array.dtype.str, array.size))
            at += array.nbytes
        return _InFile(self._file, at - size, lengths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            os.close(self._file)


def _write(file: int, array: Bits, at: int) -> None:
    view = array.view("u1").data
    while view:
        try:
            count = os.pwrite(file, view, at)
        except OSError as error:
            raise NoSpace(f"the undo of an apply cannot be put away: {error}") from error
        view, at = view[count:], at + count


@dataclass(frozen=True, slots=True)
class _InMemory:
    kept: list[Bits]

    def arrays(self) -> list[Bits]:
        return self.kept


@dataclass(frozen=True, slots=True)
class _InFile:
    file: int
    at: int
    lengths: list[tuple[str, int]]

    def arrays(self) -> list[Bits]:
        out: list[Bits] = []
        at = self.at
        for dtype, size in self.lengths:
            array: Bits = np.empty(size, np.dtype(dtype))
            view = array.view("u1").data
            while view:
                count = os.preadv(self.file, [view], at)
                if count == 0:
                    raise IntegrityError(
                        "the undo file of an apply is cut short: reload the weights"
                    )
                view, at = view[count:], at + count
            out.append(array)
        return out
