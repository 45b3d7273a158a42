"""The place that a mirror fills: made, opened, and guarded against whoever else writes to its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import NotFound
from wstore_transports.errors import DifferentRoots, LogsParted, NoRoot, NotARoot, RootError
from wstore_transports.versions import Root, layout
from wstore_transports.versions.create import create
from wstore_transports.versions.documents import Marker
from wstore_transports.versions.head import HeadHint
from wstore_transports.versions.mirror_mark import MIRROR, MirrorMark, read_mark
from wstore_transports.versions.sealing import hash_of, read_capped, seal

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Record


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """A record with the very bytes that the source has."""

    record: Record
    data: bytes

    @property
    def number(self) -> int:
        """Its place in the log."""
        return self.record.number


class Target:
    """A mirror, as the one that fills it sees it. Several may fill it at once: all write the same bytes.

    Args:
        source: what it is filled from.
        path: where it is; made when nothing is there.

    Raises:
        DifferentRoots: another root is there. RootError: it is there and no mirror. NotARoot, NewerFormat.
    """

    def __init__(self, source: Root, path: StoragePath) -> None:
        self.path = path
        self._source = source
        self.root = self._open()
        self._head = HeadHint(path, source.root_id)

    def _open(self) -> Root:
        marker = read_capped(self._source.path / layout.MARKER, Marker.max_bytes)
        try:
            root = Root.open(self.path)
        except NoRoot:
            self._begin(marker)
            root = Root.open(self.path)
        if root.root_id != self._source.root_id:
            raise DifferentRoots(
                f"root {root.root_id} is here, and {self._source.path.url} is root "
                f"{self._source.root_id}: mirror to another place",
                url=self.path.url,
            )
        if read_mark(self.path, root.root_id) is None:
            raise RootError(
                f"this is root {root.root_id} itself, or was a mirror of it that was promoted: it has no "
                f"{MIRROR}. Mirror to another place",
                url=self.path.url,
            )
        return root

    def _begin(self, marker: bytes) -> None:
        """The mark, then the marker: the place is never a root without being a mirror."""
        record = self.path / layout.record_name(1)
        try:
            record.store.stat(record.key)
        except (NotFound, NotADirectoryError):
            pass
        else:
            raise NotARoot(f"there is a log here and no {layout.MARKER}", url=self.path.url)
        create(self.path / MIRROR, self._mark(0))
        create(self.path / layout.MARKER, marker)

    def _mark(self, through: int) -> bytes:
        mark = MirrorMark(
            root=self._source.root_id, source=self._source.path.url[:4096], through=through
        )
        return seal(mark)

    def require_mark(self) -> None:
        """Raises RootError when the mirror was promoted."""
        if read_mark(self.path, self.root.root_id) is None:
            raise RootError(
                f"{MIRROR} was removed: this is a root of its own now, and is filled no more",
                url=self.path.url,
            )

    def announce(self, through: int) -> None:
        """Tell readers that the log makes no sense before it reaches this record."""
        (self.path / MIRROR).write_file(self._mark(through))

    def append(self, before: str, records: list[SealedRecord]) -> None:
        """Append records that come after the one of hash `before`, or find that they are there already.

        Raises:
            LogsParted: something else is.
        """
        for sealed in records:
            place = self.path / layout.record_name(sealed.number)
            if sealed.record.prev != before or not create(place, sealed.data):
                raise self.parted(sealed.number)
            before = hash_of(sealed.data)
            self._head.announce(sealed.number, before)

    def flush(self) -> None:
        """Write the head hint when it is behind."""
        self._head.flush(at_once=True)

    def parted(self, number: int) -> LogsParted:
        """The logs differ at a record."""
        return LogsParted(
            f"this log record is not the one that {self._source.path.url} has: something else wrote to "
            "one of the two logs. Mirror to another place",
            url=(self.path / layout.record_name(number)).url,
        )
