"""Whole weights for a version that was committed as a delta: written after it, beside later versions.

They lie in the version's own attempt directory, so they live as long as the version does. Order of writes:
each rank's objects, each rank's anchor marker, `anchor.json`, the log record. A crash before the record
leaves names that go with the version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wstore.errors import IntegrityError, InvalidArgument, InvalidPath
from wstore_transports.errors import AttemptAborted, Fenced, VersionGone
from wstore_transports.versions import layout
from wstore_transports.versions.documents import Anchor, Done, ObjectRef, Tensor
from wstore_transports.versions.gather import gather
from wstore_transports.versions.log import stand
from wstore_transports.versions.merge import merge
from wstore_transports.versions.poll import Poll
from wstore_transports.versions.sealing import hash_of, seal

if TYPE_CHECKING:
    import threading

    from wstore.path import StoragePath
    from wstore_transports.versions.attempt import Attempt
    from wstore_transports.versions.documents import Manifest
    from wstore_transports.versions.log import Tip
    from wstore_transports.versions.version import Version


class Anchoring:
    """The anchor of one version, as one rank writes it. All ranks of the version must take part.

    Args:
        attempt: the one that became the version.
        version: it.
    """

    def __init__(self, attempt: Attempt, version: Version) -> None:
        self._attempt = attempt
        self._version = version
        self._done: Done | None = None

    @property
    def version(self) -> Version:
        """The version whose whole weights these are."""
        return self._version

    def path(self, name: str) -> StoragePath:
        """Where to write the own object `name`. Raises as `Attempt.path`."""
        return self._attempt.path(name)

    def object_name(self, name: str) -> str:
        """The object's name relative to the root. Raises as `Attempt.path`."""
        return self._attempt.object_name(name)

    def done(
        self,
        objects: list[ObjectRef],
        tensors: dict[str, Tensor],
        *,
        aliases: dict[str, str] | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Say that this rank's part of the weights is written. Arguments and errors as `Attempt.done`."""
        marker = Done(
            root=self._version.place.root_id,
            attempt=self._attempt.opened.attempt,
            rank=self._attempt.rank,
            objects=objects,
            tensors=tensors,
            aliases=aliases or {},
            metadata=metadata or {},
        )
        self._done = self._attempt.mark(layout.anchor_done_name(self._attempt.rank), marker)

    def commit(self, *, timeout: float, cancel: threading.Event | None = None) -> Anchor | None:
        """Rank 0: wait for all ranks, prove that this is the version, and append the record.

        Returns:
            The record; None when a newer version has whole weights by now, so that nobody needs these.

        Raises:
            AttemptAborted: what the ranks wrote is not the version. Nothing changed.
            Fenced: another publisher took over. VersionGone: retention let the version go.
            WaitTimeout, Cancelled.
        """
        place, directory = self._version.place, self._attempt.directory
        poll = Poll(timeout, cancel, url=directory.url)
        opened = msgspec.structs.replace(self._attempt.opened, kind="full", base=0, shares=0)
        try:
            dones = gather(
                directory,
                opened,
                poll,
                self._check_wanted,
                own=self._done,
                marker=layout.anchor_done_name,
            )
            manifest = merge(opened, dones, directory=self._attempt.name, shared=None).manifest
            self._check_same(manifest)
        except (IntegrityError, InvalidArgument, InvalidPath) as error:
            raise AttemptAborted(f"an anchor: {error}", url=directory.url) from error
        except _Overtaken:
            return None
        data = seal(manifest)
        (directory / layout.ANCHOR).write_file(data)
        name = f"{self._attempt.name}/{layout.ANCHOR}"
        ref = ObjectRef(name=name, size=len(data), hash=hash_of(data))
        nbytes = sum(object_.size for object_ in manifest.objects)
        try:
            return place.log.append(lambda tip: self._draft(tip, ref, nbytes))
        except _Overtaken:
            return None

    def _check_same(self, manifest: Manifest) -> None:
        if manifest.digest != self._version.digest:
            raise IntegrityError(
                f"its digest is {manifest.digest}, that of version {self._version.number} is "
                f"{self._version.digest}: the baseline of a rank is not what was published"
            )

    def _check_wanted(self) -> None:
        self._require(self._version.place.log.refresh())

    def _require(self, tip: Tip) -> None:
        number, place = self._version.number, self._version.place
        if tip.standing.epoch != self._version.record.epoch:
            raise Fenced(
                f"log record {tip.standing.epoch} began another session; the anchor of version {number} "
                "is dropped",
                url=place.path.url,
            )
        if tip.standing.anchor >= number:
            raise _Overtaken
        if not place.log.is_alive(number):
            raise VersionGone(
                f"version {number} was let go by retention before its anchor was written",
                url=self._attempt.directory.url,
            )

    def _draft(self, tip: Tip, manifest: ObjectRef, nbytes: int) -> Anchor:
        self._require(tip)
        root, number, prev = self._version.place.log.base_fields(tip)
        record = Anchor(
            root=root,
            number=number,
            prev=prev,
            after=tip.standing,
            version=self._version.number,
            epoch=self._version.record.epoch,
            manifest=manifest,
            nbytes=nbytes,
        )
        return stand(tip, record)


class _Overtaken(Exception):
    """A newer version has whole weights."""
