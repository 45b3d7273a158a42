"""An engine process: `python -m wstore_transports.demo.engine JOB`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from wstore.errors import WaitTimeout
from wstore_transports.checkpoint import CheckpointReader, weights_digest
from wstore_transports.demo import events, jobs
from wstore_transports.errors import RunEnded

if TYPE_CHECKING:
    from wstore_transports.demo.jobs import Job
    from wstore_transports.demo.model import Served
    from wstore_transports.versions import Version

RETRY_S = 0.2


def main(job: Job) -> None:
    """Load every version as it appears, and report what the own memory then holds."""
    reader = CheckpointReader(job.url)
    model = None if job.model else _language_model()
    seen, done = job.after, 0
    while done < job.versions:
        _wait(reader, seen, job, started=done > 0)
        for version in reader.versions():
            if version.number > seen:
                model = model or _file_model(reader, version)
                events.emit(_follow(reader, version, model))
                seen = version.number
                done += 1
    events.emit(events.Finished())


def _wait(reader: CheckpointReader, seen: int, job: Job, *, started: bool) -> None:
    """Until there is a newer version. An earlier run's end does not count before this one began."""
    deadline = time.monotonic() + job.timeout_s
    while True:
        try:
            reader.wait(seen, max(0.0, deadline - time.monotonic()))
            return
        except RunEnded:
            if started:
                raise
            if time.monotonic() > deadline:
                raise WaitTimeout("the trainer did not begin", url=job.url) from None
            time.sleep(RETRY_S)


def _follow(reader: CheckpointReader, version: Version, model: Served) -> events.Loaded:
    started = time.monotonic()
    weights = model.weights()
    reader.load(version, out=weights)
    finished = time.monotonic()
    return events.Loaded(
        version.number, finished, finished - started, weights_digest(weights), model.loss()
    )


def _language_model() -> Served:
    from wstore_transports.demo.language_model import ServedLanguageModel

    return ServedLanguageModel()


def _file_model(reader: CheckpointReader, version: Version) -> Served:
    from wstore_transports.demo.file_model import ServedFile

    return ServedFile(reader.tensors(version))


if __name__ == "__main__":
    main(jobs.take())
