"""Whether an object of the version before may be named again: a damaged one would go from version to version."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound
from wstore.progress import Tally
from wstore.transfer import check_cancel, run_parallel
from wstore_transports.checkpoint.verify import check_object, check_size

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from wstore_transports.versions import Root
    from wstore_transports.versions.documents import Manifest, ObjectRef

_log = logging.getLogger("wstore.checkpoint")

CONCURRENCY = 4


class SharedObjects:
    """What one writer knows of the objects under its root. For one thread at a time.

    An object that this writer did not write is read once, whole, before it is shared first; after that,
    and for its own, each share costs one request: is it there with its size?
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._proven: set[str] = set()

    def wrote(self, name: str) -> None:
        """This writer has just stored the object of that name (relative to the root)."""
        self._proven.add(name)

    def damaged(
        self, base: Manifest, indexes: Sequence[int], cancel: threading.Event | None
    ) -> frozenset[int]:
        """Those of `base.objects[index]` that are missing or not what the manifest says; logged.

        Holds 8 MiB an object that is read, 4 at a time.

        Raises:
            Cancelled. The store's errors, but for what is missing.
        """
        self._proven.intersection_update(ref.name for ref in base.objects)
        found: set[int] = set()

        def check(at: int) -> None:
            index = indexes[at]
            try:
                self._check(base.objects[index], cancel)
            except (NotFound, IntegrityError) as error:
                _log.warning("not shared, its tensors are written again: %s", error)
                found.add(index)

        run_parallel(len(indexes), check, concurrency=CONCURRENCY, cancel=cancel)
        return frozenset(found)

    def _check(self, ref: ObjectRef, cancel: threading.Event | None) -> None:
        path = self._root.object(ref.name)
        if ref.name in self._proven:
            check_size(path, ref)
            return
        check_object(path, ref, Tally(lambda _done, _total: check_cancel(cancel), None))
        self._proven.add(ref.name)
