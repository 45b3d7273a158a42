"""One committed version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, NotFound, WStoreError
from wstore_transports.errors import VersionGone
from wstore_transports.versions.documents import Anchor, Weights
from wstore_transports.versions.manifest import read_anchor, read_manifest
from wstore_transports.versions.mirror_mark import read_mark

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.versions.documents import Kind, Manifest
    from wstore_transports.versions.place import Place


@dataclass(frozen=True, slots=True)
class Version:
    """A version that the log shows. Its number orders; its step is the trainer's label.

    Attributes:
        place: the root.
        record: its record in the log.
        known: its manifest, where this process made it; else it is read.
    """

    place: Place
    record: Weights
    known: Manifest | None = field(default=None, compare=False, repr=False)

    @property
    def number(self) -> int:
        """The version: its record's number in the log."""
        return self.record.number

    @property
    def step(self) -> int:
        """The trainer's label; may repeat or fall."""
        return self.record.step

    @property
    def run(self) -> str:
        """Name of the run that made it."""
        return self.record.run

    @property
    def kind(self) -> Kind:
        """ "full" or "delta"; a delta may have got an anchor since."""
        return self.record.kind

    @property
    def base(self) -> int:
        """The version that a delta applies to; 0 for a full one."""
        return self.record.base

    @property
    def digest(self) -> str:
        """The model digest: 32 hex digits."""
        return self.record.digest

    def manifest(self) -> Manifest:
        """The manifest; read, it is checked against the record's size and hash, and validated.

        The publisher's own `Version` has the one that it committed. A reader's reads it each time.

        Raises:
            VersionGone: retention let the version go. IntegrityError, NewerFormat.
        """
        if self.known is not None:
            return self.known
        try:
            return read_manifest(self.place, self.record)
        except NotFound as error:
            raise self.missing(error) from error

    def anchor(self) -> Weights | Anchor | None:
        """The record that says where this version's whole weights are; None when nowhere, as far as the
        log was read. Raises RecordMissing, IntegrityError."""
        if self.kind == "full":
            return self.record
        standing = self.place.log.known.standing
        if self.number > standing.anchor:
            return None
        if self.number == standing.anchor:
            record = self.place.log.read(standing.anchored_at)
            return record if isinstance(record, Anchor) else None
        return self.place.log.state().anchors.get(self.number)

    def whole(self, anchor: Weights | Anchor) -> Manifest:
        """The manifest of the version's whole weights, which `anchor` names: its own record or an anchor
        record. Raises as `manifest`."""
        if isinstance(anchor, Weights):
            return self.manifest()
        try:
            return read_anchor(self.place, self.record, anchor)
        except NotFound as error:
            raise self.missing(error) from error

    def object(self, name: str) -> StoragePath:
        """An object that the manifest lists, by its name there. Raises InvalidPath."""
        return self.place.object(name)

    def missing(self, error: NotFound) -> WStoreError:
        """What it means that one of this version's objects is not there: an error to raise.

        VersionGone when the log says that retention let it go (keep the weights you have, start again
        from a newer version), or this is a mirror that is being filled; else IntegrityError: the root has
        lost an object.
        """
        log = self.place.log
        mark = read_mark(
            self.place.path, self.place.root_id
        )  # before the log, which is filled towards it
        tip = log.refresh()
        if log.is_alive(self.number):
            if mark is not None and tip.number < mark.through:
                return VersionGone(
                    f"version {self.number} was let go before this mirror copied it, which is being filled: "
                    f"its log ends at {tip.number}, and makes sense from {mark.through} on",
                    url=error.url,
                )
            return IntegrityError(
                f"an object of version {self.number} is missing, though the log keeps that version",
                url=error.url,
            )
        return VersionGone(
            f"version {self.number} (step {self.step}) was let go by retention; "
            f"the newest is {log.known.standing.latest}",
            url=error.url,
        )
