"""A piecewise write on a file system: each piece goes to its offset in one hidden temporary file."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wstore import errors
from wstore.stores.joining import joined_size
from wstore.stores.posix_errors import OsErrors, info_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.stores.base import ObjectInfo
    from wstore.stores.posix_temp import TempFile


class PosixUpload:
    """An `Upload` over one `TempFile`. Pieces are written in parallel; `complete` makes them durable.

    `complete` and `abort` wait for the pieces under way, so that no thread writes to a closed (or,
    worse, reused) descriptor.
    """

    def __init__(self, temp: TempFile, url: str) -> None:
        self._temp = temp
        self._url = url
        self._pieces: dict[int, tuple[int, int]] = {}
        self._idle = threading.Condition()
        self._writing = 0
        self._open = True
        self._dropped = False
        self._info: ObjectInfo | None = None

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Write the piece at its offset.

        Raises:
            InvalidArgument: the upload was completed or aborted.
            NoSpace, StoreError: the device's; the piece may be put again.
        """
        with self._idle:
            if not self._open:
                raise errors.InvalidArgument("the upload is completed or aborted", url=self._url)
            self._writing += 1
        try:
            with OsErrors(self._url):
                self._temp.write(offset, data)
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()
        self._pieces[number] = (offset, len(data))

    def complete(self) -> ObjectInfo:
        """Make the content durable and publish it over the old file, if any.

        May be called again after a retryable failure, and after it succeeded (the same answer); any
        other failure drops the upload.

        Raises:
            InvalidArgument: the pieces do not join; or the upload was dropped.
        """
        with self._closing():
            if self._info is not None:
                return self._info
            if self._dropped:
                raise errors.InvalidArgument("the upload was aborted, or failed", url=self._url)
            size = joined_size(self._pieces, self._url)
            try:
                with OsErrors(self._url):
                    status = self._temp.finish(size)
                    self._temp.replace()
            except errors.WStoreError as error:
                if not error.retryable:
                    self._drop()
                raise
            self._info = info_of(status)
            return self._info

    def abort(self) -> None:
        """Remove the temporary file; the old file stays."""
        with self._closing():
            if self._info is None:
                self._drop()

    def _drop(self) -> None:
        self._dropped = True
        self._temp.discard()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Let no further piece begin, and wait for those under way."""
        with self._idle:
            self._open = False
            while self._writing:
                self._idle.wait()
            yield
