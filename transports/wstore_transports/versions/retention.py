"""Which versions stay: a pure policy over what the log shows and what readers lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from wstore_transports.versions.standing import LogState


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep, besides what readers lease and what kept deltas build on.

    Attributes:
        keep_last: the newest so many versions.
        keep_every_anchor: of all anchors ever committed, the first and each so-manyth after it; None:
            no anchor for its own sake.
        max_staleness: how many versions behind the newest an engine may serve; those are needed too.

    Raises:
        InvalidArgument: on construction, for settings that cannot work.
    """

    keep_last: int = 2
    keep_every_anchor: int | None = None
    max_staleness: int = 0

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise InvalidArgument("keep_last must be at least 1: the newest version always stays")
        if self.keep_every_anchor is not None and self.keep_every_anchor < 1:
            raise InvalidArgument("keep_every_anchor must be at least 1")
        if self.max_staleness < 0:
            raise InvalidArgument("max_staleness must not be negative")
        if self.keep_last <= self.max_staleness:
            raise InvalidArgument(
                f"keep_last={self.keep_last} lets go of versions that engines may serve with "
                f"max_staleness={self.max_staleness}: keep at least {self.max_staleness + 1}"
            )


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one version that is alive, and why."""

    number: int
    step: int
    kind: str
    stays: bool
    reason: str


def decide(state: LogState, retention: Retention, leased: Collection[int] | None) -> list[Fate]:
    """The fate of every version that is alive, ascending.

    Args:
        state: what is alive.
        leased: versions that living readers lease; None: a reader leases everything.
    """
    versions = state.versions
    numbers = sorted(versions)
    reasons: dict[int, str] = {}
    for number in numbers[-retention.keep_last :]:
        reasons[number] = f"one of the newest {retention.keep_last}"
    every = retention.keep_every_anchor
    for number in versions:
        anchor = state.anchor(number)
        if every and anchor is not None and (anchor.after.anchors - 1) % every == 0:
            reasons.setdefault(number, f"anchor {anchor.after.anchors}, each {every}th stays")
    for number in numbers if leased is None else leased:
        if number in versions:
            reasons.setdefault(number, "a reader leases it")
    for number in list(reasons):
        for base in chain(state, number):
            reasons.setdefault(base, f"version {number} builds on it")
    return [
        Fate(
            n, versions[n].step, versions[n].kind, n in reasons, reasons.get(n, "beyond retention")
        )
        for n in numbers
    ]


def chain(state: LogState, number: int) -> Iterator[int]:
    """The versions that are needed to read a delta, nearest first: down to one with whole weights (as far
    as alive)."""
    versions = state.versions
    while number in versions and state.anchor(number) is None:
        base = versions[number].base
        if base >= number:
            return
        yield base
        number = base
