"""One root, copied to one place: what is alive, then the records that name it."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, InvalidArgument, InvalidPath, NotFound, WStoreError
from wstore.progress import Tally
from wstore.transfer import check_cancel, run_parallel
from wstore_transports.errors import VersionGone
from wstore_transports.mirroring.objects import copy_object, holds, read_checked
from wstore_transports.mirroring.segments import segments
from wstore_transports.mirroring.target import SealedRecord, Target
from wstore_transports.versions import Root, Version, layout
from wstore_transports.versions.collection import delete_gone
from wstore_transports.versions.documents import Manifest, Open, RecordBase, Weights
from wstore_transports.versions.manifest import check_objects
from wstore_transports.versions.parallel import in_parallel
from wstore_transports.versions.sealing import hash_of, read_capped, unseal, unseal_record

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_transports.mirroring.segments import Segment
    from wstore_transports.versions import GcReport, Lease
    from wstore_transports.versions.documents import Anchor
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.standing import LogState

_log = logging.getLogger("wstore.mirror")

CONCURRENCY = 4
"""Objects that are copied at once; each takes some 48 MiB at most."""

_RESTARTS = 5  # how often a pass begins anew when retention at the source was faster


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What one pass copied.

    Attributes:
        records: log records.
        versions: versions that are alive, with their objects.
        objects, nbytes: objects that the mirror lacked, and their bytes.
        latest: the newest version there now; 0 for none.
        ended: the publisher said that no further version will come.
    """

    records: int = 0
    versions: int = 0
    objects: int = 0
    nbytes: int = 0
    latest: int = 0
    ended: bool = False


