"""Writing an object whose size is not known before: chunks in, growing pieces out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from wstore import checksums
from wstore.errors import InvalidArgument, UnsupportedOperation
from wstore.pieces import PIECE, growing_sizes, largest_object
from wstore.progress import Tally
from wstore.stores.base import Multipart
from wstore.transfer import Window, check_cancel
from wstore.upload import abort, conditional_limit, require_one_request, write_once

if TYPE_CHECKING:
    from types import TracebackType

    from wstore.stores.base import ObjectInfo, Store, Upload
    from wstore.upload import WriteOptions


class StreamWriter:
    """Gathers chunks into pieces, which shared threads send while more come in. Used by one thread.

    What fits one piece is written in one atomic request. `commit` publishes; leaving the `with` block
    without it, also by an exception, drops everything.
    """

    def __init__(self, store: Store, key: str, options: WriteOptions) -> None:
        self._store = store
        self._key = key
        self._url = f"{store.url}/{key}"
        self._options = options
        self._limits = store.capabilities.pieces
        self._multipart = store.feature(Multipart)
        self._sizes = growing_sizes(self._limits, options.piece_size or PIECE)
        self._one_request = options.conditional or self._multipart is None
        self._capacity = (
            conditional_limit(store, options) if self._one_request else next(self._sizes)
        )
        self._piece = bytearray()
        self._sent = 0
        self._number = 0
        self._upload: Upload | None = None
        self._window = Window(1, options.cancel)
        self._counter = Tally(options.progress, None)
        self._digest = checksums.digest_for(options.checksum) if options.checksum else None
        self._done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._done:
            self.abort(error)

    @property
    def size(self) -> int:
        """The bytes taken so far."""
        return self._sent + len(self._piece)

    def write(self, chunk: memoryview) -> None:
        """Take the next bytes; copies them. Blocks while the pieces in flight fill the budget.

        Raises:
            UnsupportedOperation: more than a conditional write may hold. Nothing was sent.
            InvalidArgument: over the service's limit.
        """
        check_cancel(self._options.cancel)
        if self._digest is not None:
            self._digest.update(chunk)
        while chunk:
            if len(self._piece) == self._capacity:
                self._send_piece(len(chunk))
            room = self._capacity - len(self._piece)
            self._piece += chunk[:room]
            chunk = chunk[room:]

    def commit(self) -> ObjectInfo:
        """Publish what was written; returns when it is."""
        if self._digest is not None and self._options.checksum is not None:
            checksums.require(self._digest, self._options.checksum, self._url)
        check_cancel(self._options.cancel)
        if self._upload is None:
            with memoryview(self._piece) as data:
                info = write_once(self._store, self._key, data, self._options)
            self._counter.add(info.size)
        else:
            self._start_put()
            self._window.join()
            info = self._upload.complete()
        self._done = True
        self._piece = bytearray()
        return info

    def abort(self, error: BaseException | None = None) -> None:
        """Drop everything; the old object stays. Idempotent."""
        if self._done:
            return
        self._done = True
        self._piece = bytearray()
        self._window.drop()
        if self._upload is not None:
            abort(self._upload, error)

    def _send_piece(self, more: int) -> None:
        """Hand over the full piece, as there is more to come."""
        if self._one_request:
            require_one_request(self._store, self._key, self.size + more, self._options)
            raise UnsupportedOperation(
                f"more than {self._capacity} bytes at once; the store takes no pieces",
                url=self._url,
            )
        if self.size + more > largest_object(self._limits):
            raise InvalidArgument(
                f"over the service's limit of {largest_object(self._limits)} bytes for one object",
                url=self._url,
            )
        if self._upload is None:
            assert self._multipart is not None
            self._upload = self._multipart.upload(self._key)
        self._start_put()
        self._capacity = next(self._sizes)

    def _start_put(self) -> None:
        upload, number, offset, data = self._upload, self._number, self._sent, self._piece
        assert upload is not None
        self._number += 1
        self._sent += len(data)
        self._piece = bytearray()
        # One piece more than the window is being gathered.
        self._window.width = max(1, self._options.width(self._store.capabilities, len(data)) - 1)

        def put() -> None:
            upload.put(number, offset, memoryview(data))
            self._counter.add(len(data))

        self._window.run(put)
