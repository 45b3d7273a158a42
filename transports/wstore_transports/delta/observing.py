"""What the reports say, on the log line, the span and the metrics of an operation (`wstore.telemetry`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore import telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.telemetry import Operation
    from wstore_transports.delta.reports import ApplyReport, CommitReport, PublishReport


def tell_publish(operation: Operation, report: PublishReport) -> None:
    """Of a `publish`, within its operation."""
    operation.nbytes = report.nbytes
    operation.note(
        {
            "step": report.step,
            "kind": report.kind,
            "base": report.base,
            "tensors": report.tensors,
            "raw_nbytes": report.raw_nbytes,
            "spilled_nbytes": report.spilled_nbytes,
            "baseline_nbytes": report.baseline_nbytes,
            "queue_depth": report.queue_depth,
            "density": round(report.density, 6),
            "ratio": round(report.ratio, 3),
            **_stages(report.seconds),
        }
    )
    labels = {"kind": report.kind}
    if report.kind == "delta":
        telemetry.record("publish.density", report.density, labels)
        telemetry.record("publish.ratio", report.ratio, labels)
    telemetry.record("publish.queued.parts", report.queue_depth, labels)
    _record_stages("publish", report.seconds)


def tell_commit(operation: Operation, report: CommitReport) -> None:
    """Of what `publish` left to the background, within its operation."""
    operation.nbytes = report.nbytes
    operation.note(
        {
            "version": report.version,
            "step": report.step,
            "kind": report.kind,
            "digest": report.digest,
            **_stages(report.seconds),
        }
    )
    telemetry.count("commit.versions", 1, {"kind": report.kind})
    _record_stages("commit", report.seconds)


def tell_apply(operation: Operation, report: ApplyReport) -> None:
    """Of an `apply` or a `load`, within its operation."""
    operation.nbytes = report.fetched_nbytes
    operation.note(
        {
            "version": report.version,
            "step": report.step,
            "versions": report.versions,
            "digest": report.digest,
            "spilled_nbytes": report.spilled_nbytes,
            "density": round(report.density, 6),
            **_stages(report.seconds),
        }
    )
    telemetry.count("apply.versions", report.versions)
    telemetry.record("apply.density", report.density)
    _record_stages("apply", report.seconds)


def _stages(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"{stage}_s": round(duration, 6) for stage, duration in seconds.items()}


def _record_stages(event: str, seconds: Mapping[str, float]) -> None:
    for stage, duration in seconds.items():
        telemetry.record(f"{event}.stage.duration", duration, {"stage": stage})
