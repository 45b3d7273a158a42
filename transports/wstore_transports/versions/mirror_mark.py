"""`mirror.json`: this root is filled from another place, so nobody else may write to its log.

It is written before the marker of a mirror, so there is no moment at which a mirror looks like a root of its
own. Removing it promotes the mirror: from then on it is a root like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from wstore.errors import NotFound
from wstore_transports.errors import IsAMirror
from wstore_transports.versions.documents import Document, Number
from wstore_transports.versions.sealing import read_document

if TYPE_CHECKING:
    from wstore.path import StoragePath

MIRROR = "mirror.json"


class MirrorMark(Document, frozen=True, kw_only=True, tag="mirror"):
    """`mirror.json`.

    Attributes:
        source: URL of the root that this one is filled from; for people.
        through: while the log ends before this record, it may name versions that were let go at the source
            before they were copied; 0 for none.
    """

    source: Annotated[str, Meta(max_length=4096)]
    through: Number = 0


def read_mark(root: StoragePath, root_id: str) -> MirrorMark | None:
    """The mark of the mirror at this path; None where there is none. Raises IntegrityError, NewerFormat."""
    try:
        return read_document(MirrorMark, root / MIRROR, root=root_id)
    except NotFound:
        return None


def require_no_mirror(root: StoragePath) -> None:
    """Refuse to write to the log of a mirror: it would part from its source's.

    Raises:
        IsAMirror.
    """
    mark = root / MIRROR
    try:
        mark.store.stat(mark.key)
    except NotFound:
        return
    raise IsAMirror(
        f"this is a mirror, whose log is copied from another place. To go on here instead (promote it), "
        f"stop `wstore mirror` and remove {MIRROR}",
        url=root.url,
    )
