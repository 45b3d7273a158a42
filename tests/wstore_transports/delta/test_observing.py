"""Reports on log lines, spans and metrics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics.export import NumberDataPoint

from tests.hearing import Heard, hearing
from wstore import telemetry
from wstore_transports.delta.observing import tell_apply, tell_commit, tell_publish
from wstore_transports.delta.reports import ApplyReport, CommitReport, PublishReport

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "memory://root"
PAGE = Path(__file__).parents[3] / "docs" / "observability.md"

PUBLISHED = PublishReport(
    step=7,
    kind="delta",
    base=3,
    tensors=12,
    elements=1000,
    changed=20,
    raw_nbytes=2000,
    nbytes=80,
    spilled_nbytes=0,
    baseline_nbytes=2000,
    queue_depth=2,
    seconds={"wait": 0.25, "encode": 0.5},
)
COMMITTED = CommitReport(
    version=4,
    url="memory://r@4",
    step=7,
    kind="delta",
    digest="d1",
    nbytes=80,
    seconds={"commit": 0.1},
)
APPLIED = ApplyReport(
    version=4,
    step=7,
    digest="d1",
    versions=2,
    elements=1000,
    changed=20,
    replaced=30,
    fetched_nbytes=160,
    spilled_nbytes=8,
    seconds={"apply": 0.125},
)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    with hearing(monkeypatch) as heard:
        yield heard


def tell() -> None:
    """Every report once, as a publisher and a subscriber do."""
    with telemetry.span("publish", ROOT, level=logging.INFO) as operation:
        tell_publish(operation, PUBLISHED)
    with telemetry.span("commit", ROOT, level=logging.INFO) as operation:
        tell_commit(operation, COMMITTED)
    with telemetry.span("apply", ROOT, level=logging.INFO) as operation:
        tell_apply(operation, APPLIED)


def test_spans_and_lines_carry_the_figures(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wstore"):
        tell()
    told: dict[str, dict[str, object]] = {
        "publish": {"nbytes": 80, "density": 0.02, "ratio": 25.0, "encode_s": 0.5, "base": 3},
        "commit": {"nbytes": 80, "version": 4, "digest": "d1", "commit_s": 0.1},
        "apply": {"nbytes": 160, "versions": 2, "density": 0.05, "apply_s": 0.125},
    }
    lines = {vars(record)["wstore"]["event"]: vars(record)["wstore"] for record in caplog.records}
    for event, fields in told.items():
        attributes = heard.span(f"wstore.{event}").attributes
        assert attributes is not None
        assert fields.items() <= lines[event].items()
        assert {
            f"wstore.{name}": value for name, value in fields.items()
        }.items() <= attributes.items()


def test_metrics_carry_the_figures(heard: Heard) -> None:
    tell()
    found = {
        (name, *(point.attributes or {}).values()): point.value
        if isinstance(point, NumberDataPoint)
        else point.sum
        for name, metric in heard.metrics().items()
        for point in metric.data.data_points
        if "duration" not in name or "stage" in name
    }
    assert found == {
        ("wstore.publish.bytes", "memory"): 80,
        ("wstore.publish.density", "delta"): 0.02,
        ("wstore.publish.ratio", "delta"): 25.0,
        ("wstore.publish.queued.parts", "delta"): 2,
        ("wstore.publish.stage.duration", "wait"): 0.25,
        ("wstore.publish.stage.duration", "encode"): 0.5,
        ("wstore.commit.bytes", "memory"): 80,
        ("wstore.commit.versions", "delta"): 1,
        ("wstore.commit.stage.duration", "commit"): 0.1,
        ("wstore.apply.bytes", "memory"): 160,
        ("wstore.apply.versions",): 2,
        ("wstore.apply.density",): 0.05,
        ("wstore.apply.stage.duration", "apply"): 0.125,
    }


def test_the_page_names_every_metric_with_its_unit(heard: Heard) -> None:
    tell()
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `wstore.")]
    page = {row.split("|")[1].strip(" `"): row.split("|")[2].strip(" `") for row in rows}
    assert {name: metric.unit for name, metric in heard.metrics().items()}.items() <= page.items()
