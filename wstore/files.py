"""Objects as file objects: `StoragePath.open`."""

from __future__ import annotations

import codecs
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from wstore import download
from wstore.buffers import readable_bytes
from wstore.download import ReadOptions
from wstore.errors import InvalidArgument, UnsupportedOperation
from wstore.streaming import StreamWriter
from wstore.upload import WriteOptions

if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO, TextIO

    from typing_extensions import Buffer

    from wstore.stores.base import ObjectInfo, Store

_LOCAL_BUFFER = 1 << 20
_REMOTE_BUFFER = 4 << 20  # a request on a store far away takes as long as some MiB


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How characters become bytes; as builtin `open` has it."""

    encoding: str
    errors: str
    newline: str | None


def open_file(
    store: Store, key: str, mode: str, text: TextOptions
) -> BinaryIO | ObjectWriter | TextIO | TextWriter:
    """See `StoragePath.open`."""
    action = mode.replace("b", "").replace("t", "")
    if action not in ("r", "w", "x") or ("b" in mode and "t" in mode) or len(mode) > 2:
        raise UnsupportedOperation(
            f"mode {mode!r}: objects are opened to read (r) or written anew (w, x), with b or t",
            url=f"{store.url}/{key}",
        )
    if action == "r":
        raw = ObjectReader(store, key)
        local = store.capabilities.directories
        buffered = io.BufferedReader(raw, _LOCAL_BUFFER if local else _REMOTE_BUFFER)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, text.encoding, text.errors, text.newline)
    writer = ObjectWriter(store, key, WriteOptions(if_absent=action == "x"))
    if "b" in mode:
        return writer
    return TextWriter(writer, text)


class ObjectReader(io.RawIOBase):
    """Reads one content of one object, at any place. `mode` "rb", `name` the URL."""

    mode = "rb"

    def __init__(self, store: Store, key: str) -> None:
        """Raises NotFound, IsADirectory."""
        super().__init__()
        info = store.stat(key)
        self._store = store
        self._key = key
        self._size = info.size
        self._options = ReadOptions(tag=info.tag)
        self._position = 0
        self.name = f"{store.url}/{key}"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._require_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}.get(whence)
        if base is None or base + offset < 0:
            raise InvalidArgument(f"cannot seek to {offset} (whence {whence})", url=self.name)
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, in parallel where it is large; fewer bytes only at the end."""
        self._require_open()
        with memoryview(buffer) as view, view.cast("B") as flat:
            wanted = max(0, min(len(flat), self._size - self._position))
            count = download.read_into(
                self._store, self._key, flat[:wanted], self._position, options=self._options
            )
        self._position += count
        return count

    def readall(self) -> bytes:
        self._require_open()
        left = max(0, self._size - self._position)
        data = download.read_range(
            self._store, self._key, self._position, left, tag=self._options.tag
        )
        self._position += len(data)
        return data

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class ObjectWriter(io.BufferedIOBase):
    """Writes one object, published when the file is closed without an exception.

    Attributes:
        info: the object that `close` published; None before, and after `abort`.
    """

    mode = "wb"

    def __init__(self, store: Store, key: str, options: WriteOptions) -> None:
        super().__init__()
        self._stream = StreamWriter(store, key, options)
        self.name = f"{store.url}/{key}"
        self.info: ObjectInfo | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.size

    def write(self, data: Buffer, /) -> int:
        """Take all of `data`; what was written is visible only after `close`."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = readable_bytes(data)
        try:
            self._stream.write(view)
        except BaseException as error:
            self.abort(error)
            raise
        return len(view)

    def close(self) -> None:
        """Publish. After a failure nothing is published, and the file is closed."""
        if self.closed:
            return
        try:
            self.info = self._stream.commit()
        except BaseException as error:
            self._stream.abort(error)
            raise
        finally:
            super().close()

    def abort(self, error: BaseException | None = None) -> None:
        """Close without publishing. Idempotent."""
        if not self.closed:
            super().close()
            self._stream.abort(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort(error)
        self.close()

    def __del__(self) -> None:
        """A file that was forgotten publishes nothing."""
        if hasattr(self, "_stream"):
            self.abort()


class TextWriter(io.TextIOBase):
    """Text on top of an `ObjectWriter`, with the same promises.

    Not a `TextIOWrapper`: that one writes no byte order mark to a file that cannot seek.
    """

    def __init__(self, writer: ObjectWriter, text: TextOptions) -> None:
        super().__init__()
        if text.newline not in (None, "", "\n", "\r", "\r\n"):
            raise InvalidArgument(f"newline {text.newline!r}", url=writer.name)
        self._encoder = codecs.getincrementalencoder(text.encoding)(text.errors)
        self._line_end = text.newline or "\n"
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Take all of `text`. Raises UnicodeEncodeError; nothing is published then."""
        shown = text if self._line_end == "\n" else text.replace("\n", self._line_end)
        try:
            data = self._encoder.encode(shown)
        except UnicodeEncodeError as error:
            self.abort(error)
            raise
        self._writer.write(data)
        return len(text)

    @property
    def info(self) -> ObjectInfo | None:
        """The object that `close` published."""
        return self._writer.info

    def abort(self, error: BaseException | None = None) -> None:
        """Close without publishing. Idempotent."""
        self._writer.abort(error)
        super().close()

    def close(self) -> None:
        """Publish, as `ObjectWriter.close`."""
        super().close()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort(error)
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_writer"):
            self.abort()
