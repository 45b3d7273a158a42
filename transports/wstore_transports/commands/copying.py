"""pull and mirror: a version to a local directory, a root to another place."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import Bar, counted, human_size, print_json, printable, sleep_showing
from wstore.cli_paths import Client, opened
from wstore.errors import InvalidArgument
from wstore_transports.commands.urls import AsJson, RootUrl, Url, find_root, split_version

if TYPE_CHECKING:
    from wstore.cli_output import Json
    from wstore.path import StoragePath
    from wstore_transports.mirroring import MirrorReport
    from wstore_transports.versions import GcReport

Destination = Annotated[
    str,
    typer.Argument(
        metavar="DST",
        help="Where the copy is, or will be: any kind of place.",
        autocompletion=complete_url,
    ),
]


def pull(
    url: Url,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="A new directory to write into.")
    ],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Which version; the newest by default.")
    ] = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Write a version as a plain safetensors directory: whole weights, and all deltas up to it.

    The directory appears complete or not at all. Everything is verified.
    """
    place, number = split_version(url, client)
    if version is not None and number is not None and version != number:
        raise InvalidArgument(f"{url} and --version {version} name two versions", url=place.url)
    wanted = number if version is None else version
    with Bar("pulling") as bar:
        fields = _pull(place, output, wanted, bar)
    if as_json:
        print_json({"url": url, "path": str(output), **fields})
        return
    size = human_size(sum(file.stat().st_size for file in output.iterdir()))
    print(f"{printable(str(output))}: {counted(len(os.listdir(output)), 'file')}, {size}")


def _pull(place: StoragePath, output: Path, number: int | None, bar: Bar) -> dict[str, Json]:
    from wstore_transports.checkpoint import CheckpointReader
    from wstore_transports.delta.pulling import pull as pull_version
    from wstore_transports.errors import NoRoot

    try:
        root = find_root(place)
    except NoRoot:
        CheckpointReader(place).download(number, output, progress=bar.at)
        return {"version": None}
    report = pull_version(root.path, output, version=number, progress=bar.at)
    return {
        "version": report.version.number,
        "step": report.version.step,
        "digest": report.version.digest,
        "anchor": report.start,
        "deltas": report.deltas,
        "fetched_bytes": report.fetched_nbytes,
    }


def mirror(
    url: RootUrl,
    to: Destination,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--once", help="Go on until the run has ended there (or Ctrl-C: exit 0)."
        ),
    ] = False,
    variants: Annotated[
        bool, typer.Option("--variants/--no-variants", help="Copy its variants, too.")
    ] = True,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Copy a root to another place: what is alive, each log record after what it names.

    Run it again to go on: after an interruption it takes up where it was. What the source let go is deleted
    at the copy, too, once readers there have had a lease period of time. Nobody else may publish to the
    copy, nor collect there, until its mirror.json is removed: that makes it a root of its own.
    """
    from wstore_transports.mirroring import MirrorTree

    tree = MirrorTree(find_root(opened(url, client)).path, opened(to, client), variants=variants)
    shown = partial(_show, to, as_json)
    if follow:
        try:
            tree.follow(copied=shown)
        except KeyboardInterrupt:
            print("wstore: stopped; run it again to go on", file=sys.stderr)
        return
    with Bar("mirroring") as bar:
        report = tree.copy(progress=bar.at)
    deleted = tree.tidy(pause=partial(sleep_showing, label="waiting for readers (seconds)"))
    shown(report, deleted)


def _show(
    to: str, as_json: bool, report: MirrorReport, deleted: list[GcReport] | None = None
) -> None:
    gone = [going for one in deleted or () for going in one.deleted]
    if as_json:
        print_json(
            {
                "url": to,
                "records": report.records,
                "versions": report.versions,
                "objects": report.objects,
                "bytes": report.nbytes,
                "latest": report.latest,
                "ended": report.ended,
                "deleted": len(gone),
            }
        )
    else:
        what = f"{counted(report.versions, 'version')}, {counted(report.objects, 'object')}"
        went = f"; {counted(len(gone), 'object')} deleted" if gone else ""
        print(
            f"{printable(to)}: copied {what}, {human_size(report.nbytes)}; the newest version is "
            f"{report.latest}{went}"
        )
    sys.stdout.flush()
