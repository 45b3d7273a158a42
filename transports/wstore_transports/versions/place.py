"""Where a root is: what all its parts need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore_transports.versions.layout import check_object_name

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.versions.log import Log


@dataclass(frozen=True, slots=True)
class Place:
    """A root's path, its id, its lease period in seconds, and the one reader of its log."""

    path: StoragePath
    root_id: str
    lease_s: float
    log: Log

    def object(self, name: str) -> StoragePath:
        """The object of that name, relative to the root.

        Raises:
            InvalidPath: a name that could leave the root.
        """
        return self.path / check_object_name(name, url=self.path.url)
