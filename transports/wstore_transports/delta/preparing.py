"""The next version of an engine: waited for, read ahead, staged on all its ranks."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wstore.errors import UnalignedSlice
from wstore_transports.delta.agreement import decide
from wstore_transports.delta.binding import bind
from wstore_transports.delta.rehearsal import Rehearsal
from wstore_transports.errors import VersionGone

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from wstore_transports.delta.agreement import Group
    from wstore_transports.delta.ahead import Ahead
    from wstore_transports.delta.applying import Applier
    from wstore_transports.delta.arrivals import Arrivals
    from wstore_transports.delta.binding import EngineState
    from wstore_transports.delta.origin import Origin
    from wstore_transports.delta.position import Position
    from wstore_transports.delta.staged import Staged
    from wstore_transports.versions import Version

_log = logging.getLogger("wstore.delta")

_RESTARTS = 3  # how often a route is looked for when retention was faster


@dataclass(frozen=True, slots=True)
class Preparation:
    """Brings versions to the point where only the apply is left."""

    origin: Origin
    arrivals: Arrivals
    applier: Applier
    group: Group

    def next(
        self,
        position: Position,
        state: EngineState,
        wanted: int | Version | None,
        timeout: float,
        cancel: threading.Event | None,
        confirm: Callable[[], None],
    ) -> Staged:
        """The version to come to, staged on all ranks.

        Args:
            position: what is held; `state`: its memory.
            wanted: a version; None for the next one.
            confirm: called once it is staged here; raises where it is not on another rank.

        Raises:
            As `Subscriber.sync`.
        """
        started = time.monotonic()
        ahead: Ahead | None = None
        rehearsal: Rehearsal | None = None
        if wanted is None:
            if position.manifest is not None:
                rehearsal = Rehearsal(bind(state, position.manifest), position.slices)
            target, ahead = self.arrivals.next(
                position.version,
                position.holding,
                (lambda frames: frames) if rehearsal is None else rehearsal.prepare,
                timeout,
                cancel,
            )
        else:
            target = self.arrivals.await_version(wanted, timeout, cancel)
        waited = time.monotonic() - started
        try:
            chosen = int(decide(self.group, str(target.number)))
            if chosen != target.number:
                target = self.arrivals.find(chosen)
            staged = self._insist(
                position, target, state, rehearsal, ahead, cancel, restart=wanted is None
            )
        finally:
            if ahead is not None:
                ahead.close()
        try:
            confirm()
        except BaseException:
            staged.close()
            raise
        staged.seconds["wait"] = waited
        return staged

    def prefetch(
        self,
        position: Position,
        target: Version,
        state: EngineState | None,
        *,
        rehearsal: Rehearsal | None = None,
        ahead: Ahead | None = None,
        cancel: threading.Event | None = None,
    ) -> Staged:
        """A version, staged; and with a `state` checked and decoded. Raises as `Subscriber.prefetch`."""
        held, known = position.version, position.manifest
        if state is None:
            return self.arrivals.stage(
                target, held, position.holding, known, ahead=ahead, cancel=cancel
            )
        manifest = self.origin.manifest(target)
        bound = bind(state, manifest)
        target = replace(target, known=manifest)
        holding = bound.holding()
        if holding == position.holding:
            staged = self.arrivals.stage(target, held, holding, known, ahead=ahead, cancel=cancel)
            try:
                if staged.loaded is None:
                    started = time.monotonic()
                    self.applier.check(staged, rehearsal or Rehearsal(bound, position.slices))
                    staged.seconds["check"] = time.monotonic() - started
                return staged
            except UnalignedSlice as error:
                staged.close()
                _log.warning("whole weights are loaded in place of deltas: %s", error)
            except BaseException:
                staged.close()
                raise
        # What is held now was not held before, or its deltas cannot be applied to a part: begin anew.
        return self.arrivals.stage(target, 0, holding, None, cancel=cancel)

    def _insist(
        self,
        position: Position,
        target: Version,
        state: EngineState,
        rehearsal: Rehearsal | None,
        ahead: Ahead | None,
        cancel: threading.Event | None,
        *,
        restart: bool,
    ) -> Staged:
        """The target, staged; an engine of one rank that asked for no version in particular begins again from
        the newest one when retention was faster."""
        for left in reversed(range(_RESTARTS)):
            try:
                return self.prefetch(
                    position, target, state, rehearsal=rehearsal, ahead=ahead, cancel=cancel
                )
            except VersionGone as error:
                if self.group.size > 1 or not restart or not left:
                    raise
                _log.warning("%s: beginning again from the newest version", error)
                target = self.arrivals.find(None)
        raise AssertionError("the last try returns or raises")
