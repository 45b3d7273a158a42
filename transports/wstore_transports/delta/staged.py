"""A version that is at hand, to be applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wstore_codecs.frame import Frame
from wstore_transports.delta.partition import segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_codecs.cutting import Unit
    from wstore_codecs.slices import SliceProof
    from wstore_codecs.tensors import Array
    from wstore_transports.delta.route import Route
    from wstore_transports.delta.spool import Spool
    from wstore_transports.delta.wanted import Holding
    from wstore_transports.versions import Version
    from wstore_transports.versions.documents import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Whole weights in memory of their own.

    Attributes:
        arrays: by stored name: the box that is held of each tensor.
        slices: proofs of the units that are held in part.
    """

    arrays: Mapping[str, Array]
    slices: dict[Unit, SliceProof]


@dataclass(slots=True, eq=False)
class Staged:
    """A version that is at hand and proven, to be applied. Holds memory until it is applied or closed.

    Attributes:
        route: how it is come to.
        manifest: of the version.
        holding: what it was staged for.
        loaded: whole weights, where the route begins with them; they are at the version already.
        fetched_nbytes: bytes that were read.
        checked: units that were found to be what their frames apply to.
        seconds: by stage.
    """

    route: Route = field(repr=False)
    manifest: Manifest = field(repr=False)
    holding: Holding = field(repr=False)
    loaded: Loaded | None = field(repr=False)
    fetched_nbytes: int
    _kept: list[list[KeptFrame]] = field(repr=False)
    checked: set[Unit] = field(default_factory=set, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    _segments: list[list[Frame]] | None = field(default=None, repr=False)

    @property
    def version(self) -> Version:
        """The version."""
        return self.route.target

    def segments(self) -> list[list[Frame]]:
        """The frames, those of older versions first, in segments that are applied one after the other."""
        if self._segments is None:
            self._segments = segments_of(self._kept)
        return self._segments

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        drop_all(self._kept)
        self._kept.clear()
        self._segments = None
        self.loaded = None


class KeptFrame:
    """A frame in the spool. In memory it stays parsed: that is dear for a group."""

    def __init__(self, spool: Spool, data: memoryview, frame: Frame) -> None:
        self._kept = spool.keep(data)
        self._frame = None if self._kept.spilled else frame

    def frame(self) -> Frame:
        """The frame."""
        return self._frame or Frame.parse(self._kept.data())

    def drop(self) -> None:
        """Give its memory back. Idempotent."""
        self._frame = None
        self._kept.drop()


def segments_of(versions: list[list[KeptFrame]]) -> list[list[Frame]]:
    """The frames of several versions, oldest first, in segments."""
    return segments([kept.frame() for kept in version] for version in versions)


def drop_all(versions: list[list[KeptFrame]]) -> None:
    """Give all their memory back."""
    for version in versions:
        for kept in version:
            kept.drop()
