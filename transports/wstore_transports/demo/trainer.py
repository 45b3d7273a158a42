"""The trainer process: `python -m wstore_transports.demo.trainer JOB`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wstore.path import StoragePath
from wstore_transports.checkpoint import CheckpointWriter
from wstore_transports.demo import events, jobs

if TYPE_CHECKING:
    from wstore_transports.demo.jobs import Job
    from wstore_transports.demo.model import Trained


def main(job: Job) -> None:
    """Train and publish until all versions are out, then say that the run has ended."""
    model = _model(job)
    step = 0
    with CheckpointWriter(job.url, run="demo", timeout_s=job.timeout_s) as writer:
        for _ in range(job.versions):
            for _ in range(job.steps):
                step += 1
                events.emit(events.Training(step, model.train()))
            started = time.monotonic()
            report = writer.write(step, model.weights())
            finished = time.monotonic()
            events.emit(
                events.Published(
                    report.version,
                    step,
                    report.nbytes,
                    report.written_nbytes,
                    started,
                    finished,
                    report.digest,
                    model.loss(),
                )
            )
    events.emit(events.Finished())


def _model(job: Job) -> Trained:
    if job.model:
        from wstore_transports.demo.file_model import FileModel

        return FileModel(StoragePath(job.model), job.seed)
    from wstore_transports.demo.language_model import TrainedLanguageModel

    return TrainedLanguageModel(job.seed)


if __name__ == "__main__":
    main(jobs.take())
