"""verify and diff: is a version what was written, and how does it differ from another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import Bar, CountBar, counted, human_size, print_json, printable
from wstore.cli_paths import Client
from wstore_transports.commands.urls import AsJson, Url, find_root, split_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from wstore.cli_output import Json
    from wstore.path import StoragePath
    from wstore.progress import Progress
    from wstore_transports.checkpoint.verify import VerifyReport
    from wstore_transports.examining.difference import Difference, Side

Other = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="What to compare it with: a version URL@N, a root (its newest), or plain safetensors.",
        autocompletion=complete_url,
    ),
]


def verify(
    url: Url,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check the digests of the tensors' values.")
    ] = False,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Read everything that a version (default: the newest) is made of, and check every hash.

    Of a delta that is what it builds on, too, from the nearest whole weights on. Exit status 1, naming the
    object, when something is missing, cut or changed.
    """
    place, number = split_version(url, client)
    with Bar("verifying") as bar:
        report = _verified(place, number, deep, bar.at)
    for problem in report.problems:
        print(f"wstore: {printable(problem)}", file=sys.stderr)
    if as_json:
        problems: list[Json] = list(report.problems)
        print_json(
            {
                "url": url,
                "ok": not problems,
                "objects": report.objects,
                "bytes": report.nbytes,
                "tensors": report.tensors,
                "problems": problems,
            }
        )
    elif not report.problems:
        what = f"{counted(report.objects, 'object')}, {counted(report.tensors, 'tensor')}, "
        what += human_size(report.nbytes)
        print(f"{printable(url)}: {what}: {'intact' if report.proven else 'readable (no hashes)'}")
    if report.problems:
        raise typer.Exit(1)


def _verified(
    place: StoragePath, number: int | None, deep: bool, progress: Progress
) -> VerifyReport:
    from wstore_transports.checkpoint.reader import leased_snapshot, leased_version
    from wstore_transports.checkpoint.verify import verify_snapshot
    from wstore_transports.errors import NoRoot
    from wstore_transports.examining.proving import verify_version

    try:
        root = find_root(place)
    except NoRoot:
        with leased_snapshot(place, number) as snapshot:
            return verify_snapshot(snapshot, deep=deep, progress=progress)
    with leased_version(root, None, number) as version:
        return verify_version(version, deep=deep, progress=progress)


def diff(
    old: Url,
    new: Other,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two versions, tensor by tensor: how many elements, and by how much.

    They may be of different roots. Where the second builds directly on the first, its frames tell and
    little is read; else the tensors that differ are loaded on both sides.
    """
    from wstore_transports.examining.difference import difference

    with _side(old, client) as before, _side(new, client) as after, CountBar("comparing") as bar:
        rows = difference(before, after, progress=bar.at)
    changed = [row for row in rows if row.what != "same"]
    if as_json:
        fields: dict[str, Json] = {row.name: _fields(row) for row in rows}
        print_json({"old": old, "new": new, "tensors": fields, "changed_tensors": len(changed)})
        return
    for row in changed:
        print(f"  {_line(row)}")
    total = sum(row.changed for row in rows)
    print(
        f"{counted(len(rows), 'tensor')}, {len(changed)} of them differ, "
        f"{counted(total, 'element')} changed"
    )


def _side(url: str, client: str | None) -> AbstractContextManager[Side]:
    from contextlib import contextmanager

    from wstore_transports.checkpoint.reader import leased_snapshot, leased_version
    from wstore_transports.errors import NoRoot
    from wstore_transports.examining.difference import PlainSide, VersionSide

    @contextmanager
    def side() -> Iterator[Side]:
        place, number = split_version(url, client)
        try:
            root = find_root(place)
        except NoRoot:
            with leased_snapshot(place, number) as snapshot:
                yield PlainSide(place, snapshot)
            return
        with leased_version(root, None, number) as version:
            yield VersionSide(version, version.manifest())

    return side()


def _fields(row: Difference) -> dict[str, Json]:
    return {
        "what": row.what,
        "dtype": row.dtype,
        "shape": list(row.shape),
        "bytes": row.nbytes,
        "changed": row.changed,
        "density": row.density,
        "max_step": row.max_step,
    }


def _line(row: Difference) -> str:
    shape = "[" + ", ".join(map(str, row.shape)) + "]"
    what = f"{row.what:<9}"
    if row.what == "changed":
        step = "" if row.max_step is None else f", by up to {row.max_step} in the last place"
        what = f"{row.changed} elements, {row.density:.3%}{step}"
    return f"{row.dtype:<8} {shape:<20} {human_size(row.nbytes):>10}  {printable(row.name)}: {what}"
