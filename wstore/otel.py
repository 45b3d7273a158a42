"""Spans and metrics through the OpenTelemetry API. Imported by `wstore.telemetry` alone, and only in a
process that has imported `opentelemetry` itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import context as contexts
from opentelemetry import metrics, trace

from wstore.errors import WStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token

    from opentelemetry.context import Context

    from wstore.telemetry import Value

_SCOPE = "wstore"
_STAND_INS = ("opentelemetry.trace", "opentelemetry.metrics")  # the API's own providers do nothing


@dataclass(frozen=True, slots=True)
class _Measure:
    """A unit (UCUM), and where a histogram of it is cut: the API's own cuts suit milliseconds."""

    unit: str
    cuts: tuple[float, ...]


_MEASURES = {
    "bytes": _Measure("By", tuple(float(4**n) for n in range(5, 21))),  # 1 KiB to 1 TiB
    "duration": _Measure(
        "s", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
    ),
    "density": _Measure("1", (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)),
    "ratio": _Measure("1", (0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0)),
}
_COUNTS = tuple(float(2**n) for n in range(13))


def _measure(name: str) -> _Measure:
    word = name.rpartition(".")[2]
    return _MEASURES.get(word) or _Measure(f"{{{word.removesuffix('s')}}}", _COUNTS)


def connect() -> Exporter | None:
    """An exporter to this process's providers; None while none is set."""
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider())
    if all(type(one).__module__.startswith(_STAND_INS) for one in providers):
        return None
    return Exporter(trace.get_tracer(_SCOPE), metrics.get_meter(_SCOPE))


class Exporter:
    """A tracer and a meter, with the instruments that were used so far. For any thread."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._meter = meter
        self._lock = threading.Lock()
        self._counters: dict[str, metrics.Counter] = {}
        self._histograms: dict[str, metrics.Histogram] = {}

    def start(self, name: str, url: str, fields: Mapping[str, Value]) -> Live:
        """A span that is the current one of this thread until its end."""
        attributes = _attributes(fields)
        if url:
            attributes["wstore.url"] = url
        scheme, found, _ = url.partition("://")
        span = self._tracer.start_span(f"wstore.{name}", attributes=attributes)
        return Live(self, span, name, {"scheme": scheme} if found else {})

    def count(self, name: str, value: float, labels: Mapping[str, Value]) -> None:
        """Add to a counter."""
        found = self._counters.get(name)
        if found is None:
            with self._lock:
                found = self._counters.get(name)
                if found is None:
                    unit = _measure(name).unit
                    found = self._meter.create_counter(f"wstore.{name}", unit=unit)
                    self._counters[name] = found
        found.add(value, _attributes(labels))

    def record(self, name: str, value: float, labels: Mapping[str, Value]) -> None:
        """Put a value into a histogram."""
        found = self._histograms.get(name)
        if found is None:
            with self._lock:
                found = self._histograms.get(name)
                if found is None:
                    measure = _measure(name)
                    found = self._meter.create_histogram(
                        f"wstore.{name}",
                        unit=measure.unit,
                        explicit_bucket_boundaries_advisory=measure.cuts,
                    )
                    self._histograms[name] = found
        found.record(value, _attributes(labels))

    def current(self) -> Context:
        """Where this thread is in the trace."""
        return contexts.get_current()

    def attach(self, context: Context) -> Token[Context]:
        """Put this thread there; `detach` ends that."""
        return contexts.attach(context)

    def detach(self, token: Token[Context]) -> None:
        """End what `attach` began, in the same thread."""
        contexts.detach(token)


class Live:
    """A span under way."""

    __slots__ = ("_exporter", "_labels", "_name", "_span", "_token")

    def __init__(
        self, exporter: Exporter, span: trace.Span, name: str, labels: dict[str, Value]
    ) -> None:
        self._exporter = exporter
        self._span = span
        self._name = name
        self._labels = labels
        self._token = contexts.attach(trace.set_span_in_context(span))

    def end(
        self,
        nbytes: int,
        seconds: float,
        fields: Mapping[str, Value],
        error: BaseException | None,
    ) -> None:
        """End it, with what became known and what went wrong. In the thread that started it."""
        try:
            self._measure(nbytes, seconds, error)  # within the span: an exemplar names it
        finally:
            contexts.detach(self._token)
            self._span.set_attributes({"wstore.nbytes": nbytes, **_attributes(fields)})
            if error is not None:
                self._fail(error)
            self._span.end()

    def _measure(self, nbytes: int, seconds: float, error: BaseException | None) -> None:
        labels = self._labels
        if error is not None:
            labels = {**labels, "error.type": type(error).__name__}
        elif nbytes:
            self._exporter.record(f"{self._name}.bytes", nbytes, labels)
        self._exporter.record(f"{self._name}.duration", seconds, labels)

    def _fail(self, error: BaseException) -> None:
        # Our messages hold no secret. Of others' nothing is known, nor of what a traceback quotes.
        kind = type(error).__name__
        message = str(error) if isinstance(error, WStoreError) else ""
        self._span.set_attribute("error.type", kind)
        self._span.add_event("exception", {"exception.type": kind, "exception.message": message})
        self._span.set_status(trace.StatusCode.ERROR, message or kind)


def _attributes(fields: Mapping[str, Value]) -> dict[str, str | int | float]:
    """Names with a dot are conventions of OpenTelemetry's; all others are ours."""
    return {
        name if "." in name else f"wstore.{name}": value
        for name, value in fields.items()
        if value is not None
    }
