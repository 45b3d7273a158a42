"""The demo's child processes: started, listened to, and never left behind."""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

import msgspec

from wstore.errors import WaitTimeout, WStoreError
from wstore_transports.demo import events, jobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import IO, Self

    from wstore_transports.demo.events import Event
    from wstore_transports.demo.jobs import Job


class ChildFailed(WStoreError):
    """A process of the demo ended before its work was done."""


class Child:
    """One process. It ends when its standard input is closed, so also when this process is killed."""

    def __init__(self, name: str, module: str, job: Job, environment: Mapping[str, str]) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, jobs.encode(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def lines(self) -> Iterator[bytes]:
        """What it writes, until it ends."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def result(self) -> int:
        """Wait for its end; the exit status."""
        return self._process.wait()

    def complaint(self) -> str:
        """The last line that it wrote to standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """End it now if it still runs."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Release what an ended process held."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()


class Children:
    """A set of children whose events arrive in one queue. A context manager: leaving it ends them all."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._listeners: list[threading.Thread] = []
        self._events: queue.SimpleQueue[tuple[Child, Event | Exception | None]]
        self._events = queue.SimpleQueue()

    def start(self, name: str, module: str, job: Job, environment: Mapping[str, str]) -> Child:
        """Start one more."""
        child = Child(name, module, job, environment)
        self._children.append(child)
        listener = threading.Thread(target=self._listen, args=(child,), name=f"demo-{name}")
        self._listeners.append(listener)
        listener.start()
        return child

    def events(self, timeout_s: float) -> Iterator[tuple[Child, Event]]:
        """What the children report, until all have finished and ended.

        Raises:
            ChildFailed: one ended early; the message holds what it said last.
            WaitTimeout: none said anything for `timeout_s` seconds.
        """
        running = len(self._children)
        while running:
            try:
                child, event = self._events.get(timeout=timeout_s)
            except queue.Empty:
                raise WaitTimeout(f"no process did anything for {timeout_s:g} seconds") from None
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield child, event

    def _listen(self, child: Child) -> None:
        finished = False
        try:
            for line in child.lines():
                event = events.parse(line)
                finished = isinstance(event, events.Finished)
                self._events.put((child, event))
        except (msgspec.DecodeError, ValueError, OSError) as error:
            self._events.put((child, ChildFailed(f"the {child.name} said no event: {error}")))
            return
        status = child.result()
        if not finished or status:
            text = f"the {child.name} ended with status {status}: {child.complaint()}"
            self._events.put((child, ChildFailed(text)))
        else:
            self._events.put((child, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
        for listener in self._listeners:
            listener.join()
        for child in self._children:
            child.close()
