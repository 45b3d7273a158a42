"""`Wrapper`: a Store around a Store whose every operation goes through one method, `around`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from wstore import errors
from wstore.stores.base import (
    Copy,
    Directories,
    Expect,
    Multipart,
    Places,
    Settle,
    Sweep,
)

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator

    from wstore.stores.base import Capabilities, Entry, ObjectInfo, Read, Store, Upload

F = TypeVar("F")
T = TypeVar("T")

_PAGE = 1000  # entries of a listing that one call fetches


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on its way through a wrapper.

    Attributes:
        op: stat, read, write, list, delete; of features: upload, put, complete, abort, copy, is_dir,
            mkdir, rmdir, sweep, wrote, capabilities (of one key). A listing is one call for each page of it.
        key: what it concerns (a prefix for list and sweep, the source for copy).
        offset: of a read or a piece, in bytes.
        length: bytes asked for by a read, or given to a write or a put.
        number: of a piece.
        expect: of a write.
    """

    op: str
    key: str
    offset: int = 0
    length: int = 0
    number: int = 0
    expect: Expect | str = Expect.ANY


class Wrapper:
    """A Store that passes everything on through `around`. Subclasses override that method.

    A feature is offered when the inner store has it, with the same wrapping.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def around(self, call: Call, run: Callable[[], T]) -> T:
        """Carry out `call`: `run()` does it on the inner store, and may be called any number of times."""
        return run()

    @property
    def inner(self) -> Store:
        """The store inside."""
        return self._inner

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def stat(self, key: str) -> ObjectInfo:
        return self.around(Call("stat", key), lambda: self._inner.stat(key))

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        return self.around(
            Call("read", key, offset, length),
            lambda: self._inner.read(key, offset, length, buffer=buffer, tag=tag),
        )

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        return self.around(
            Call("write", key, length=len(data), expect=expect),
            lambda: self._inner.write(key, data, expect=expect, write_id=write_id),
        )

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        pages = _Pages(self._inner, prefix, recursive, start_after)
        while page := self.around(Call("list", prefix), pages.fetch):
            yield from page

    def delete(self, key: str) -> None:
        self.around(Call("delete", key), lambda: self._inner.delete(key))

    def close(self) -> None:
        self._inner.close()

    def feature(self, kind: type[F]) -> F | None:
        if self._inner.feature(kind) is None:
            return None
        features = _Features(self)
        return features if isinstance(features, kind) else None


class _Pages:
    """A listing in pages. After a failure, `fetch` continues behind the last entry it gave out."""

    def __init__(self, store: Store, prefix: str, recursive: bool, start_after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._recursive = recursive
        self._last = start_after
        self._entries: Iterator[Entry] | None = None

    def fetch(self) -> list[Entry]:
        """The next entries, [] at the end."""
        # A generator that raised is finished, and would pass for the end of the listing.
        entries, self._entries = self._entries, None
        if entries is None:
            entries = self._store.list(
                self._prefix, recursive=self._recursive, start_after=self._last
            )
        page = list(islice(entries, _PAGE))
        self._entries = entries
        if page:
            self._last = page[-1].key
        return page


class _Features:
    """All optional protocols of the inner store, each call wrapped."""

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper = wrapper

    def _inner(self, kind: type[F]) -> F:
        feature = self._wrapper.inner.feature(kind)
        if feature is None:
            raise errors.UnsupportedOperation(
                f"this store has no {kind.__name__}", url=self._wrapper.url
            )
        return feature

    def upload(self, key: str, *, size: int | None = None) -> Upload:
        multipart = self._inner(Multipart)
        inner = self._wrapper.around(Call("upload", key), lambda: multipart.upload(key, size=size))
        return _WrappedUpload(self._wrapper, key, inner)

    def copy(self, source: str, target: str) -> ObjectInfo:
        copies = self._inner(Copy)
        return self._wrapper.around(Call("copy", source), lambda: copies.copy(source, target))

    def is_dir(self, key: str) -> bool:
        directories = self._inner(Directories)
        return self._wrapper.around(Call("is_dir", key), lambda: directories.is_dir(key))

    def mkdir(self, key: str, *, parents: bool, exist_ok: bool) -> None:
        directories = self._inner(Directories)
        self._wrapper.around(
            Call("mkdir", key),
            lambda: directories.mkdir(key, parents=parents, exist_ok=exist_ok),
        )

    def rmdir(self, key: str) -> None:
        directories = self._inner(Directories)
        self._wrapper.around(Call("rmdir", key), lambda: directories.rmdir(key))

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        sweeper = self._inner(Sweep)
        return self._wrapper.around(
            Call("sweep", prefix), lambda: sweeper.sweep(prefix, older_than_s=older_than_s)
        )

    def wrote(self, key: str, write_id: str) -> bool:
        settler = self._inner(Settle)
        return self._wrapper.around(Call("wrote", key), lambda: settler.wrote(key, write_id))

    def capabilities_at(self, key: str) -> Capabilities:
        places = self._inner(Places)
        return self._wrapper.around(Call("capabilities", key), lambda: places.capabilities_at(key))


class _WrappedUpload:
    def __init__(self, wrapper: Wrapper, key: str, inner: Upload) -> None:
        self._wrapper = wrapper
        self._key = key
        self._upload = inner

    def put(self, number: int, offset: int, data: memoryview) -> None:
        self._wrapper.around(
            Call("put", self._key, offset, len(data), number),
            lambda: self._upload.put(number, offset, data),
        )

    def complete(self) -> ObjectInfo:
        return self._wrapper.around(Call("complete", self._key), self._upload.complete)

    def abort(self) -> None:
        self._wrapper.around(Call("abort", self._key), self._upload.abort)
