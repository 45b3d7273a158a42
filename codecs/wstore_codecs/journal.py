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

from wstore.errors import IntegrityError, NoSpace

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

    def open(self, needed: int) -> Keeper:
        """Room for `needed` bytes of undo.

        Raises:
            NoSpace: there is none; nothing was written.
        """
        beyond = needed - self.memory_bytes
        if beyond > 0:
            if self.spill is None:
                raise NoSpace(
                    f"undoing this apply may need {needed} bytes, the budget is {self.memory_bytes} and "
                    "no spill directory is given: raise Journal(memory_bytes=), give spill=, or use "
                    "apply_to_copies"
                )
            free = shutil.disk_usage(self.spill).free
            if free < beyond:
                raise NoSpace(
                    f"undoing this apply may need {beyond} bytes in {self.spill}, which has {free}"
                )
        return Keeper(self.memory_bytes, self.spill)


class Keeper:
    """Puts arrays away and hands them out again. Safe from several threads; the file vanishes with it."""

    def __init__(self, memory_bytes: int, spill: Path | str | None) -> None:
        self._left = memory_bytes
        self._spill = spill
        self._file: int | None = None
        self._at = 0
        self._lock = threading.Lock()

    def keep(self, arrays: Sequence[Bits]) -> Kept:
        """Copies of these 1-d arrays. Raises NoSpace or OSError when the file cannot take them."""
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            fits = size <= self._left
            if fits:
                self._left -= size
            else:
                at, self._at = self._at, self._at + size
                file = self._open()
        if fits:
            return _InMemory([array.copy() for array in arrays])
        lengths = []
        for array in arrays:
            _write(file, array, at)
            lengths.append((array.dtype.str, array.size))
            at += array.nbytes
        return _InFile(file, at - size, lengths)

    def _open(self) -> int:
        if self._spill is None:
            raise NoSpace("the undo of an apply outgrew its memory and there is no spill directory")
        if self._file is None:
            # Unnamed from the start where the system can: a killed process leaves nothing behind.
            with tempfile.TemporaryFile(dir=self._spill, prefix=".wstore-undo-") as file:
                self._file = os.dup(file.fileno())
        return self._file

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
        count = os.pwrite(file, view, at)
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
