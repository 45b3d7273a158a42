"""Log lines, spans and measurements, against OpenTelemetry's own SDK; and what it costs to have none."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics.export import Histogram, NumberDataPoint, Sum
from opentelemetry.trace import StatusCode

from tests.hearing import Heard, hearing
from wstore import StoragePath, telemetry
from wstore.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "the-very-secret-word"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    with hearing(monkeypatch) as heard:
        yield heard


def test_a_write_is_a_span_and_two_measurements(heard: Heard, tmp_path: Path) -> None:
    path = StoragePath(tmp_path / "x")
    path.write_bytes(b"x" * 5000)
    span = heard.span("wstore.write")
    assert span.attributes == {"wstore.url": path.url, "wstore.nbytes": 5000}
    assert span.status.status_code is StatusCode.UNSET
    metrics = heard.metrics()
    moved, seconds = (metrics[f"wstore.write.{word}"] for word in ("bytes", "duration"))
    assert (moved.unit, seconds.unit) == ("By", "s")
    assert isinstance(moved.data, Histogram)
    (point,) = moved.data.data_points
    assert (point.sum, point.count, point.attributes) == (5000, 1, {"wstore.scheme": "file"})
    assert point.explicit_bounds[:2] == (1024, 4096)
    assert isinstance(seconds.data, Histogram)
    assert 0 < seconds.data.data_points[0].sum < 60


def test_operations_are_children_of_the_one_around_them(heard: Heard, tmp_path: Path) -> None:
    with telemetry.span("publish", "memory://root", {"version": 7}) as publishing:
        StoragePath(tmp_path / "x").write_bytes(b"x")
        publishing.nbytes = 1
        publishing.note({"density": 0.02, "codec": "auto"})
    outer, inner = heard.span("wstore.publish"), heard.span("wstore.write")
    assert inner.parent == outer.get_span_context()
    assert outer.parent is None
    assert outer.attributes == {
        "wstore.url": "memory://root",
        "wstore.version": 7,
        "wstore.nbytes": 1,
        "wstore.density": 0.02,
        "wstore.codec": "auto",
    }


def test_an_awaited_call_is_a_child_too(heard: Heard, tmp_path: Path) -> None:
    async def work() -> None:
        with telemetry.span("publish", "memory://root"):
            await (StoragePath(tmp_path) / "x").awrite_file(b"x")

    asyncio.run(work())
    assert heard.span("wstore.write").parent == heard.span("wstore.publish").get_span_context()


def test_another_thread_nests_where_it_is_told_to(heard: Heard) -> None:
    def work(name: str, captured: telemetry.Captured | None) -> None:
        if captured is None:
            with telemetry.span(name, "memory://root"):
                return
        with captured.attached(), telemetry.span(name, "memory://root"):
            pass
        with telemetry.span(f"{name}.after", "memory://root"):
            pass

    with telemetry.span("publish", "memory://root"):
        captured = telemetry.capture()
        threads = [
            threading.Thread(target=work, args=args)
            for args in (("one", captured), ("two", captured), ("stranger", None))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    parent = heard.span("wstore.publish").get_span_context()
    parents = {span.name: span.parent for span in heard.spans}
    assert parents == {
        "wstore.one": parent,
        "wstore.two": parent,
        "wstore.one.after": None,
        "wstore.two.after": None,
        "wstore.stranger": None,
        "wstore.publish": None,
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("no object", url="memory://root/x"), "memory://root/x: no object"),
        (ValueError(SECRET), ""),  # a stranger's message may hold anything
        (KeyboardInterrupt(), ""),
    ],
)
def test_a_failed_operation_tells_the_kind_of_error(
    heard: Heard, error: BaseException, message: str
) -> None:
    def fail() -> None:
        with telemetry.span("apply", "memory://root") as operation:
            operation.nbytes = 3
            raise error

    with pytest.raises(type(error)):
        fail()
    span, kind = heard.span("wstore.apply"), type(error).__name__
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == (message or kind)
    assert span.attributes is not None
    assert span.attributes["error.type"] == kind
    (event,) = span.events
    assert event.attributes == {"exception.type": kind, "exception.message": message}
    metrics = heard.metrics()
    assert "wstore.apply.bytes" not in metrics
    (point,) = metrics["wstore.apply.duration"].data.data_points
    assert point.attributes == {"wstore.scheme": "memory", "error.type": kind}
    with telemetry.span("next", "memory://root"):  # the failed one is no longer the current one
        pass
    assert heard.span("wstore.next").parent is None


def test_counters_and_histograms(heard: Heard) -> None:
    telemetry.count("publish.versions", 1, {"kind": "delta"})
    telemetry.count("publish.versions", 2, {"kind": "delta", "mirror": None})
    telemetry.record("publish.density", 0.02)
    telemetry.record("publish.density", 0.04)
    telemetry.record("publish.queued_parts", 3)
    metrics = heard.metrics()
    counted = metrics["wstore.publish.versions"]
    assert (counted.unit, type(counted.data)) == ("{version}", Sum)
    (number,) = counted.data.data_points
    assert isinstance(number, NumberDataPoint)
    assert (number.value, number.attributes) == (3, {"wstore.kind": "delta"})
    density = metrics["wstore.publish.density"]
    assert isinstance(density.data, Histogram)
    (point,) = density.data.data_points
    assert density.unit == "1"
    assert point.sum == pytest.approx(0.06)
    assert sum(1 for n in point.bucket_counts if n) == 2  # the cuts tell 2 % from 4 %
    assert metrics["wstore.publish.queued_parts"].unit == "{queued_part}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        (f"https://user:{SECRET}@host:1/a?X-Amz-Signature={SECRET}#x", "https://host:1/a"),
        (f"HTTPS://{SECRET}@host/a", "HTTPS://host/a"),
        (f"sftp://me:{SECRET}@host/a@b:c", "sftp://me@host/a@b:c"),
        (f"sftp://me:a@{SECRET}@host/a", "sftp://me@host/a"),
        (
            "az://container@name.dfs.core.windows.net/a",
            "az://container@name.dfs.core.windows.net/a",
        ),
        (f"s3://bucket/key?sig={SECRET}", "s3://bucket/key"),
        ("/a/plain@path?", "/a/plain@path?"),
        ("", ""),
    ],
)
def test_no_secret_of_a_url_is_told(
    heard: Heard, caplog: pytest.LogCaptureFixture, url: str, shown: str
) -> None:
    assert telemetry.public(url) == shown
    with caplog.at_level(logging.DEBUG, "wstore"), telemetry.span("x", url, {"base": url}) as one:
        one.note({"mirror": url})
        telemetry.count("x.tries", 1, {"mirror": url})
        telemetry.record("x.ratio", 1, {"mirror": url})
    told = "".join(span.to_json() for span in heard.spans) + repr(heard.metrics())
    told += caplog.text + "".join(repr(vars(record)) for record in caplog.records)
    assert SECRET not in told
    assert shown in told


def test_the_line_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wstore"):
        with telemetry.span("hidden", "memory://root"):
            pass
        with telemetry.span("publish", "memory://root", {"step": 3}, level=logging.INFO) as one:
            one.nbytes = 12
            one.note({"density": 0.5})
    (record,) = caplog.records
    assert record.getMessage().startswith("publish memory://root nbytes=12 seconds=")
    fields = vars(record)["wstore"]
    assert fields.pop("seconds") < 60
    assert fields == {
        "event": "publish",
        "url": "memory://root",
        "nbytes": 12,
        "step": 3,
        "density": 0.5,
    }


def child(code: str) -> list[str]:
    """What a fresh interpreter prints, word by word."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


