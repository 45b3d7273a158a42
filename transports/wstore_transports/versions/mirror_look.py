"""One look at all mirrors at once, which a mirror that hangs does not hold up."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import (
    Cancelled,
    ForkedProcess,
    InvalidArgument,
    InvalidPath,
    StoreTimeout,
    WStoreError,
)
from wstore.probes import Probe
from wstore.transfer import attempt
from wstore_transports.errors import DifferentRoots
from wstore_transports.versions.mirror_failures import AllFailed, is_empty
from wstore_transports.versions.mirror_site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.mirror_failures import Failures
    from wstore_transports.versions.version import Version

LATE_S = 3.0
"""How long a look waits for a mirror when another one has answered."""

NOT_THE_MIRROR = (Cancelled, DifferentRoots, ForkedProcess, InvalidArgument, InvalidPath)
"""Errors that another mirror would not help with."""


@dataclass(frozen=True, slots=True)
class View:
    """What one mirror shows: its newest record, and its newest version if it has any."""

    site: Site
    tip: Tip
    version: Version | None


@dataclass(frozen=True, slots=True)
class Look:
    """What the mirrors that answer show, by preference; at least one does.

    Attributes:
        complete: no other mirror can hold more: the rest is known to be empty still.
    """

    views: tuple[View, ...]
    complete: bool

    @property
    def furthest(self) -> View:
        """The mirror whose log is the longest."""
        return max(self.views, key=lambda view: view.tip.number)


_Answers = queue.SimpleQueue[tuple[Site, View | BaseException]]


def look_at(sites: Sequence[Site], view: Callable[[Site], View]) -> Look:
    """Ask all mirrors at once; those that failed lately only where no other answers.

    A mirror that is late when another has answered is left behind: it rests, and its answer ends that.

    Args:
        view: asks one mirror, and tells it whether it worked.

    Raises:
        AllFailed: none answers. One of `NOT_THE_MIRROR`.
    """
    waiting: dict[Site, Probe[None]] = {}
    try:
        views, failures = _ask(sites, view, waiting)
    finally:
        for probe in waiting.values():
            probe.give_up()
    for site in waiting:
        late = StoreTimeout(f"no answer within {LATE_S:.0f} s", url=site.path.url)
        site.failed("", late)
        failures.append((site, late))
    if not views:
        raise AllFailed(failures)
    views.sort(key=lambda found: sites.index(found.site))
    asked_all = len(views) + len(failures) == len(sites)
    return Look(tuple(views), asked_all and all(is_empty(error) for _, error in failures))


def _ask(
    sites: Sequence[Site], view: Callable[[Site], View], waiting: dict[Site, Probe[None]]
) -> tuple[list[View], Failures]:
    """What came in time; leaves in `waiting` what has not."""
    awake = [site for site in sites if site.admits("")]
    resting = [site for site in sites if site not in awake]
    answers: _Answers = queue.SimpleQueue()
    views: list[View] = []
    failures: Failures = []
    for group in (awake, resting):
        for site in group:
            waiting[site] = Probe(partial(_answer, site, view, answers), place=site)
            waiting[site].start()
        late_at = time.monotonic() + LATE_S
        while waiting:
            hurry = bool(views) or (group is awake and bool(resting))
            try:
                left_s = max(0.0, late_at - time.monotonic()) if hurry else None
                site, found = answers.get(timeout=left_s)
            except queue.Empty:
                break
            del waiting[site]
            if isinstance(found, View):
                views.append(found)
            elif isinstance(found, WStoreError) and not isinstance(found, NOT_THE_MIRROR):
                failures.append((site, found))
            else:
                raise found
        if views:
            break
    return views, failures


def _answer(site: Site, view: Callable[[Site], View], answers: _Answers) -> None:
    views: list[View] = []
    error = attempt(lambda: views.append(view(site)))
    answers.put((site, error or views[0]))
