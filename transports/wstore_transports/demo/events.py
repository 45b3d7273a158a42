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


class Published(Struct, frozen=True, tag="published"):
    """The trainer committed a version."""

    version: int
    step: int
    nbytes: int
    written_nbytes: int
    started: float
    finished: float
    digest: str
    loss: float | None


class Loaded(Struct, frozen=True, tag="loaded"):
    """An engine holds a version in its own memory. `digest` is of that memory."""

    version: int
    finished: float
    load_s: float
    digest: str
    loss: float | None


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
