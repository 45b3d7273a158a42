"""What the demo's processes tell their parent: one JSON line on standard output for each event.

Times are seconds of the monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct


class Training(Struct, frozen=True, tag="training"):
    """The trainer took a step. `loss` is None where nothing is trained."""

    step: int
    loss: float | None


class TensorChange(Struct, frozen=True):
    """What a version changed in one tensor.

    Attributes:
        elements: of the tensor.
        changed: of those; all of them where the version holds it whole.
        raw_nbytes: bytes of the elements.
        nbytes: its share of the bytes that were written.
    """

    name: str
    elements: int
    changed: int
    raw_nbytes: int
    nbytes: int


class Published(Struct, frozen=True, tag="published"):
    """The trainer committed a version.

    Attributes:
        started, finished: before it was published, and once it was committed.
        kind: "full" or "delta".
        encoded: when the trainer could have trained on; None where that is `finished`.
        tensors: what changed; nobody looks in mode "checkpoint".
    """

    version: int
    step: int
    nbytes: int
    written_nbytes: int
    started: float
    finished: float
    digest: str
    loss: float | None
    kind: str = "full"
    encoded: float | None = None
    tensors: list[TensorChange] = []


class Loaded(Struct, frozen=True, tag="loaded"):
    """An engine holds a version in its own memory. `digest` is of that memory; `pause_s` is how long
    nobody else could use it, where that is not the whole of `load_s`."""

    version: int
    finished: float
    load_s: float
    digest: str
    loss: float | None
    pause_s: float | None = None


class Finished(Struct, frozen=True, tag="finished"):
    """The process has done all it was asked to."""


Event = Training | Published | Loaded | Finished

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def emit(event: Event) -> None:
    """Write one event to standard output."""
    sys.stdout.write(_encoder.encode(event).decode() + "\n")
    sys.stdout.flush()


def parse(line: bytes) -> Event:
    """The event of one line. Raises msgspec.DecodeError."""
    return _decoder.decode(line)
