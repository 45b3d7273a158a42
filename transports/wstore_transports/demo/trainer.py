"""The trainer process: `python -m wstore_transports.demo.trainer JOB`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wstore.path import StoragePath
from wstore_transports.checkpoint import CheckpointWriter
from wstore_transports.delta.publisher import Publisher
from wstore_transports.demo import events, jobs
from wstore_transports.demo.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore_transports.demo.jobs import Job
    from wstore_transports.demo.model import Trained


def main(job: Job) -> None:
    """Train and publish until all versions are out, then say that the run has ended."""
    model = _model(job)
    publish = _publish_deltas if job.mode == "delta" else _publish_checkpoints
    for published in publish(job, model):
        events.emit(published)
    events.emit(events.Finished())


def _steps(job: Job, model: Trained) -> Iterator[int]:
    """The step of each version, once the model has come to it."""
    for version in range(1, job.versions + 1):
        for step in range((version - 1) * job.steps, version * job.steps):
            events.emit(events.Training(step + 1, model.train()))
        yield version * job.steps


def _publish_checkpoints(job: Job, model: Trained) -> Iterator[events.Published]:
    with CheckpointWriter(job.url, run="demo", timeout_s=job.timeout_s) as writer:
        for step in _steps(job, model):
            started = time.monotonic()
            report = writer.write(step, model.weights())
            finished = time.monotonic()
            yield events.Published(
                report.version,
                step,
                report.nbytes,
                report.written_nbytes,
                started,
                finished,
                report.digest,
                model.loss(),
            )


def _publish_deltas(job: Job, model: Trained) -> Iterator[events.Published]:
    changes = Changes()
    with Publisher(job.url, run="demo", timeout_s=job.timeout_s) as publisher:
        for step in _steps(job, model):
            started = time.monotonic()
            publisher.publish(step, model.weights())
            encoded = time.monotonic()
            report = publisher.flush()
            finished = time.monotonic()
            if report is None:
                raise AssertionError("a version was published")
            manifest = publisher.root.version(report.version).manifest()
            yield events.Published(
                report.version,
                step,
                report.nbytes,
                report.nbytes,
                started,
                finished,
                report.digest,
                model.loss(),
                report.kind,
                encoded,
                changes.of(manifest, model.weights()),
            )


def _model(job: Job) -> Trained:
    if job.model:
        from wstore_transports.demo.file_model import FileModel

        return FileModel(StoragePath(job.model), job.seed)
    from wstore_transports.demo.language_model import TrainedLanguageModel

    return TrainedLanguageModel(job.seed)


if __name__ == "__main__":
    main(jobs.take())
