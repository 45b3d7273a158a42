"""What the command line prints: sizes, times, JSON lines, and a progress bar on slow work."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rich.progress import TaskID

    from wstore.stores.base import ObjectInfo

    Json = str | int | float | bool | None | list["Json"] | Mapping[str, "Json"]

SHOW_AFTER_S = 1.0
_TICK_S = 0.5


def human_size(size: int) -> str:
    """Bytes in binary units with three digits: "0 B", "1.50 KiB", "12.3 MiB"."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 999.5 or unit == "PiB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 object", "2 objects"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_time(moment: datetime) -> str:
    """Local time to the second."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def printable(text: str) -> str:
    """The text with control characters escaped: names come from others and may hold any character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(value: Json) -> None:
    """One line of JSON on stdout, ASCII only, in one write (threads do not mix their lines)."""
    sys.stdout.write(json.dumps(value) + "\n")


def described(url: str, info: ObjectInfo) -> dict[str, Json]:
    """An object as the fields that every command's `--json` uses for it."""
    return {
        "url": url,
        "size": info.size,
        "modified": info.modified.isoformat(),
        "tag": info.tag,
    }


class Bar:
    """A bar of bytes on stderr: only on a terminal, and only once the work has lasted a second.

    `advance` is safe from any thread.
    """

    def __init__(self, label: str, *, total: int | None = None) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *self._figures(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task(printable(label), total=total)
        self._lock = threading.Lock()
        self._show_at = time.monotonic() + SHOW_AFTER_S
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self._progress.stop()

    def _figures(self) -> tuple[ProgressColumn, ...]:
        return DownloadColumn(binary_units=True), TransferSpeedColumn()

    def at(self, done: int, total: int | None = None) -> None:
        """Set what is done, and the total where it became known."""
        self._progress.update(self._task, completed=done, total=total)
        self._show()

    def advance(self, count: int) -> None:
        """Add to what is done."""
        self._progress.advance(self._task, count)
        self._show()

    def _show(self) -> None:
        with self._lock:
            if not self._shown and time.monotonic() >= self._show_at:
                self._shown = True
                sys.stdout.flush()
                self._progress.start()


class CountBar(Bar):
    """The same for things that are counted, such as objects or seconds."""

    def _figures(self) -> tuple[ProgressColumn, ...]:
        return (MofNCompleteColumn(),)


def sleep_showing(seconds: float, *, label: str) -> None:
    """Sleep; on a terminal a bar shows how long still."""
    end = time.monotonic() + seconds
    with CountBar(label, total=math.ceil(seconds)) as bar:
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_S))
            bar.at(int(seconds - max(0.0, left)), math.ceil(seconds))
