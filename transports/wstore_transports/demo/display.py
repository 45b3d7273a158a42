"""What the demo shows: the table, and how far it is while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wstore.cli_output import human_size
from wstore_transports.demo import events

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from wstore_transports.demo.events import Event
    from wstore_transports.demo.results import Results, Row


CHECKPOINT = ("bytes", "written", "publish s")
DELTA = ("kind", "density", "bytes", "ratio", "encode s", "publish s", "pause s")


def table(results: Results) -> Table:
    """One row a version."""
    out = Table(title_justify="left")
    own = DELTA if results.mode == "delta" else CHECKPOINT
    for heading in ("version", "step", *own):
        out.add_column(heading, justify="right")
    for engine in range(results.engines):
        out.add_column(f"engine {engine} had it, s", justify="right")
    out.add_column("held-out loss", justify="right")
    out.add_column("loss equal")
    out.add_column("digest equal")
    for row in results.rows:
        published = row.published
        reached = [_reached(results, row, engine) for engine in range(results.engines)]
        whole = "..." not in reached
        out.add_row(
            str(published.version),
            str(published.step),
            *(_delta_cells(row) if own is DELTA else _checkpoint_cells(row)),
            *reached,
            "-" if published.loss is None else f"{published.loss:.4f}",
            _verdict(row.losses_equal, whole, known=published.loss is not None),
            _verdict(row.digests_equal, whole, known=True),
        )
    return out


def tensor_table(results: Results) -> Table:
    """One row a tensor: what all deltas together changed in it."""
    out = Table(title="all deltas by tensor", title_justify="left")
    out.add_column("tensor", no_wrap=True)
    for heading in ("elements", "density", "bytes", "ratio"):
        out.add_column(heading, justify="right")
    for change in results.tensors():
        out.add_row(
            change.name,
            f"{change.elements:,}",
            f"{change.density:.1%}",
            human_size(change.nbytes),
            f"{change.ratio:.1f}x",
        )
    return out


def _checkpoint_cells(row: Row) -> list[str]:
    published = row.published
    return [
        human_size(published.nbytes),
        human_size(published.written_nbytes),
        f"{row.publish_s:.2f}",
    ]


def _delta_cells(row: Row) -> list[str]:
    change = row.change
    return [
        row.published.kind,
        "-" if change is None else f"{change.density:.1%}",
        human_size(row.published.nbytes),
        "-" if change is None else f"{change.ratio:.1f}x",
        f"{row.encode_s:.2f}",
        f"{row.publish_s:.2f}",
        "-" if row.pause_s is None else f"{row.pause_s:.3f}",
    ]


def _reached(results: Results, row: Row, engine: int) -> str:
    """When an engine had a version."""
    seconds = row.until(engine)
    if seconds is not None:
        return f"{seconds:.2f}"
    return "skipped" if results.skipped(row.published.version, engine) else "..."


def _verdict(equal: bool, whole: bool, *, known: bool) -> Text:
    if not known:
        return Text("-")
    if not equal:
        return Text("NO", style="bold red")
    return Text("yes", style="green") if whole else Text("...")


class Display:
    """Redraws the table on a terminal; elsewhere writes a line a version. On standard error."""

    def __init__(self, results: Results, *, quiet: bool) -> None:
        self._results = results
        self._console = Console(stderr=True, quiet=quiet)
        self._status = "starting (loading torch takes a few seconds)"
        self._live = Live(console=self._console, transient=True, auto_refresh=False)

    def show(self, name: str, event: Event) -> None:
        """Take note of what process `name` reported."""
        if isinstance(event, events.Training):
            loss = "" if event.loss is None else f", training loss {event.loss:.3f}"
            self._status = f"step {event.step}{loss}"
        elif not self._console.is_terminal and isinstance(event, events.Published | events.Loaded):
            did = "published" if isinstance(event, events.Published) else "loaded"
            self._console.print(f"{name}: version {event.version} {did}", highlight=False)
        self._draw()

    def _draw(self) -> None:
        if self._console.is_terminal:
            rows = [table(self._results)] if self._results.rows else []
            self._live.update(Group(*rows, Text(self._status)), refresh=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
