"""What wstore tells of its work: log lines always, OpenTelemetry spans and metrics where they are in use.

A log line is "event url key=value ...", on the logger "wstore"; the same values are on the record as
`record.wstore` (a dict), for handlers that write JSON. Spans and metrics carry the same names behind
"wstore.". Only URLs without secrets and numbers are ever told.

OpenTelemetry is never imported here: whoever sets a provider has imported it, so `sys.modules` tells
whether anybody can be listening. All is cheap where nobody is.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.context import Context

    from wstore.otel import Exporter, Live

log = logging.getLogger("wstore")
log.addHandler(logging.NullHandler())

Value = str | int | float | None

_modules = sys.modules
_NO_FIELDS: Mapping[str, Value] = {}
_LOOK_EVERY_S = 0.1  # a look for a provider costs microseconds, so not each operation takes one
_URL = re.compile(r"([\w.+-]+)://([^/?#]*@)?([^?]*)", re.DOTALL)

_exporter: Exporter | None = None
_next_look = 0.0  # by time.monotonic()


def emit(level: int, event: str, url: str, fields: Mapping[str, Value]) -> None:
    """Log one line, where that level is on."""
    if log.isEnabledFor(level):
        url = public(url)
        told = {name: _told(value) for name, value in fields.items()}
        shown = "".join(f" {name}={value}" for name, value in told.items())
        log.log(
            level,
            "%s %s%s",
            event,
            url,
            shown,
            extra={"wstore": {"event": event, "url": url, **told}},
        )


def warning(event: str, url: str, fields: Mapping[str, Value]) -> None:
    """Something that the user may want to act on."""
    emit(logging.WARNING, event, url, fields)


def public(url: str) -> str:
    """The URL without a password, a query, and whatever stands before "@" in an HTTP one."""
    found = _URL.match(url)
    if found is None:
        return url
    scheme, user, rest = found.groups(default="")
    if scheme.lower() in ("http", "https"):
        user = ""
    elif ":" in user:
        user = user.partition(":")[0] + "@"
    return f"{scheme}://{user}{rest}"


class Operation:
    """One piece of work that is timed: `with span("write", url) as operation: operation.nbytes = ...`

    At the end come a log line, a span and two measurements ("write.duration", and "write.bytes" where
    it moved any and did not fail), with the kind of the error if there was one. Operations that begin
    meanwhile in the same thread are its children; see `capture` for other threads.

    Attributes:
        nbytes: bytes that it moved; set by the caller.
    """

    __slots__ = ("_event", "_fields", "_level", "_live", "_start", "_url", "nbytes")

    def __init__(self, event: str, url: str, fields: Mapping[str, Value], level: int) -> None:
        self._event = event
        self._url = url
        self._fields = fields
        self._level = level
        self._live: Live | None = None
        self.nbytes = 0

    def note(self, fields: Mapping[str, Value]) -> None:
        """Add what became known meanwhile to the line and the span."""
        self._fields = {**self._fields, **fields}

    def __enter__(self) -> Self:
        exporter = _listener()
        if exporter is not None:
            self._live = exporter.start(self._event, public(self._url), _all_told(self._fields))
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._start
        fields: dict[str, Value] = {"nbytes": self.nbytes, "seconds": round(seconds, 6)}
        fields |= self._fields
        if error is not None:
            fields["error"] = type(error).__name__
        try:
            # Within the span, so that a handler can add its id to the line.
            emit(self._level, self._event, self._url, fields)
        finally:
            if self._live is not None:
                self._live.end(self.nbytes, seconds, _all_told(self._fields), error)


class _Unheard(Operation):
    """One that nobody listens to: it costs a microsecond and tells nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.nbytes = 0

    def note(self, fields: Mapping[str, Value]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def span(
    name: str, url: str, fields: Mapping[str, Value] = _NO_FIELDS, *, level: int = logging.DEBUG
) -> Operation:
    """One piece of work, to be entered with `with`: see `Operation`.

    Args:
        name: the line's event; the span is "wstore." and this, with dots between its parts.
        url: what it works on.
        fields: what is known at the start: short names, numbers, words without secrets.
        level: the log line's.
    """
    if log.isEnabledFor(level) or ("opentelemetry" in _modules and _listener() is not None):
        return Operation(name, url, fields, level)
    return _Unheard()


def count(name: str, value: float, labels: Mapping[str, Value] = _NO_FIELDS) -> None:
    """Add to the counter "wstore.NAME".

    Args:
        name: its last word tells the unit: "bytes" By, "duration" s, "density" and "ratio" 1, and any
            other is the plural of what is counted ("publish.versions": {version}).
        value: 0 or more.
        labels: few and with few values each: every combination is a time series of its own.
    """
    exporter = _listener()
    if exporter is not None:
        exporter.count(name, value, _all_told(labels))


def record(name: str, value: float, labels: Mapping[str, Value] = _NO_FIELDS) -> None:
    """Put a value into the histogram "wstore.NAME"; name and labels as in `count`."""
    exporter = _listener()
    if exporter is not None:
        exporter.record(name, value, _all_told(labels))


class Captured:
    """The place in the trace where `capture` was called; for any number of threads, at any time."""

    __slots__ = ("_context", "_exporter")

    def __init__(self, exporter: Exporter | None, context: Context | None) -> None:
        self._exporter = exporter
        self._context = context

    def attached(self) -> AbstractContextManager[None]:
        """Operations of this thread are children of that place, for the time of the `with`."""
        if self._exporter is None or self._context is None:
            return _NOTHING
        return self._attached(self._exporter, self._context)

    @contextlib.contextmanager
    def _attached(self, exporter: Exporter, context: Context) -> Iterator[None]:
        token = exporter.attach(context)
        try:
            yield
        finally:
            exporter.detach(token)


_NOTHING = contextlib.nullcontext()
_NOWHERE = Captured(None, None)


def capture() -> Captured:
    """For work that is handed to other threads: `with captured.attached(): ...` there."""
    exporter = _listener()
    return _NOWHERE if exporter is None else Captured(exporter, exporter.current())


def _listener() -> Exporter | None:
    """Who hears spans and metrics, if anybody does."""
    if _exporter is None and "opentelemetry" in _modules and time.monotonic() >= _next_look:
        return _look()
    return _exporter


def _look() -> Exporter | None:
    global _exporter, _next_look
    try:
        from wstore import otel
    except ImportError as error:  # a namespace of that name, without the API, or one too old
        log.info("OpenTelemetry is loaded but cannot be used: %s", error)
        _next_look = float("inf")
        return None
    _exporter = otel.connect()
    _next_look = time.monotonic() + _LOOK_EVERY_S
    return _exporter


def _told(value: Value) -> Value:
    return public(value) if isinstance(value, str) else value


def _all_told(fields: Mapping[str, Value]) -> Mapping[str, Value]:
    return {name: _told(value) for name, value in fields.items()} if fields else fields
