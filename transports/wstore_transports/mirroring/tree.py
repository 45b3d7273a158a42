"""A root with its variants, each a root of its own below it, copied together; once, or as they grow."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from wstore.errors import Cancelled, NotFound, WStoreError
from wstore_transports.errors import NoRoot
from wstore_transports.mirroring.mirror import Mirror, MirrorReport
from wstore_transports.versions import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_transports.versions import GcReport

_log = logging.getLogger("wstore.mirror")

POLL_S = 1.0
"""Seconds between looks at the source, while following it."""


class MirrorTree:
    """A root and, unless told otherwise, its variants. For one thread at a time.

    Args:
        source: the root to copy.
        to: where to; made when nothing is there.
        variants: copy `variants/<id>/` too, each after the root itself.
    """

    def __init__(self, source: StoragePath, to: StoragePath, *, variants: bool = True) -> None:
        self._source = source
        self._to = to
        self._wanted = variants
        self._main = Mirror(source, to)
        self._variants: dict[str, Mirror] = {}

    def copy(
        self, *, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> MirrorReport:
        """One pass over all. Raises as `Mirror.copy`.

        Returns:
            The sum; `latest` is the root's own, `ended` says so of all.
        """
        reports = [self._main.copy(progress=progress, cancel=cancel)]
        if reports[0].records or not self._variants or reports[0].ended:
            self._look_for_variants()
        for name, mirror in self._variants.items():
            try:
                reports.append(mirror.copy(progress=progress, cancel=cancel))
            except NoRoot as error:
                _log.debug("variant %s is not there yet: %s", name, error)
        return MirrorReport(
            records=sum(report.records for report in reports),
            versions=sum(report.versions for report in reports),
            objects=sum(report.objects for report in reports),
            nbytes=sum(report.nbytes for report in reports),
            latest=reports[0].latest,
            ended=all(report.ended for report in reports),
        )

    def tidy(
        self, *, pause: Callable[[float], None], progress: Progress | None = None
    ) -> list[GcReport]:
        """Delete at the mirrors what their logs have let go. Arguments and errors as `Mirror.tidy`."""
        reports = [
            mirror.tidy(pause=pause, progress=progress)
            for mirror in (self._main, *self._variants.values())
        ]
        return [report for report in reports if report is not None]

    def follow(
        self,
        *,
        copied: Callable[[MirrorReport], None],
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> MirrorReport:
        """Copy what appears at the source, until the run has ended there. What was let go is deleted
        beside. A source or mirror that is away for a while is waited for.

        Args:
            copied: called after each pass that copied something.

        Returns:
            The last pass.

        Raises:
            As `copy`; Cancelled.
        """
        stop = cancel or threading.Event()
        closed = threading.Event()
        with ThreadPoolExecutor(1, "wstore-mirror-tidy") as pool:
            tidying: Future[None] | None = None
            try:
                while True:
                    report = self._try_copy(progress, stop)
                    if report is not None and report.records:
                        copied(report)
                        if tidying is None or tidying.done():
                            mirrors = (self._main, *self._variants.values())
                            tidying = pool.submit(_tidy_beside, mirrors, closed)
                    if report is not None and report.ended:
                        return report
                    if stop.wait(POLL_S):
                        raise Cancelled("following was cancelled", url=self._source.url)
            finally:
                closed.set()

    def _try_copy(self, progress: Progress | None, cancel: threading.Event) -> MirrorReport | None:
        try:
            return self.copy(progress=progress, cancel=cancel)
        except WStoreError as error:
            if not error.retryable:
                raise
            _log.warning("trying again: %s", error)
            return None

    def _look_for_variants(self) -> None:
        if not self._wanted:
            return
        try:
            names = sorted(path.name for path in (self._source / layout.VARIANTS).iterdir())
        except NotFound:
            return
        for name in names:
            if name not in self._variants:
                below = (layout.VARIANTS, layout.check_name(name, "variant"))
                self._variants[name] = Mirror(
                    self._source.joinpath(*below), self._to.joinpath(*below)
                )


def _tidy_beside(mirrors: Iterable[Mirror], closed: threading.Event) -> None:
    def pause(seconds: float) -> None:
        if closed.wait(seconds):
            raise Cancelled("following ended")

    try:
        for mirror in mirrors:
            mirror.tidy(pause=pause)
    except Cancelled:
        return
    except WStoreError as error:
        _log.warning("what was let go is deleted later: %s", error)
