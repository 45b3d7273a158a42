"""What lies below a key: kinds, children, glob, and the removal of whole trees, on any store.

Directories exist by themselves on file systems and as prefixes of keys on object stores. A recursive
search ("**") sees directories that hold a file somewhere below, and does not enter symbolic links.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from wstore import patterns
from wstore.errors import (
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    UnsupportedOperation,
)
from wstore.progress import Tally
from wstore.stores.base import Directories, Sweep
from wstore.transfer import check_cancel, run_parallel

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from wstore.patterns import Pattern
    from wstore.progress import Progress
    from wstore.stores.base import Entry, Store

_DELETE_BATCH = 1000


class Kind(enum.Enum):
    """What is at a key."""

    FILE = "file"
    DIRECTORY = "directory"


def kind(store: Store, key: str) -> Kind | None:
    """What is there; an object wins over a prefix of the same name. None for nothing."""
    if key:
        try:
            store.stat(key)
            return Kind.FILE
        except IsADirectory:
            return Kind.DIRECTORY
        except NotFound:
            pass
    return Kind.DIRECTORY if is_dir(store, key) else None


def is_dir(store: Store, key: str) -> bool:
    """Whether it is a directory, a prefix of some object, or the root of a bucket that exists.

    False on a store without listings: what is no object there is nothing that can be seen.
    """
    if not store.capabilities.listing:
        return False
    directories = store.feature(Directories)
    if directories is not None:
        return directories.is_dir(key)
    try:
        found = next(store.list(_inside(key), recursive=False), None)
    except NotFound:  # the bucket
        return False
    return found is not None or not key


def children(store: Store, key: str) -> Iterator[str]:
    """The keys of the direct children, each once. Raises NotFound, NotADirectory at the call."""
    entries = store.list(_inside(key), recursive=False)
    first = next(entries, None)
    if first is None:
        _require_directory(store, key)
        entries = store.list(
            _inside(key), recursive=False
        )  # it may be newer than the first listing
        first = next(entries, None)
    return _children(key, first, entries)


def _require_directory(store: Store, key: str) -> None:
    found = kind(store, key)
    if found is Kind.FILE:
        raise NotADirectory("is a file, not a directory", url=_url(store, key))
    if found is None:
        raise NotFound("there is no such directory", url=_url(store, key))


def _children(key: str, first: Entry | None, entries: Iterator[Entry]) -> Iterator[str]:
    once = _Once()
    entry = first
    while entry is not None:
        child, is_prefix = _child(entry)
        # The marker "dir/" lists itself; and a bucket's child named "" cannot be told from its root.
        if child not in ("", key) and once.is_new(child, is_prefix):
            yield child
        entry = next(entries, None)


def _child(entry: Entry) -> tuple[str, bool]:
    """The key of a listed child, and whether it is a directory (a marker "dir/" is one)."""
    return entry.key.removesuffix("/"), entry.key.endswith("/")


class _Once:
    """Drops the prefix "a/" of a listing where the object "a" came before. In a sorted listing only
    keys that start with "a" lie between the two, so few names are remembered."""

    def __init__(self) -> None:
        self._files: list[str] = []

    def is_new(self, child: str, is_prefix: bool) -> bool:
        while self._files and not child.startswith(self._files[-1]):
            self._files.pop()
        if is_prefix:
            return child not in self._files
        self._files.append(child)
        return True


def find(store: Store, key: str, pattern: str) -> Iterator[str]:
    """The keys below `key` that match; see `StoragePath.glob`."""
    parsed = patterns.parse(pattern)
    return _Search(store, parsed).run(key)


class _Search:
    """One glob: walks the pattern's segments, listing only prefixes that can match."""

    def __init__(self, store: Store, pattern: Pattern) -> None:
        self._store = store
        self._segments = pattern.segments
        self._directories_only = pattern.directories_only

    def run(self, key: str) -> Iterator[str]:
        return self._below(key, self._segments)

    def _below(self, key: str, segments: Sequence[str]) -> Iterator[str]:
        if segments[0] == "**":
            return self._anywhere(key, segments)
        if patterns.is_magic(segments[0]):
            return self._listed(key, segments[0], segments[1:])
        return self._literal(key, segments)

    def _literal(self, key: str, segments: Sequence[str]) -> Iterator[str]:
        """Plain names are joined without a listing; only the last one is looked up."""
        for index, segment in enumerate(segments):
            if segment == "**" or patterns.is_magic(segment):
                yield from self._below(key, segments[index:])
                return
            key = _inside(key) + segment
        found = kind(self._store, key)
        if found is Kind.DIRECTORY or (found is Kind.FILE and not self._directories_only):
            yield key

    def _listed(self, key: str, segment: str, rest: Sequence[str]) -> Iterator[str]:
        base = _inside(key)
        head = patterns.literal_head(segment)
        once = _Once()
        # Names sort by their bytes: start just before the literal head, stop after it.
        for entry in self._store.list(base, recursive=False, start_after=base + head[:-1]):
            child, is_prefix = _child(entry)
            name = child[len(base) :]
            if not name or not name.startswith(head):
                if _order(name) > _order(head):
                    return
                continue
            if not patterns.match_segment(name, segment):
                continue
            if rest:
                if is_prefix:
                    yield from self._below(child, rest)
            elif (is_prefix or not self._directories_only) and once.is_new(child, is_prefix):
                yield child

    def _anywhere(self, key: str, segments: Sequence[str]) -> Iterator[str]:
        base = _inside(key)
        seen: set[str] = set()
        if patterns.match_all((), segments) and is_dir(self._store, key):
            yield key
        for entry in self._store.list(base, recursive=True):
            names = entry.key[len(base) :].split("/")
            is_marker = names[-1] == ""
            for depth in range(1, len(names)):
                directory = base + "/".join(names[:depth])
                if directory in seen:
                    continue
                seen.add(directory)
                if patterns.match_all(names[:depth], segments):
                    yield directory
            if is_marker or self._directories_only or entry.key in seen:
                continue
            if patterns.match_all(names, segments):
                seen.add(entry.key)
                yield entry.key


