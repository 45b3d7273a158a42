"""The file system itself: fsspec's methods in terms of `StoragePath`'s."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import isfilelike

from wstore.buffers import readable_bytes
from wstore.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    UnsupportedOperation,
)
from wstore.files import ObjectWriter, TextOptions, TextWriter
from wstore.fsspec import names, slices
from wstore.fsspec.deferred import DeferredWriter
from wstore.fsspec.guarded import GuardedWriter
from wstore.fsspec.listing import ListingFileSystem
from wstore.stores.base import Directories
from wstore.transfer import run_parallel
from wstore.upload import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TextIO, TypeAlias, TypeVar

    from fsspec.callbacks import Callback

    from wstore.buffers import ReadableBuffer
    from wstore.fsspec.names import PathText
    from wstore.path import StoragePath
    from wstore.progress import Progress

    T = TypeVar("T")
    Info: TypeAlias = dict[str, object]
    WriteMode: TypeAlias = Literal["overwrite", "create"]
    OnError: TypeAlias = Literal["raise", "return", "omit"]

FILES_AT_ONCE = 16  # of a call that concerns many files; each may have several requests in flight
_CHUNK = 1 << 20  # bytes read of a local file at a time


class WStoreFileSystem(ListingFileSystem):
    """fsspec's interface over `StoragePath`: its stores, retries, checks and errors.

    What is written appears whole, when the file is closed; an exception inside `with fs.open(...)`
    publishes nothing; "xb" and `mode="create"` are atomic; nothing is appended to. In a transaction
    files appear when it ends. Nothing is cached. An instance holds no connection and no secret, so it is
    safe from any thread, after `os.fork()` and in a pickle; credentials come from the environment.
    """

    # Reading

    def cat_file(
        self, path: PathText, start: int | None = None, end: int | None = None, **kwargs: object
    ) -> bytes:
        """The bytes [start, end), negative ones counted from the end as in a slice."""
        return slices.read_one(self._at(path), start, end)

    def cat_ranges(
        self,
        paths: Sequence[PathText],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: OnError = "return",
        **kwargs: object,
    ) -> list[bytes | Exception]:
        """Many ranges of many files: those of one file in one parallel `read_ranges`, files in parallel.

        Args:
            max_gap: read across gaps of up to so many bytes (default: `read_ranges`' own).
            on_error: "return" puts the exception of a file in the places of its ranges.
        """
        spans = list(zip(paths, _each(starts, paths), _each(ends, paths), strict=True))
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, path in enumerate(paths):
            groups[names.strip(path)].append(index)
        results: list[bytes | Exception] = [b""] * len(spans)

        def read(name: str) -> None:
            members = groups[name]
            ranges = [(spans[index][1], spans[index][2]) for index in members]
            try:
                parts: Sequence[bytes | Exception] = slices.read_many(
                    self._at(name), ranges, max_gap
                )
            except Exception as error:
                if on_error == "raise":
                    raise
                parts = [error] * len(members)
            for index, part in zip(members, parts, strict=True):
                results[index] = part

        _parallel(list(groups), read)
        return results

    def cat(
        self,
        path: PathText | list[PathText],
        recursive: bool = False,
        on_error: OnError = "raise",
        **kwargs: int | None,
    ) -> bytes | dict[str, bytes | Exception]:
        """One file's bytes, or those of all that a list, a glob or `recursive` stands for, in parallel."""
        found = self.expand_path(path, recursive=recursive)
        if not isinstance(path, list) and found == [names.strip(path)]:
            return self.cat_file(found[0], **kwargs)
        results: dict[str, bytes | Exception] = {}

        def read(name: str) -> None:
            try:
                results[name] = self.cat_file(name, **kwargs)
            except IsADirectory:
                if not recursive:
                    raise
            except Exception as error:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    results[name] = error

        _parallel(found, read)
        return {name: results[name] for name in found if name in results}

    def get_file(
        self,
        rpath: PathText,
        lpath: PathText | BinaryIO | None = None,
        callback: Callback = DEFAULT_CALLBACK,
        outfile: BinaryIO | None = None,
        **kwargs: object,
    ) -> None:
        """Copy one object to a local file, atomically, or into an open file; makes parent directories."""
        target = lpath if outfile is None else outfile
        place = self._at(rpath)
        if isfilelike(target):
            super().get_file(rpath, outfile=target, callback=callback)
            return
        local = Path(cast("PathText", target))
        try:
            place.download(local, progress=_progress(callback))
        except IsADirectory:
            if not self.isdir(rpath):
                raise
            local.mkdir(parents=True, exist_ok=True)

    # Writing

    def pipe_file(
        self, path: PathText, value: ReadableBuffer, mode: WriteMode = "overwrite", **kwargs: object
    ) -> None:
        """Make the object, atomically. Raises AlreadyExists with mode "create" where there is one."""
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                cast("ObjectWriter", file).write(readable_bytes(value))
            return
        self._at(path).write_file(value, if_absent=mode == "create")

    def put_file(
        self,
        lpath: PathText,
        rpath: PathText,
        callback: Callback = DEFAULT_CALLBACK,
        mode: WriteMode = "overwrite",
        **kwargs: object,
    ) -> None:
        """Copy one local file here, atomically; a local directory is only made."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
        elif self._intrans:
            with (
                open(lpath, "rb") as source,
                self.open(rpath, "xb" if mode == "create" else "wb") as target,
            ):
                _pour(source, cast("ObjectWriter", target), callback)
        else:
            self._at(rpath).write_file(
                Path(lpath), if_absent=mode == "create", progress=_progress(callback)
            )

    def open(
        self,
        path: PathText,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Mapping[str, object] | None = None,
        compression: str | None = None,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        autocommit: bool | None = None,
        **kwargs: object,
    ) -> BinaryIO | ObjectWriter | TextIO | TextWriter:
        """Open as `StoragePath.open` does; see the class for what is promised.

        Tuning that other file systems take (`block_size`, `cache_options`, `cache_type`, ...) has no
        meaning here and is ignored.

        Raises:
            UnsupportedOperation: to append ("a") or to change in place ("+"); `compression` for
                writing, which fsspec's wrapper would leave unfinished: `fsspec.open` does it.
        """
        if compression is not None:
            if "r" not in mode:
                raise UnsupportedOperation(
                    "fs.open does not compress: use fsspec.open(url, mode, compression=...)",
                    url=self._at(path).url,
                )
            read = super().open(path, mode, compression=compression)
            return cast("BinaryIO", read)
        text = TextOptions(encoding or "utf-8", errors or "strict", newline)
        if "r" in mode:
            return self._open_to_read(self._at(path), mode, text)
        deferred = self._intrans if autocommit is None else not autocommit
        writer = self._open_to_write(self._at(path), mode, deferred=deferred)
        if deferred:
            self.transaction.files.append(writer)
        return writer if "b" in mode else TextWriter(writer, text)

    def _open(
        self, path: PathText, mode: str = "rb", autocommit: bool = True, **kwargs: object
    ) -> BinaryIO | ObjectWriter:
        """A binary file, for fsspec's caching file systems."""
        if "r" in mode:
            return cast(
                "BinaryIO", self._open_to_read(self._at(path), mode, TextOptions("", "", None))
            )
        return self._open_to_write(self._at(path), mode, deferred=not autocommit)

    def _open_to_read(self, place: StoragePath, mode: str, text: TextOptions) -> BinaryIO | TextIO:
        _require(place, mode, ("rb", "r", "rt"))
        if "b" in mode:
            return place.open("rb")
        return place.open("r", encoding=text.encoding, errors=text.errors, newline=text.newline)

    def _open_to_write(self, place: StoragePath, mode: str, *, deferred: bool) -> ObjectWriter:
        _require(place, mode, ("wb", "w", "wt", "xb", "x", "xt"))
        exclusive = "x" in mode
        if exclusive and place.is_file():  # early, where it can be known; `close` decides
            raise AlreadyExists("there is an object already", url=place.url)
        kind = DeferredWriter if deferred else GuardedWriter
        return kind(place.store, place.key, WriteOptions(if_absent=exclusive))

    # Between places, and away

    def cp_file(self, path1: PathText, path2: PathText, **kwargs: object) -> None:
        """Copy one object, inside the store where it can; of a directory only itself is made."""
        try:
            self._at(path1).copy(self._at(path2))
        except IsADirectory:
            if not self.isdir(path1):
                raise
            self.makedirs(path2, exist_ok=True)

    def rm_file(self, path: PathText) -> None:
        """Remove one object. Raises NotFound, IsADirectory."""
        self._at(path).remove()

    def rm(
        self,
        path: PathText | list[PathText],
        recursive: bool = False,
        maxdepth: int | None = None,
    ) -> None:
        """Remove objects, in parallel; with `recursive` also all below, and on file systems directories.

        With `maxdepth` only objects go.
        """
        if recursive and maxdepth is not None:
            found = self.expand_path(path, recursive=True, maxdepth=maxdepth)
            _parallel([name for name in found if self.isfile(name)], self.rm_file)
            return
        found = self.expand_path(path)
        if not recursive:
            _parallel(found, self.rm_file)
            return
        removed: set[str] = set()
        for name in found:  # sorted, so what lies below a name comes after it, but not next to it
            if not removed.isdisjoint(_ancestors(name)):
                continue
            removed.add(name)
            place = self._at(name)
            with suppress(IsADirectory):
                place.remove()
            place.remove_tree(missing_ok=True)

    def mkdir(self, path: PathText, create_parents: bool = True, **kwargs: object) -> None:
        """Make the directory where directories exist by themselves. Raises AlreadyExists, NotFound."""
        self._at(path).mkdir(parents=create_parents)

    def makedirs(self, path: PathText, exist_ok: bool = False) -> None:
        """The same with its parents."""
        self._at(path).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: PathText) -> None:
        """Remove an empty directory; nothing to do on object stores. Raises DirectoryNotEmpty."""
        place = self._at(path)
        directories = place.store.feature(Directories)
        if directories is not None:
            directories.rmdir(place.key)
        elif place.key and place.is_dir():
            raise DirectoryNotEmpty("there are objects below", url=place.url)


def _each(
    bounds: int | Sequence[int | None] | None, paths: Sequence[PathText]
) -> Sequence[int | None]:
    return [bounds] * len(paths) if bounds is None or isinstance(bounds, int) else bounds


def _ancestors(name: str) -> Iterator[str]:
    while (above := names.parent(name)) != name:
        yield above
        name = above


def _pour(source: BinaryIO, target: ObjectWriter, callback: Callback) -> None:
    callback.set_size(os.fstat(source.fileno()).st_size)
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        callback.relative_update(len(chunk))


def _parallel(items: Sequence[str], work: Callable[[str], None]) -> None:
    run_parallel(len(items), lambda index: work(items[index]), concurrency=FILES_AT_ONCE)


def _progress(callback: Callback) -> Progress | None:
    if callback is DEFAULT_CALLBACK:
        return None

    def report(done: int, total: int | None) -> None:
        if total is not None:
            callback.set_size(total)
        callback.absolute_update(done)

    return report


def _require(place: StoragePath, mode: str, known: tuple[str, ...]) -> None:
    if mode not in known:
        raise UnsupportedOperation(
            f"mode {mode!r}: an object is read, or written anew and replaced whole; nothing is appended "
            "or changed in place. Write a new object beside it",
            url=place.url,
        )
