"""Paths bound to their store: what is there, listing, globbing, removing. `StoragePath` adds the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wstore import regions, tree
from wstore.errors import IsADirectory, NotFound
from wstore.pure_path import PureStoragePath
from wstore.stores import registry
from wstore.transfer import check_cancel

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Callable, Iterator
    from typing import Self

    from wstore.progress import Progress
    from wstore.stores.base import ObjectInfo, Store

T = TypeVar("T")

SWEEP_AGE_S = 86_400.0
"""Seconds after which an unfinished write counts as abandoned: longer than any upload should take."""


class TreePath(PureStoragePath):
    """The part of `StoragePath` that looks at and changes the tree of names."""

    __slots__ = ()

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        client: str | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(url, client=client, store=store)
        if self._location.scheme == regions.SCHEME:
            self._location = regions.resolve(self._location)
        if self._store is None:
            registry.check_location(self._location)

    @property
    def store(self) -> Store:
        """The store behind this path: the injected one, or the process's own for this root and
        environment (shared, retrying)."""
        return self._store if self._store is not None else registry.open_store(self._location)

    # What is there

    def exists(self, *, cancel: threading.Event | None = None) -> bool:
        """Whether there is an object, a directory or a prefix. One request for an object, two else.
        Nothing is cached. A missing bucket is False; a refusal raises."""
        check_cancel(cancel)
        return tree.kind(self.store, self.key) is not None

    def is_file(self) -> bool:
        """Whether there is an object under exactly this key (also when it is a prefix too)."""
        return tree.kind(self.store, self.key) is tree.Kind.FILE

    def is_dir(self) -> bool:
        """Whether this is a directory, or a prefix of at least one object's key; a bucket's root is.
        False on a store that lists nothing (HTTP)."""
        return tree.is_dir(self.store, self.key)

    def stat(self) -> ObjectInfo:
        """Size, last change and tag of the object. Raises NotFound, IsADirectory."""
        return self._on_object(lambda store: store.stat(self.key))

    def iterdir(self) -> Iterator[Self]:
        """The direct children, files and directories, each once, sorted by key.

        Raises at the call: NotFound where there is no such directory, NotADirectory for a file.
        """
        return map(self._with_key, tree.children(self.store, self.key))

    def glob(self, pattern: str) -> Iterator[Self]:
        """All that matches below this path, as pathlib's: "step_*/manifest.json", "**/*.json".

        Hidden names match "*" too; a trailing "/" means directories only; a trailing "**" gives files and
        directories. Only prefixes that can match are listed. Each match once; nothing for a missing path.
        """
        return map(self._with_key, tree.find(self.store, self.key, pattern))

    def rglob(self, pattern: str) -> Iterator[Self]:
        """`glob("**/" + pattern)`: the matches at any depth."""
        return self.glob(f"**/{pattern}")

    # Making and removing

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make the directory where directories exist by themselves; nothing happens on object stores.

        Raises: AlreadyExists, NotFound (a missing parent), NotADirectory, AccessDenied.
        """
        tree.mkdir(self.store, self.key, parents=parents, exist_ok=exist_ok)

    def remove(self, missing_ok: bool = False) -> None:
        """Remove the object. Raises NotFound unless `missing_ok`, IsADirectory for a directory or prefix."""
        self._on_object(lambda store: tree.remove(store, self.key, missing_ok=missing_ok))

    def remove_tree(
        self,
        *,
        missing_ok: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> int:
        """Remove all below this directory or prefix, and on file systems the directories; not atomic.

        Symbolic links are removed, not followed. What killed writers left below goes too where
        directories exist. Returns how many objects were removed.

        Args:
            progress: is told how many are removed so far; of how many is not known.

        Raises:
            NotFound: nothing there, unless `missing_ok`. NotADirectory: this is a file.
            UnsupportedOperation: the store lists nothing.
            InvalidArgument: the root of the local file system.
        """
        return tree.remove_tree(
            self.store, self.key, missing_ok=missing_ok, progress=progress, cancel=cancel
        )

    def sweep(self, *, older_than: float = SWEEP_AGE_S) -> list[str]:
        """Remove what killed writers left unfinished below this path, and say what it was.

        That is hidden temporary files and, on S3, multipart uploads. Objects are never touched, and
        neither is anything younger than `older_than` seconds by the store's own clock: so choose more
        than the longest upload takes. Nothing happens where a store has no such debris.
        """
        return tree.sweep(self.store, self.key, older_than_s=older_than)

    def _sibling(self, other: str | os.PathLike[str]) -> PureStoragePath:
        found = super()._sibling(other)
        return found._at(regions.resolve(found.location), found.injected_store)

    @property
    def _probed(self) -> Store:
        """Without retries: a wait has its own patience."""
        return self._store if self._store is not None else registry.bare_store(self._location)

    def _on_object(self, call: Callable[[Store], T]) -> T:
        """Run a call that needs an object; only its NotFound costs the look for a prefix."""
        store = self.store
        try:
            return call(store)
        except NotFound as error:
            if tree.kind(store, self.key) is tree.Kind.DIRECTORY:
                raise IsADirectory(
                    "is a directory or prefix, not an object", url=self.url
                ) from error
            raise
