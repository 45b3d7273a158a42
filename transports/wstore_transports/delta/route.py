"""Which versions lead a reader from what it holds to the one that it wants. Reads records only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore_transports.errors import NoVersion, VersionGone
from wstore_transports.versions.version import Version

if TYPE_CHECKING:
    from wstore_transports.versions.documents import Anchor, Weights
    from wstore_transports.versions.log import Log

_AHEAD = 64  # records that are read at once, in place of one after the other


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole weights to begin with.

    Attributes:
        version: whose.
        anchor: the record that says where they are.
    """

    version: Version
    anchor: Weights | Anchor

    @property
    def nbytes(self) -> int:
        """Bytes of their objects."""
        return self.anchor.nbytes


@dataclass(frozen=True, slots=True)
class Route:
    """How to come to a version.

    Attributes:
        target: where it leads.
        start: the version that must be held; None where `whole` is the start.
        whole: the weights to load first; None where the held ones are the start.
        deltas: to apply then, oldest first.
    """

    target: Version
    start: int | None
    whole: Whole | None
    deltas: tuple[Version, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all objects on it, before any selection."""
        first = 0 if self.whole is None else self.whole.nbytes
        return first + sum(version.record.nbytes for version in self.deltas)

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions whose objects it needs."""
        first = () if self.whole is None else (self.whole.version.number,)
        return (*first, *(version.number for version in self.deltas))


def find_route(target: Version, held: int) -> Route:
    """The route with the fewest bytes.

    Args:
        held: the version that the reader holds, 0 for none.

    Raises:
        VersionGone: retention let go of what every route needs. RecordMissing, IntegrityError.
    """
    log = target.place.log
    _read_ahead(log, target, held)
    best: Route | None = None
    deltas: list[Version] = []
    version = target
    while True:
        if version.number == held:
            route = Route(target, held, None, tuple(reversed(deltas)))
            return route if best is None or route.nbytes <= best.nbytes else best
        anchor = version.anchor() if best is None else None
        if anchor is not None:
            best = Route(target, None, Whole(version, anchor), tuple(reversed(deltas)))
        if best is not None and (
            not 0 < held < version.number or sum(d.record.nbytes for d in deltas) > best.nbytes
        ):
            return best
        if version.kind == "full":
            break
        deltas.append(version)
        try:
            version = Version(version.place, log.weights(version.base))
        except (NoVersion, VersionGone):
            if best is None:
                raise
            break
    if best is None:
        raise AssertionError("a full version is its own anchor")
    return best


def _read_ahead(log: Log, target: Version, held: int) -> None:
    """Read the records of a long way back at once; the walk then finds them in the log's memory."""
    first = max(held, log.known.standing.anchor, target.number - _AHEAD + 1, 1)
    if target.number - first > 2:
        log.records(first, target.number)