def mkdir(store: Store, key: str, *, parents: bool, exist_ok: bool) -> None:
    """Make a directory where directories exist by themselves."""
    directories = store.feature(Directories)
    if directories is not None:
        directories.mkdir(key, parents=parents, exist_ok=exist_ok)


def remove(store: Store, key: str, *, missing_ok: bool) -> None:
    """Delete one object. Raises NotFound (unless `missing_ok`) also where the store cannot tell."""
    try:
        if not missing_ok and not store.capabilities.directories:
            store.stat(key)
        store.delete(key)
    except NotFound:
        if not missing_ok:
            raise


def remove_tree(
    store: Store,
    key: str,
    *,
    missing_ok: bool,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> int:
    """Delete all below `key`; see `StoragePath.remove_tree`."""
    directories = store.feature(Directories)
    if directories is not None and not key:
        raise InvalidArgument("the root of the file system is not removed", url=store.url)
    found = Kind.DIRECTORY if is_dir(store, key) else kind(store, key)
    if found is None:
        if not store.capabilities.listing:
            text = "this store lists nothing: what lies below is not known"
            raise UnsupportedOperation(text, url=_url(store, key))
        if missing_ok:
            return 0
        raise NotFound("there is no such directory", url=_url(store, key))
    if found is Kind.FILE:
        raise NotADirectory("is a file: remove() it", url=_url(store, key))
    removal = _Removal(store, progress, cancel)
    if directories is None:
        removal.objects(key)
    else:
        removal.entry(directories, key)
    return removal.removed


class _Removal:
    """One removal of a tree. `cancel` is looked at before each entry."""

    def __init__(
        self, store: Store, progress: Progress | None, cancel: threading.Event | None
    ) -> None:
        self.removed = 0
        self._store = store
        self._tally = Tally(progress, None)
        self._cancel = cancel

    def objects(self, key: str) -> None:
        """All below a prefix, in parallel."""
        batch: list[str] = []
        for entry in self._store.list(_inside(key), recursive=True):
            batch.append(entry.key)
            if len(batch) == _DELETE_BATCH:
                self._batch(batch)
                batch = []
        self._batch(batch)

    def entry(self, directories: Directories, key: str) -> None:
        """`delete` before descending: a link to a directory is only unlinked, what it leads to stays."""
        try:
            self._one(key)
        except IsADirectory:
            self._directory(directories, key)

    def _directory(self, directories: Directories, key: str) -> None:
        """All inside it, depth first, then itself."""
        inner: list[str] = []
        for entry in self._store.list(_inside(key), recursive=False):
            check_cancel(self._cancel)
            child, is_directory = _child(entry)
            if is_directory:
                inner.append(child)
            else:
                self._one(child)
        for child in inner:
            check_cancel(self._cancel)
            self.entry(directories, child)
        sweep(self._store, key, older_than_s=0)
        directories.rmdir(key)

    def _one(self, key: str) -> None:
        remove(self._store, key, missing_ok=True)
        self.removed += 1
        self._tally.add(1)

    def _batch(self, keys: Sequence[str]) -> None:
        def work(index: int) -> None:
            remove(self._store, keys[index], missing_ok=True)
            self._tally.add(1)

        concurrency = self._store.capabilities.concurrency
        run_parallel(len(keys), work, concurrency=concurrency, cancel=self._cancel)
        self.removed += len(keys)


def sweep(store: Store, key: str, *, older_than_s: float) -> list[str]:
    """Remove unfinished writes below this directory or prefix that are older than that."""
    sweeper = store.feature(Sweep)
    return [] if sweeper is None else sweeper.sweep(_inside(key), older_than_s=older_than_s)


def _order(name: str) -> bytes:
    """What names sort by: their bytes, also where a file's name is no valid Unicode."""
    return name.encode("utf-8", "surrogateescape")


def _inside(key: str) -> str:
    return key + "/" if key else ""


def _url(store: Store, key: str) -> str:
    return f"{store.url}/{key}"