class Mirror:
    """Copies a root to another place, again and again. For one thread at a time.

    Objects come first, each proven by size and hash, then manifests, then the log records: what a reader
    of the mirror is told of is there. May be killed at any point, and run by several processes at once.

    Args:
        source: the root to copy.
        to: where to; made when nothing is there.
    """

    def __init__(self, source: StoragePath, to: StoragePath) -> None:
        self._source_path = source
        self._to_path = to
        self._opened: tuple[Root, Target] | None = None
        self._tidied = 0  # the floor whose objects were deleted

    def copy(
        self, *, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> MirrorReport:
        """Copy what the mirror lacks, up to the source's newest record.

        Args:
            progress: is told the bytes of objects that are there, of those that were missing.

        Raises:
            NoRoot: there is no root at the source. DifferentRoots, RootError: the mirror is another
                root, or none that may be filled. LogsParted. IntegrityError: an object, manifest or record
                of the source is damaged or lost; the version does not appear. NewerFormat, Cancelled.
        """
        source, to = self._open()
        for left in reversed(range(_RESTARTS)):
            begin, end = to.root.log.refresh(), source.log.refresh()
            if begin.number == end.number:
                if begin.hash != end.hash:
                    raise to.parted(end.number)
                return self._report(MirrorReport())
            try:
                with _lease(source) as lease:
                    return self._report(self._pass(begin, lease, progress, cancel))
            except VersionGone as error:
                if not left:
                    raise
                _log.info("%s: beginning again: %s", source.path.url, error)
        raise AssertionError("unreachable")

    def tidy(
        self, *, pause: Callable[[float], None], progress: Progress | None = None
    ) -> GcReport | None:
        """Delete at the mirror what its log has let go, a lease period after that was copied.

        Args:
            pause: called with the seconds to wait for readers of the mirror; may raise to give up.

        Returns:
            What was deleted; None when nothing was let go since the last time, or nothing copied yet.

        Raises:
            As `collect`.
        """
        if self._opened is None:
            return None
        _, to = self._opened
        floored_at = to.root.log.refresh().standing.floored_at
        if floored_at == self._tidied:
            return None
        report = delete_gone(to.root, pause=pause, progress=progress)
        if not report.joining and not report.leased:
            self._tidied = floored_at
        return report

    def _open(self) -> tuple[Root, Target]:
        if self._opened is None:
            source = Root.open(self._source_path)
            self._opened = source, Target(source, self._to_path)
        return self._opened

    def _report(self, report: MirrorReport) -> MirrorReport:
        _, to = self._open()
        to.flush()
        at = to.root.log.refresh().standing
        return MirrorReport(
            report.records, report.versions, report.objects, report.nbytes, at.latest, at.ended
        )

    def _require_same(self, tip: Tip) -> None:
        """Raises LogsParted unless the source has the mirror's newest record."""
        source, to = self._open()
        if tip.number and (
            tip.number > source.log.known.number
            or hash_of(self._sealed(tip.number).data) != tip.hash
        ):
            raise to.parted(tip.number)

    def _pass(
        self,
        begin: Tip,
        lease: Lease | None,
        progress: Progress | None,
        cancel: threading.Event | None,
    ) -> MirrorReport:
        source, to = self._open()
        state = source.log.state()  # under a lease of everything
        self._require_same(begin)
        sealed = in_parallel(self._sealed, range(begin.number + 1, state.number + 1))
        found = segments([one.record for one in sealed], state)
        left = [record for segment in found for record in segment.content]
        counter = Tally(progress, sum(record.nbytes for record in left))
        copied = _Copied()
        for segment in found:
            to.require_mark()
            for record in segment.content:
                _narrow(lease, left)
                copied += self._copy_content(record, state, counter, cancel)
                left.pop(0)
            check_cancel(cancel)
            self._append(segment, begin, sealed)
        versions = sum(isinstance(r, Weights) for segment in found for r in segment.content)
        return MirrorReport(len(sealed), versions, copied.objects, copied.nbytes)

    def _append(self, segment: Segment, begin: Tip, sealed: list[SealedRecord]) -> None:
        _, to = self._open()
        first, last = segment.records[0].number, segment.records[-1].number
        if segment.passing:
            to.announce(last)
        start = first - sealed[0].number
        before = hash_of(sealed[start - 1].data) if start else begin.hash
        to.append(before, sealed[start : start + len(segment.records)])

    def _sealed(self, number: int) -> SealedRecord:
        source, _ = self._open()
        path = source.path / layout.record_name(number)
        data = read_capped(path, RecordBase.max_bytes)
        return SealedRecord(unseal_record(data, url=path.url, root=source.root_id), data)

    def _copy_content(
        self,
        record: Weights | Anchor,
        state: LogState,
        counter: Tally,
        cancel: threading.Event | None,
    ) -> _Copied:
        """The objects that a record names, then its manifest."""
        source, to = self._open()
        weights = record if isinstance(record, Weights) else state.versions[record.version]
        try:
            data = read_checked(
                source.object(record.manifest.name), record.manifest, Manifest.max_bytes
            )
            manifest = _parsed(data, source, record)
            copied = self._copy_objects(manifest, counter, cancel)
            if isinstance(record, Weights):
                self._copy_open(record)
        except NotFound as error:
            if isinstance(error, VersionGone):
                raise
            raise Version(source.place, weights).missing(error) from error
        to.root.object(record.manifest.name).write_file(data)
        return copied

    def _copy_objects(
        self, manifest: Manifest, counter: Tally, cancel: threading.Event | None
    ) -> _Copied:
        source, to = self._open()
        sizes = [0] * len(manifest.objects)
        objects = [False] * len(manifest.objects)

        def one(index: int) -> None:
            ref = manifest.objects[index]
            path = to.root.object(ref.name)
            if not holds(path, ref):
                copy_object(source.object(ref.name), path, ref, cancel)
                sizes[index], objects[index] = ref.size, True
            counter.add(ref.size)

        run_parallel(len(sizes), one, concurrency=CONCURRENCY, cancel=cancel)
        return _Copied(sum(objects), sum(sizes))

    def _copy_open(self, record: Weights) -> None:
        """The attempt's `open.json`, by which a collection knows how far its session has come."""
        source, to = self._open()
        name = f"{record.manifest.name.rpartition('/')[0]}/{layout.OPEN}"
        data = read_capped(source.object(name), Open.max_bytes)
        unseal(Open, data, url=source.object(name).url, root=source.root_id)
        to.root.object(name).write_file(data)


@dataclass(frozen=True, slots=True)
class _Copied:
    objects: int = 0
    nbytes: int = 0

    def __add__(self, more: _Copied) -> _Copied:
        return _Copied(self.objects + more.objects, self.nbytes + more.nbytes)


def _parsed(data: bytes, source: Root, record: Weights | Anchor) -> Manifest:
    url = source.object(record.manifest.name).url
    manifest = unseal(Manifest, data, url=url, root=source.root_id)
    try:
        check_objects(manifest.objects)
    except (InvalidArgument, InvalidPath) as error:
        raise IntegrityError(f"not a valid manifest: {error}", url=url) from error
    return manifest


@contextmanager
def _lease(source: Root) -> Iterator[Lease | None]:
    """Everything at the source, leased; None where it cannot be written."""
    try:
        lease = source.lease()
    except WStoreError as error:
        _log.warning("copying without a lease: %s", error)
        yield None
        return
    with lease:
        yield lease


def _narrow(lease: Lease | None, left: list[Weights | Anchor]) -> None:
    """Lease what is still to be copied."""
    if lease is None:
        return
    numbers = {r.number if isinstance(r, Weights) else r.version for r in left}
    try:
        lease.narrow(*numbers)
    except WStoreError as error:
        _log.warning("the lease stays as it is: %s", error)
