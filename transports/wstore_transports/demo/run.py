"""The demo itself: one trainer, some engines, and the comparison of what they hold."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wstore.path import StoragePath
from wstore_transports.demo import events
from wstore_transports.demo.display import Display
from wstore_transports.demo.jobs import Job
from wstore_transports.demo.processes import Children
from wstore_transports.demo.results import Results
from wstore_transports.errors import NotARoot, NoVersion
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore_transports.demo.jobs import Mode
    from wstore_transports.demo.processes import Child

BUCKET = "wstore-demo"


@dataclass(frozen=True, slots=True)
class Options:
    """What to run.

    Attributes:
        url: the root; "" for a temporary local directory.
        mode: how versions go from the trainer to the engines.
        engine_url: the same root as the engines' hosts reach it; "" for `url`.
        server: start one of these and publish there: "s3", "gcs"; "" for none.
        model: a safetensors file to publish; "" to train one.
        versions, steps, engines, seed: as the command line has them.
        timeout_s: seconds without any progress after which the demo fails.
    """

    url: str
    mode: Mode
    engine_url: str
    server: str
    model: str
    versions: int
    steps: int
    engines: int
    seed: int
    timeout_s: float


def run(options: Options, *, quiet: bool) -> tuple[str, Results]:
    """Run it to its end; returns the root's URL and the results. Leaves no process behind.

    Raises:
        ChildFailed: a process died. WaitTimeout: nothing moved.
    """
    with ExitStack() as stack:
        url, environment = _place(options, stack)
        job = Job(
            url=url,
            mode=options.mode,
            after=_newest(url) if not options.server else 0,
            versions=options.versions,
            steps=options.steps,
            model=options.model and StoragePath(options.model).url,
            seed=options.seed,
            timeout_s=options.timeout_s,
        )
        return url, _follow(job, options, environment, quiet=quiet)


def _follow(job: Job, options: Options, environment: Mapping[str, str], *, quiet: bool) -> Results:
    results = Results(options.engines, options.versions, options.mode)
    numbers: dict[Child, int] = {}
    with Display(results, quiet=quiet) as display, Children() as children:
        children.start("trainer", "wstore_transports.demo.trainer", job, environment)
        followed = StoragePath(options.engine_url).url if options.engine_url else job.url
        engine_job = msgspec.structs.replace(job, url=followed)
        for number in range(options.engines):
            name = f"engine {number}"
            child = children.start(name, "wstore_transports.demo.engine", engine_job, environment)
            numbers[child] = number
        for child, event in children.events(options.timeout_s):
            if isinstance(event, events.Published):
                results.published(event)
            elif isinstance(event, events.Loaded):
                results.loaded(numbers[child], event)
            display.show(child.name, event)
    return results


def _place(options: Options, stack: ExitStack) -> tuple[str, Mapping[str, str]]:
    """The root's URL, and the environment under which the children reach it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if options.server:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="wstore-demo-"))
        own_server = {"s3": _own_s3, "gcs": _own_gcs}[options.server]
        return own_server(Path(directory), stack, environment)
    if options.url:
        return StoragePath(options.url).url, environment
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="wstore-demo-"))
    return StoragePath(directory).url, environment


def _own_s3(
    directory: Path, stack: ExitStack, environment: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    from wstore.testing.servers import create_bucket, seaweed_server

    endpoint = stack.enter_context(seaweed_server(directory))
    create_bucket(endpoint, BUCKET)
    return f"s3://{BUCKET}/run", endpoint.applied_to(environment)


def _own_gcs(
    directory: Path, stack: ExitStack, environment: Mapping[str, str]
) -> tuple[str, Mapping[str, str]]:
    from wstore.testing.servers import create_gcs_bucket, gcs_server

    endpoint = stack.enter_context(gcs_server(directory))
    create_gcs_bucket(endpoint, BUCKET)
    return f"gs://{BUCKET}/run", endpoint.applied_to(environment)


def _newest(url: str) -> int:
    """The newest version that an earlier run left under the URL."""
    try:
        return Root.open(StoragePath(url)).latest().number
    except (NotARoot, NoVersion):
        return 0
