"""The algebra of storage paths: names, parents, joining, matching. Pure: no I/O."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import total_ordering
from typing import TYPE_CHECKING, Self

from wstore import patterns, urls
from wstore.errors import InvalidPath, UnsupportedOperation

if TYPE_CHECKING:
    from wstore.stores.base import Store
    from wstore.urls import Location


@total_ordering
class PureStoragePath:
    """A place in a store as an immutable, hashable, ordered value; `StoragePath` adds the I/O.

    Two paths are equal when scheme, root, key, client and the injected store (if any) are the same.
    """

    __slots__ = ("_location", "_store")

    _location: Location
    _store: Store | None

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        client: str | None = None,
        store: Store | None = None,
    ) -> None:
        """
        Args:
            url: a URL (see `wstore.urls`), a plain local path, or another storage path.
            client: reach the service by this library instead of the scheme's own choice: "fsspec"
                (s3fs, gcsfs, or what fsspec has for the scheme) or "obstore".
            store: use this store instead of the one that the URL names; its keys are the URL's keys.

        Raises:
            InvalidPath: see `wstore.urls.parse`.
        """
        if isinstance(url, PureStoragePath):
            location, inherited = url._location, url._store
        else:
            text = os.fspath(url)
            if not isinstance(text, str):
                raise InvalidPath(f"a path is a str, not {type(text).__name__}")
            location, inherited = urls.parse(text), None
        self._location = location if client is None else replace(location, client=client)
        self._store = store if store is not None else inherited

    @classmethod
    def _at(cls, location: Location, store: Store | None) -> Self:
        """A path at exactly this location, unchecked (a key out of a listing is taken as it is)."""
        path = cls.__new__(cls)
        path._location = location
        path._store = store
        return path

    def _with_key(self, key: str) -> Self:
        at = self._location
        return self._at(urls.Location(at.scheme, at.root, key, at.client), self._store)

    @property
    def location(self) -> Location:
        """Scheme, root and key as one value."""
        return self._location

    @property
    def injected_store(self) -> Store | None:
        """The store that was given with `store=`, if any."""
        return self._store

    # What it is called

    @property
    def scheme(self) -> str:
        """ "file", "s3", "memory", ..."""
        return self._location.scheme

    @property
    def root(self) -> str:
        """The bucket; "" for local files."""
        return self._location.root

    @property
    def key(self) -> str:
        """The exact key inside the store; "" for the root."""
        return self._location.key

    @property
    def url(self) -> str:
        """The URL, without secrets; `StoragePath(p.url) == p`. Local: "file:///...", percent-encoded."""
        return self._location.url

    @property
    def is_local(self) -> bool:
        """Whether this is a path of the local file system (mounts included)."""
        return self.scheme == urls.LOCAL

    @property
    def anchor(self) -> str:
        """The first of `parts`: "/" for local files, else the root's URL, "s3://bucket/"."""
        return "/" if self.is_local else self._location.anchor

    @property
    def parts(self) -> tuple[str, ...]:
        """The anchor, then the key's segments: ("s3://bucket/", "run1", "head.json")."""
        return (self.anchor, *self._segments)

    @property
    def _segments(self) -> tuple[str, ...]:
        return tuple(self.key.split("/")) if self.key else ()

    @property
    def name(self) -> str:
        """The last segment; "" for the root."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The name from its last dot on, as pathlib has it: ".json", or ""."""
        dot = self.name.rfind(".")
        return self.name[dot:] if 0 < dot < len(self.name) - 1 else ""

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the name: [".tar", ".gz"]."""
        if self.name.endswith("."):
            return []
        return ["." + part for part in self.name.lstrip(".").split(".")[1:]]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.removesuffix(self.suffix) if self.suffix else self.name

    @property
    def parent(self) -> Self:
        """One segment up; the root is its own parent."""
        return self._with_key(self.key.rpartition("/")[0])

    @property
    def parents(self) -> tuple[Self, ...]:
        """The parent, its parent, ... up to the root."""
        found, path = [], self
        while path.key:
            path = path.parent
            found.append(path)
        return tuple(found)

    # Other paths

    def __truediv__(self, other: str | os.PathLike[str]) -> Self:
        return self.joinpath(other)

    def joinpath(self, *others: str | os.PathLike[str]) -> Self:
        """This path followed by each of `others`; "" and "." add nothing, one trailing "/" is dropped.

        On object stores all else is literal ("%", "//", "#"); local paths are normalised as pathlib does.

        Raises:
            InvalidPath: an absolute path, a URL of a storage path, or a ".." segment: a joined name
                never leaves this path.
        """
        key = self.key
        for other in others:
            if isinstance(other, PureStoragePath):
                raise InvalidPath(
                    "a storage path is absolute and cannot be joined to another", url=self.url
                )
            text = os.fspath(other)
            if text.startswith("/"):
                raise InvalidPath(f"cannot join the absolute path {text!r}", url=self.url)
            text = text.removesuffix("/")
            if text in ("", "."):
                continue
            key = urls.checked_key(self.scheme, f"{key}/{text}" if key else text)
        return self._with_key(key)

    def with_name(self, name: str) -> Self:
        """This path with another last segment. Raises InvalidPath for the root or an invalid name."""
        if not self.key:
            raise InvalidPath("the root has no name to replace", url=self.url)
        if not name or "/" in name or name in (".", ".."):
            raise InvalidPath(f"not a name: {name!r}", url=self.url)
        return self.parent.joinpath(name)

    def with_stem(self, stem: str) -> Self:
        """This path with another name before its suffix."""
        if not stem:
            raise InvalidPath("an empty stem", url=self.url)
        return self.with_name(stem + self.suffix)

    def with_suffix(self, suffix: str) -> Self:
        """This path with another suffix (".json"); "" removes it."""
        if suffix and (not suffix.startswith(".") or suffix == "." or "/" in suffix):
            raise InvalidPath(f"not a suffix: {suffix!r}", url=self.url)
        return self.with_name(self.stem + suffix)

    def relative_to(self, other: str | os.PathLike[str]) -> str:
        """The rest of the key below `other`, as a str that `other / rest` turns into this path; "." for
        `other` itself.

        Raises:
            InvalidPath: this path is not below `other`.
        """
        base = self._sibling(other)
        if self._below(base):
            return self.key[len(base.key) :].removeprefix("/") or "."
        raise InvalidPath(f"is not below {base.url}", url=self.url)

    def is_relative_to(self, other: str | os.PathLike[str]) -> bool:
        """Whether this is `other` or below it."""
        return self._below(self._sibling(other))

    def _sibling(self, other: str | os.PathLike[str]) -> PureStoragePath:
        return other if isinstance(other, PureStoragePath) else PureStoragePath(other)

    def _below(self, base: PureStoragePath) -> bool:
        if (self.scheme, self.root) != (base.scheme, base.root):
            return False
        return self.key == base.key or not base.key or self.key.startswith(base.key + "/")

    def match(self, pattern: str) -> bool:
        """Whether the last segments match the glob `pattern`, one to one ("step_*/*.json"); one that
        begins with "/" has to match all of the key."""
        relative = pattern.removeprefix("/")
        if relative != pattern and len(patterns.parse(relative).segments) != len(self._segments):
            return False
        return patterns.match_tail(self._segments, relative)

    def full_match(self, pattern: str) -> bool:
        """Whether the whole key matches the glob `pattern`, where "**" is any number of segments."""
        return patterns.match_all(
            self._segments, patterns.parse(pattern.removeprefix("/")).segments
        )

    # A value

    def __str__(self) -> str:
        """The plain path for local files, else the URL."""
        return "/" + self.key if self.is_local else self.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __fspath__(self) -> str:
        """The local path. Raises UnsupportedOperation where the path is not local."""
        if not self.is_local:
            raise UnsupportedOperation(
                "is not a local file; read it through this object, or download() it", url=self.url
            )
        return "/" + self.key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PureStoragePath):
            return NotImplemented
        return self._location == other._location and self._store is other._store

    def __hash__(self) -> int:
        return hash(self._location)

    def __lt__(self, other: PureStoragePath) -> bool:
        if not isinstance(other, PureStoragePath):
            return NotImplemented
        return self.parts < other.parts

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles as scheme, root, key and the client's name: never a connection, never credentials."""
        if self._store is not None:
            raise UnsupportedOperation(
                "a path with a store of its own does not pickle", url=self.url
            )
        at = self._location
        return _unpickle, (type(self), at.scheme, at.root, at.key, at.client)


def _unpickle(
    kind: type[PureStoragePath], scheme: str, root: str, key: str, client: str
) -> PureStoragePath:
    return kind._at(urls.Location(scheme, root, key, client), None)
