"""gc: lets versions go, and deletes what nothing needs."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_output import (
    CountBar,
    counted,
    human_size,
    print_json,
    printable,
    sleep_showing,
)
from wstore.cli_paths import Client, opened
from wstore.errors import UnsupportedOperation
from wstore_transports.commands.urls import AsJson, RootUrl, find_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.cli_output import Json
    from wstore_transports.versions import Fate, Root
    from wstore_transports.versions.garbage import Going

STILL_S = 35.0
"""A publisher whose counter stands still for so long is taken for dead."""

_LOOK_S = 1.0


def gc(
    url: RootUrl,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it.")] = False,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest versions stay.")] = 2,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Show which versions and objects would go, and why; with --yes delete them, and what writers that
    were killed over a day ago left unfinished.

    Versions that living readers lease stay. Deleting waits one lease period (a minute by default) first,
    so that a reader that is just starting is seen. Where one was starting all the while nothing is deleted:
    exit status 1, run it again. On a store that keeps no two publishers apart it is refused beside a living one.
    """
    from wstore_transports.versions import Retention, collect, plan_gc

    root = find_root(opened(url, client))
    retention = Retention(keep_last=keep)
    if not yes:
        plan = plan_gc(root, retention)
        if as_json:
            print_json(_gc_fields(root.path.url, plan.versions, plan.objects, deleted=False))
        else:
            _show_gc(
                plan.versions, plan.objects, end="would go; nothing was deleted, --yes does it"
            )
        return
    _require_no_publisher(root)
    if not as_json:
        print(f"waiting {root.lease_s:g} s for readers, then deleting", file=sys.stderr)
    with CountBar("deleting") as bar:
        report = collect(
            root,
            retention,
            pause=partial(_pause, root),
            progress=bar.at,
        )
    root.path.sweep()
    if as_json:
        done = not report.joining
        print_json(_gc_fields(root.path.url, report.versions, report.deleted, deleted=done))
    else:
        _show_gc(report.versions, report.deleted, end="deleted")
    if report.joining:
        readers = printable(", ".join(report.joining))
        print(
            f"wstore: readers are just starting, so nothing was deleted: {readers}", file=sys.stderr
        )
        raise typer.Exit(1)


def _pause(root: Root, seconds: float) -> None:
    """Wait for readers. A collection writes to the log, as a publisher does; where the store does not keep the
    two apart, a sign of life of one ends it.

    Raises:
        UnsupportedOperation: there was one.
    """
    if root.single_publisher:
        _watch_publisher(root, seconds)
    else:
        sleep_showing(seconds, label="waiting for readers (seconds)")


def _watch_publisher(root: Root, seconds: float) -> None:
    """Raises UnsupportedOperation where a publisher begins, or moves its counter, within so many seconds."""
    standing = root.log.refresh().standing
    seen = None
    until = time.monotonic() + seconds
    while True:
        now = root.counter(standing.epoch) if standing.epoch and not standing.ended else None
        moved = seen is not None and now is not None and now != seen
        seen = seen if now is None else now
        if moved or root.log.refresh().standing.epoch != standing.epoch:
            raise UnsupportedOperation(
                "a publisher lives here, and this store cannot create an object only if it is absent, so "
                "nothing would keep it and a collection apart: let its own retention delete (`keep=`), or "
                "run this when it has ended",
                url=root.path.url,
            )
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(_LOOK_S, left))


def _require_no_publisher(root: Root) -> None:
    """Raises UnsupportedOperation where the store does not keep a publisher and this apart, and one lives."""
    standing = root.log.refresh().standing
    if not root.single_publisher or not standing.epoch or standing.ended:
        return
    seconds = max(root.lease_s, STILL_S)
    print(
        f"waiting {seconds:g} s for a sign of life of the publisher, which nothing keeps apart from this "
        "collection here",
        file=sys.stderr,
    )
    _watch_publisher(root, seconds)


def _gc_fields(
    url: str, versions: Sequence[Fate], objects: Sequence[Going], *, deleted: bool
) -> dict[str, Json]:
    fates: list[Json] = [
        {"version": fate.number, "step": fate.step, "stays": fate.stays, "reason": fate.reason}
        for fate in versions
    ]
    names: list[Json] = [
        {"name": going.name, "size": going.size, "reason": going.reason} for going in objects
    ]
    nbytes = sum(going.size for going in objects)
    return {"url": url, "deleted": deleted, "bytes": nbytes, "versions": fates, "objects": names}


def _show_gc(versions: Sequence[Fate], objects: Sequence[Going], *, end: str) -> None:
    for fate in versions:
        verdict = "stays" if fate.stays else "goes"
        print(f"version {fate.number} (step {fate.step}) {verdict}: {fate.reason}")
    for going in objects:
        print(f"  {human_size(going.size):>10}  {printable(going.name)}: {going.reason}")
    total = human_size(sum(going.size for going in objects))
    print(f"{counted(len(objects), 'object')}, {total} {end}")