WORK = """
import logging, sys, tempfile
logging.basicConfig(level=logging.DEBUG)
import wstore
from wstore import telemetry
def work():
    (wstore.StoragePath(tempfile.mkdtemp()) / "x").write_bytes(b"x")
    telemetry.count("x.tries", 1)
    telemetry.record("x.ratio", 0.5)
    with telemetry.capture().attached():
        pass
"""


def test_where_nobody_uses_opentelemetry_nothing_of_it_is_loaded() -> None:
    code = (
        WORK
        + "work()\nprint(*[name for name in sys.modules if 'otel' in name or 'telemetry' in name])"
    )
    assert child(code) == ["wstore.telemetry"]


def test_without_the_package_all_works() -> None:
    hidden = """
import sys, types
there = types.ModuleType("opentelemetry")  # what a namespace of that name leaves
there.__path__ = []
sys.modules["opentelemetry"] = there
class Hide:
    tries = 0
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry"):
            Hide.tries += 1
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""
    code = hidden + WORK + "work()\nwork()\nprint(Hide.tries, 'wstore.otel' in sys.modules)"
    assert child(code) == ["1", "False"]


def test_providers_that_are_set_late_are_found() -> None:
    code = (
        WORK
        + """
import time
import opentelemetry.trace as trace
work()
assert telemetry._exporter is None  # the API alone does nothing
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
while telemetry._exporter is None:
    work()
    time.sleep(0.02)
print(*{span.name for span in exporter.get_finished_spans()})
"""
    )
    assert child(code) == ["wstore.write"]
