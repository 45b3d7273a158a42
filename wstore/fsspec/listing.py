"""What there is under a name: the part of the file system that only looks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, cast

from fsspec.implementations.chained import ChainedFileSystem

from wstore import tree
from wstore.errors import InvalidArgument, IsADirectory, NotADirectory, NotFound
from wstore.fsspec import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from typing import Literal, TypeAlias

    from wstore.fsspec.names import PathText
    from wstore.path import StoragePath
    from wstore.stores.base import ObjectInfo

    Info: TypeAlias = dict[str, object]
    Names: TypeAlias = list[str] | dict[str, Info]
    OnError: TypeAlias = Literal["omit", "raise"] | Callable[[OSError], object]


class ListingFileSystem(ChainedFileSystem):
    """Names and listings; `WStoreFileSystem` adds the bytes."""

    protocol = names.PROTOCOL
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        *,
        client: str | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, object] | None = None,
        fo: str | None = None,
        asynchronous: bool = False,
    ) -> None:
        """
        Args:
            client: as `StoragePath`'s.
            target_protocol, target_options, fo: how fsspec hands over "wstore::s3://bucket/key"; `fo`
                says nothing new.
            asynchronous: accepted since zarr asks it of every file system; this one is synchronous, and
                fsspec's `AsyncFileSystemWrapper` makes it the other.

        Raises:
            InvalidArgument: options for the inner file system, which is not used.
        """
        super().__init__(use_listings_cache=False)
        if target_options:
            raise InvalidArgument(
                f"options of the inner file system ({', '.join(sorted(target_options))}): wstore takes "
                f"those from the environment; write {names.PROTOCOL}:// before the whole URL"
            )
        self._client = client
        self._cut = names.cut_by_fsspec(target_protocol) if target_protocol else ""

    # Names

    @classmethod
    def _strip_protocol(cls, path: PathText | list[PathText]) -> str | list[str]:
        return [names.strip(p) for p in path] if isinstance(path, list) else names.strip(path)

    @classmethod
    def _parent(cls, path: PathText) -> str:
        return names.parent(names.strip(path))

    def unstrip_protocol(self, name: PathText) -> str:
        """The URL that any library can open: "wstore://s3://bucket/key"."""
        text = names.strip(name)
        return f"{self.protocol}://{text if '://' in text else self._cut + text}"

    @property
    def fsid(self) -> str:
        """The same for every instance: a name means the same everywhere."""
        return names.PROTOCOL

    def _at(self, path: PathText) -> StoragePath:
        return names.located(names.strip(path), cut=self._cut, client=self._client)

    # What is there

    def exists(self, path: PathText, **kwargs: object) -> bool:
        """Whether there is an object, a directory or a prefix. A refusal raises."""
        return self._at(path).exists()

    def isfile(self, path: PathText) -> bool:
        """Whether there is an object."""
        return self._at(path).is_file()

    def isdir(self, path: PathText) -> bool:
        """Whether there is a directory or prefix, and no object of that name."""
        place = self._at(path)
        return tree.kind(place.store, place.key) is tree.Kind.DIRECTORY

    def info(self, path: PathText, **kwargs: object) -> Info:
        """name, size, type; for an object also `modified` (aware, UTC) and `tag`. Raises NotFound."""
        name, place = names.strip(path), self._at(path)
        try:
            return _info(name, place.store.stat(place.key) if place.key else None)
        except IsADirectory:
            return _info(name, None)
        except NotFound:
            if not tree.is_dir(place.store, place.key):
                raise
            return _info(name, None)

    def ls(self, path: PathText, detail: bool = True, **kwargs: object) -> list[Info] | list[str]:
        """The direct children, or the file itself.

        An object that is a prefix too is listed as both.

        Raises:
            NotFound. UnsupportedOperation: the store lists nothing, and this is no file.
        """
        name, place = names.strip(path), self._at(path)
        found = [_info(child, info) for child, info in _below(place, name, recursive=False)]
        if not found and place.key:
            itself = self.info(name)
            found = [itself] if itself["type"] == "file" else []
        return found if detail else [cast("str", entry["name"]) for entry in found]

    def walk(
        self,
        path: PathText,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: OnError | None = None,
        detail: bool = False,
        **kwargs: object,
    ) -> Iterator[tuple[str, Names, Names]]:
        """(directory, directories in it, files in it) of each directory, as `os.walk` gives them.

        Args:
            on_error: fsspec's, for all levels. By default a directory that is not there has nothing
                below, and every other error raises: a refusal or a lost connection must not pass for a
                short tree, as it does with "omit".
        """
        levels = super().walk(
            names.strip(path),
            1 if maxdepth is None else min(maxdepth, 1),
            on_error=_raise_unless_gone if on_error is None else on_error,
            detail=detail,
        )
        for name, directories, files in levels:
            if topdown:
                yield name, directories, files
            if maxdepth is None or maxdepth > 1:
                below = None if maxdepth is None else maxdepth - 1
                for directory in directories:
                    yield from self.walk(
                        names.child(name, directory), below, topdown, on_error, detail
                    )
            if not topdown:
                yield name, directories, files

    def find(
        self,
        path: PathText,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: object,
    ) -> list[str] | dict[str, Info]:
        """All files below, sorted, or the file itself; on object stores in one listing, whatever the depth.

        Raises:
            UnsupportedOperation: the store lists nothing, and this is no file.
        """
        name, place = names.strip(path), self._at(path)
        if maxdepth is not None or place.store.capabilities.directories:
            walked: list[str] | dict[str, Info] = super().find(
                name, maxdepth=maxdepth, withdirs=withdirs, detail=detail
            )
            return walked
        found: dict[str, Info] = {}
        for child, info in _below(place, name, recursive=True):
            found[child] = _info(child, info)
            while withdirs and child != name:
                child = names.parent(child)
                found.setdefault(child, _info(child, None))
        if not found and place.key and place.is_file():
            found[name] = self.info(name)
        return {key: found[key] for key in sorted(found)} if detail else sorted(found)

    def modified(self, path: PathText) -> datetime:
        """When the present content came to be (aware, UTC)."""
        return self._at(path).stat().modified

    def created(self, path: PathText) -> datetime:
        """The same as `modified`: objects are replaced whole, never changed."""
        return self.modified(path)

    def ukey(self, path: PathText) -> str:
        """Equal for equal content of one object: its tag, hashed with its URL."""
        place = self._at(path)
        return hashlib.sha256(f"{place.url} {place.stat().tag}".encode()).hexdigest()

    def checksum(self, path: PathText) -> int:
        """`ukey` as a number."""
        return int(self.ukey(path), 16)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, (NotFound, NotADirectory)):
        raise error


def _info(name: str, found: ObjectInfo | None) -> Info:
    if found is None:
        return {"name": name, "size": 0, "type": "directory"}
    return {
        "name": name,
        "size": found.size,
        "type": "file",
        "modified": found.modified,
        "tag": found.tag,
    }


def _below(
    place: StoragePath, name: str, *, recursive: bool
) -> Iterator[tuple[str, ObjectInfo | None]]:
    """Names and infos of what is listed below; None for a directory. Markers ("dir/") are left out."""
    base = place.key + "/" if place.key else ""
    if not place.store.capabilities.listing and place.is_file():
        return
    for entry in place.store.list(base, recursive=recursive):
        rest = entry.key[len(base) :]
        if rest.rstrip("/") and not (recursive and rest.endswith("/")):
            yield names.child(name, rest.removesuffix("/")), entry.info
