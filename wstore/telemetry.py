"""Structured log lines through the standard `logging`, logger "wstore"; free of secrets, cheap when off.

A line is "event url key=value ..."; the same values are on the record as `record.wstore` (a dict), for
handlers that write JSON. Only URLs without secrets and numbers are ever logged.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

log = logging.getLogger("wstore")
log.addHandler(logging.NullHandler())

Value = str | int | float | None


def emit(level: int, event: str, url: str, fields: Mapping[str, Value]) -> None:
    """Log one line, where that level is on."""
    if log.isEnabledFor(level):
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        log.log(
            level,
            "%s %s%s",
            event,
            url,
            shown,
            extra={"wstore": {"event": event, "url": url, **fields}},
        )


def warning(event: str, url: str, fields: Mapping[str, Value]) -> None:
    """Something that the user may want to act on."""
    emit(logging.WARNING, event, url, fields)


class Operation:
    """Times one operation: `with Operation("write_file", url) as op: op.nbytes = ...`; a debug line at
    the end, with the kind of the error if there was one."""

    __slots__ = ("_event", "_on", "_start", "_url", "nbytes")

    def __init__(self, event: str, url: str) -> None:
        self._event = event
        self._url = url
        self._on = log.isEnabledFor(logging.DEBUG)
        self._start = time.perf_counter() if self._on else 0.0
        self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on:
            fields: dict[str, Value] = {
                "nbytes": self.nbytes,
                "seconds": round(time.perf_counter() - self._start, 6),
            }
            if kind is not None:
                fields["error"] = kind.__name__
            emit(logging.DEBUG, self._event, self._url, fields)
