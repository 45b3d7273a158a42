"""An application that listens to wstore, with OpenTelemetry's own SDK."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wstore import otel, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest
    from opentelemetry.sdk.metrics.export import Metric
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True)
class Heard:
    """What an application that listens gets."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def metrics(self) -> dict[str, Metric]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@contextmanager
def hearing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """Providers of this test alone: those of the process can be set only once."""
    tracers, reader = TracerProvider(shutdown_on_exit=False), InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    there = otel.Exporter(tracers.get_tracer("wstore"), meters.get_meter("wstore"))
    monkeypatch.setattr(telemetry, "_exporter", there)
    yield Heard(exporter, reader)
    tracers.shutdown()
    meters.shutdown()
