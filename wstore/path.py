"""StoragePath: a pathlib-like value for objects on local disk, shared mounts and object stores.

All input and output goes through the path's `Store`, found on first use in `stores.registry` (or injected).
Every method is safe from any thread. Offsets and sizes are bytes, times are seconds. Each call that
transfers takes `cancel`, a `threading.Event` that is looked at between requests (then: `Cancelled`), and
needs at most `MEMORY_BUDGET` bytes beside what it returns. Errors are `wstore.errors`, also the builtins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from wstore import aio, download, files, tree, upload, waiting
from wstore.errors import InvalidPath
from wstore.tree_path import TreePath
from wstore.upload import WriteOptions

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO, Literal, Self, TextIO

    from wstore.buffers import WritableBuffer
    from wstore.progress import Progress
    from wstore.sources import Data
    from wstore.stores.base import ObjectInfo


class StoragePath(TreePath):
    """A place in a store: `StoragePath("s3://bucket/run1") / "log" / "head.json"`.

    Immutable, hashable, ordered, picklable (as its URL). `os.fspath` and `str` of a local one give the
    plain path, so it can be handed to `open` and the like.
    """

    __slots__ = ()

    # Reading

    def read_bytes(self, *, cancel: threading.Event | None = None) -> bytes:
        """The whole object: one request where it is small, the rest in parallel where it is not.

        Raises: NotFound, IsADirectory (a prefix), ObjectChanged (replaced meanwhile).
        """
        return self._on_object(lambda store: download.read_all(store, self.key, cancel=cancel))

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The whole object as text; line ends are kept as they are."""
        return self.read_bytes().decode(encoding, errors)

    def read_range(
        self,
        offset: int,
        length: int,
        *,
        tag: str | None = None,
        cancel: threading.Event | None = None,
    ) -> bytes:
        """Bytes [offset, offset + length). Shorter past the end; b"" from the end on; length 0 sends
        no request.

        Args:
            tag: read only this content (an `ObjectInfo.tag`), else ObjectChanged.

        Raises: InvalidArgument (negative), NotFound, IsADirectory, ObjectChanged.
        """
        return self._on_object(
            lambda store: download.read_range(
                store, self.key, offset, length, tag=tag, cancel=cancel
            )
        )

    def read_ranges(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        max_gap: int | None = None,
        request_size: int | None = None,
        concurrency: int | None = None,
        tag: str | None = None,
        cancel: threading.Event | None = None,
    ) -> list[memoryview]:
        """Many ranges (offset, length) at once, in the order given; each as `read_range` has it.

        Near ranges share a request, long ones are split; overlapping bytes are fetched once. All come
        from one content of the object. The results are read-only and may share memory.

        Args:
            max_gap: read across gaps of up to so many unwanted bytes (default 512 KiB).
            request_size: the most bytes of one request (default: what pays on the store, 8 MiB).
            concurrency: the most requests at once (default: the store's, more of them when they are small).

        Raises: InvalidArgument, NotFound, IsADirectory, ObjectChanged.
        """
        options = download.ReadOptions(max_gap, request_size, concurrency, tag, cancel)
        return self._on_object(
            lambda store: download.read_ranges(store, self.key, ranges, options=options)
        )

    def read_into(
        self,
        buffer: WritableBuffer,
        offset: int = 0,
        *,
        request_size: int | None = None,
        concurrency: int | None = None,
        tag: str | None = None,
        cancel: threading.Event | None = None,
    ) -> int:
        """Fill the caller's memory from byte `offset` on; returns the bytes read, fewer only at the end.

        Args:
            buffer: bytearray, memoryview, numpy array, torch CPU tensor (any dtype): writable and
                C-contiguous. It is filled in place, without a second copy of the object; after an error
                its content is undefined.

        Raises: InvalidArgument (read-only, not contiguous, negative offset), NotFound, IsADirectory,
            ObjectChanged.
        """
        options = download.ReadOptions(None, request_size, concurrency, tag, cancel)
        return self._on_object(
            lambda store: download.read_into(store, self.key, buffer, offset, options=options)
        )

    # Writing

    def write_file(
        self,
        data: Data,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        piece_size: int | None = None,
        concurrency: int | None = None,
        checksum: str | None = None,
        progress: Progress | None = None,
        max_memory: int = upload.MEMORY_BUDGET,
        cancel: threading.Event | None = None,
    ) -> ObjectInfo:
        """Make the whole object, atomically: readers see the old one or all of the new one.

        A failure (also of `data` or `progress`) leaves the old object and no debris. Missing parent
        directories are made. On POSIX it is on the disk (fsync) when this returns.

        Args:
            data: bytes-like (also numpy arrays and torch CPU tensors: C-contiguous), a local Path or any
                StoragePath, a binary file object (from its position on), or an iterable of bytes-like.
            if_absent: create only; AlreadyExists where there is an object. Atomic.
            if_match: replace only the content of this tag; else PreconditionFailed.
            piece_size: bytes of one piece of a large upload (default: chosen from the size and the
                service's limits; raised where the service needs it).
            concurrency: the most pieces in flight (default: the store's).
            checksum: the digest that `data` must have, "crc32c:<8 hex>" or "xxh3:<32 hex>"; otherwise
                IntegrityError and nothing is published. See `wstore.checksums`.
            progress: called as progress(bytes done, total or None) after each piece, by any thread but
                never twice at once.
            max_memory: the most bytes held beside the caller's; at least one piece is.

        Raises:
            ObjectChanged: a local source changed, shrank or grew while it was read.
            UnsupportedOperation: a conditional write larger than `max_memory` or than one request, or
                a condition that the store cannot promise. Nothing was sent.
            InvalidArgument: over the service's limit; data of the wrong kind.
        """
        options = WriteOptions(
            if_absent=if_absent,
            if_match=if_match,
            piece_size=piece_size,
            concurrency=concurrency,
            checksum=checksum,
            progress=progress,
            max_memory=max_memory,
            cancel=cancel,
        )
        return upload.write_file(self.store, self.key, data, options)

    def write_bytes(
        self, data: Data, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """`write_file` without its tuning."""
        return self.write_file(data, if_absent=if_absent, if_match=if_match)

    def write_text(
        self,
        text: str,
        encoding: str = "utf-8",
        errors: str = "strict",
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        """Write the encoded text; line ends are kept as they are."""
        return self.write_file(
            text.encode(encoding, errors), if_absent=if_absent, if_match=if_match
        )

    @overload
    def open(self, mode: Literal["rb"]) -> BinaryIO: ...
    @overload
    def open(self, mode: Literal["wb", "xb"]) -> files.ObjectWriter: ...
    @overload
    def open(
        self,
        mode: Literal["r", "rt"] = "r",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
    ) -> TextIO: ...
    @overload
    def open(
        self,
        mode: Literal["w", "wt", "x", "xt"],
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
    ) -> files.TextWriter: ...
    def open(
        self,
        mode: str = "r",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
    ) -> BinaryIO | files.ObjectWriter | TextIO | files.TextWriter:
        """Open as a file: "rb"/"r" seekable and buffered; "wb"/"w" atomic; "xb"/"x" create only.

        Reading sees one content (else ObjectChanged). What is written appears when the file is closed;
        an exception inside `with`, `abort()`, or forgetting the file publishes nothing. "x" is bound by
        the memory budget. Other modes are UnsupportedOperation.
        """
        text = files.TextOptions(encoding, errors, newline)
        return self._on_object(lambda store: files.open_file(store, self.key, mode, text))

    # Between places

    def download(
        self,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> ObjectInfo:
        """Copy the object to a local file, atomically, reading in parallel; returns the new file's info."""
        return self.copy(_local(local), progress=progress, cancel=cancel)

    def upload(
        self,
        local: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> ObjectInfo:
        """Copy a local file here: `write_file(Path(local))`."""
        return _local(local).copy(self, progress=progress, cancel=cancel)

    def copy(
        self,
        to: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> ObjectInfo:
        """Copy the object to another place, atomically; inside the store where it can, else through
        memory in parallel pieces. Raises NotFound naming the source."""
        target = to if isinstance(to, StoragePath) else StoragePath(to)
        options = WriteOptions(progress=progress, cancel=cancel)
        return self._on_object(
            lambda store: upload.copy(store, self.key, target.store, target.key, options)
        )

    # Waiting

    def wait(
        self,
        timeout: float | None,
        *,
        poll: float | None = None,
        cancel: threading.Event | None = None,
    ) -> ObjectInfo:
        """Wait until the object exists, and describe it.

        Looks at once, then ever more rarely, with jitter; transient errors are tolerated until the
        deadline, a refusal is not.

        Args:
            timeout: seconds; None waits for ever, 0 looks once.
            poll: the most seconds between two looks (default 0.25).

        Raises: WaitTimeout naming the URL and the seconds waited, Cancelled, AccessDenied.
        """
        return waiting.wait(self._probed, self.key, timeout, poll=poll, cancel=cancel)

    def watch(
        self,
        pattern: str,
        *,
        timeout: float | None,
        poll: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[Self]:
        """The paths that match `glob(pattern)`, each once: first what is there, then what appears.

        Ends when `cancel` is set or the iterator is closed.

        Args:
            timeout: seconds that may pass without a new name; then WaitTimeout. None: no limit.
        """
        url, store = f"{self.url.removesuffix('/')}/{pattern}", self._probed
        keys = waiting.watch(
            lambda: tree.find(store, self.key, pattern),
            url,
            timeout,
            place=(id(store), self.key, pattern),
            poll=poll,
            cancel=cancel,
        )
        return map(self._with_key, keys)

    # Async twins: the same signatures; cancelling the task returns at once and stops further requests.

    aexists = aio.twin(TreePath.exists)
    aread_bytes = aio.twin(read_bytes)
    aread_range = aio.twin(read_range)
    aread_ranges = aio.twin(read_ranges)
    aread_into = aio.twin(read_into)
    awrite_file = aio.twin(write_file)
    await_object = aio.twin(wait)


def _local(path: str | os.PathLike[str]) -> StoragePath:
    found = StoragePath(path)
    if not found.is_local:
        raise InvalidPath("is not a local path; use copy() between stores", url=found.url)
    return found
