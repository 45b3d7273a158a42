"""An engine process: `python -m wstore_transports.demo.engine JOB`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from wstore.errors import WaitTimeout
from wstore_transports.checkpoint import CheckpointReader, weights_digest
from wstore_transports.delta.subscriber import Subscriber
from wstore_transports.demo import events, jobs
from wstore_transports.errors import PublisherLost, RunEnded

if TYPE_CHECKING:
    from wstore_transports.demo.jobs import Job
    from wstore_transports.demo.model import Served
    from wstore_transports.versions import Version

RETRY_S = 0.2


def main(job: Job) -> None:
    """Follow until the trainer says that the run has ended; report what the own memory then holds."""
    model = None if job.model else _language_model()
    if job.mode == "delta":
        _follow_deltas(job, model)
    else:
        _follow_checkpoints(job, model)
    events.emit(events.Finished())


def _follow_checkpoints(job: Job, model: Served | None) -> None:
    """Load every version into the live weights."""
    reader = CheckpointReader(job.url)
    seen, done = job.after, 0
    while done < job.versions:
        if done:
            reader.wait(seen, job.timeout_s)
        else:
            _first(reader, job)
        for version in reader.versions():
            if version.number > seen:
                model = model or _file_model(reader, version)
                started = time.monotonic()
                reader.load(version, out=model.weights())
                finished = time.monotonic()
                events.emit(_loaded(version.number, model, finished, finished - started, None))
                seen = version.number
                done += 1


def _follow_deltas(job: Job, model: Served | None) -> None:
    """Bring the live weights to the newest version, again and again; a slow engine passes over some."""
    with Subscriber(job.url) as subscriber:
        version: Version | None = _first(subscriber, job)
        if model is None and version is not None:
            model = _file_model(CheckpointReader(job.url), version)
        while model is not None:
            try:
                report = subscriber.sync(model.weights(), version, timeout=job.timeout_s)
            except RunEnded:
                return
            finished = time.monotonic()
            version = None  # from here on whatever is the newest
            pause = report.seconds["apply"]
            busy = sum(seconds for stage, seconds in report.seconds.items() if stage != "wait")
            events.emit(_loaded(report.version, model, finished, busy, pause))


class _Waits(Protocol):
    """A reader of either kind."""

    def wait(self, after: int, timeout: float) -> Version: ...


def _first(reader: _Waits, job: Job) -> Version:
    """The first version of this run that is seen. What became of an earlier run does not count before."""
    deadline = time.monotonic() + job.timeout_s
    while True:
        try:
            return reader.wait(job.after, max(0.0, deadline - time.monotonic()))
        except (RunEnded, PublisherLost):
            if time.monotonic() > deadline:
                raise WaitTimeout("the trainer did not begin", url=job.url) from None
            time.sleep(RETRY_S)


def _loaded(
    version: int, model: Served, finished: float, load_s: float, pause_s: float | None
) -> events.Loaded:
    digest = weights_digest(model.weights())
    return events.Loaded(version, finished, load_s, digest, model.loss(), pause_s)


def _language_model() -> Served:
    from wstore_transports.demo.language_model import ServedLanguageModel

    return ServedLanguageModel()


def _file_model(reader: CheckpointReader, version: Version) -> Served:
    from wstore_transports.demo.file_model import ServedFile

    return ServedFile(reader.tensors(version))


if __name__ == "__main__":
    main(jobs.take())
