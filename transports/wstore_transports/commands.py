"""The commands on roots and safetensors files: inspect, verify, gc."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import (
    Bar,
    CountBar,
    counted,
    human_size,
    print_json,
    printable,
    sleep_showing,
)
from wstore.cli_paths import Client, opened
from wstore.errors import InvalidArgument, InvalidPath
from wstore.urls import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstore.cli_output import Json
    from wstore.path import StoragePath
    from wstore_transports.checkpoint.snapshot import Snapshot
    from wstore_transports.versions import Fate, Root, Version
    from wstore_transports.versions.garbage import Going

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="A root, a version URL@N, or a safetensors file or directory (NAME@N/ where @N is its name's).",
        autocompletion=complete_url,
    ),
]
RootUrl = Annotated[str, typer.Argument(metavar="URL", help="A root.", autocompletion=complete_url)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, sizes in bytes.")]


def inspect(url: Url, client: Client = None, as_json: AsJson = False) -> None:
    """Show what a root, a version or a safetensors file or directory holds. Reads no tensor."""
    from wstore_transports.checkpoint.reader import leased_snapshot
    from wstore_transports.errors import NoRoot
    from wstore_transports.versions import Root

    place, number = split_version(url, client)
    try:
        root = Root.open(place)
    except NoRoot:
        root = None
    if root is not None and number is None:
        _show_root(root.path.url, root.versions(), as_json)
        return
    with leased_snapshot(place, number, root=root) as snapshot:
        _show_snapshot(url, snapshot, as_json)


def verify(
    url: Url,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check the digests of the tensors' values.")
    ] = False,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Read everything that a version (default: the newest) names, and check every hash.

    Exit status 1, naming the object, when something is missing, cut or changed.
    """
    from wstore_transports.checkpoint.reader import leased_snapshot
    from wstore_transports.checkpoint.verify import verify_snapshot

    place, number = split_version(url, client)
    with leased_snapshot(place, number) as snapshot, Bar("verifying") as bar:
        report = verify_snapshot(snapshot, deep=deep, progress=bar.at)
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
    exit status 1, run it again.
    """
    from wstore_transports.versions import Retention, Root, collect, plan_gc

    root = Root.open(opened(url, client))
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
    _warn_of_publishers(root)
    if not as_json:
        print(f"waiting {root.lease_s:g} s for readers, then deleting", file=sys.stderr)
    with CountBar("deleting") as bar:
        report = collect(
            root,
            retention,
            pause=partial(sleep_showing, label="waiting for readers (seconds)"),
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


def _warn_of_publishers(root: Root) -> None:
    """A collection writes to the log, as a publisher does; not every store keeps the two apart."""
    if not root.single_publisher or root.log.refresh().standing.ended:
        return
    print(
        f"wstore: {printable(root.path.url)}: this store cannot create an object only if it is absent, so "
        "nothing keeps a publisher and this collection apart: make sure that none publishes meanwhile, or "
        "let the publisher's own retention delete",
        file=sys.stderr,
    )


def split_version(url: str, client: str | None) -> tuple[StoragePath, int | None]:
    """`URL@N` as place and number; the number is None without "@N".

    An "@" that belongs to the host ("sftp://me@host"), or to the name of something that is there
    ("model@best.safetensors"), is no version's. A name that itself ends with "@" and a number is told by
    a "/" behind it.

    Raises:
        InvalidArgument: "@" with something else than a number behind it, and nothing has that name.
    """
    head, at, tail = url.rpartition("@")
    if not at or not tail or "/" in tail or _is_root(url):
        return opened(url, client), None
    if tail.isascii() and tail.isdigit():
        return opened(head, client), int(tail)
    place = opened(url, client)
    if not place.exists():
        text = f"nothing has this name, and {tail!r} is not a version number: give URL@N"
        raise InvalidArgument(text, url=place.url)
    return place, None


def _is_root(url: str) -> bool:
    """Whether the URL names a bucket or host and no key: what is behind "@" may be the host."""
    _, scheme_ends, rest = url.partition("://")
    if not scheme_ends or "/" in rest:
        return False
    try:
        parse(url)
    except InvalidPath:
        return False
    return True


def _show_root(url: str, versions: list[Version], as_json: bool) -> None:
    if as_json:
        rows: list[Json] = [_version_fields(version) for version in versions]
        print_json({"url": url, "versions": rows})
        return
    print(f"{printable(url)}: a root with {counted(len(versions), 'version')}")
    for version in versions:
        size = human_size(version.record.nbytes)
        base = f" on {version.base}" if version.base else ""
        print(
            f"  {version.number:>8}  step {version.step:<10} {version.kind}{base}  {size:>10}  "
            f"run {printable(version.run)}  digest {version.digest}"
        )


def _version_fields(version: Version) -> dict[str, Json]:
    return {
        "version": version.number,
        "step": version.step,
        "run": version.run,
        "kind": version.kind,
        "base": version.base,
        "bytes": version.record.nbytes,
        "digest": version.digest,
    }


def _show_snapshot(url: str, snapshot: Snapshot, as_json: bool) -> None:
    specs = snapshot.specs()
    if as_json:
        tensors: dict[str, Json] = {
            name: {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "bytes": spec.nbytes,
                "digest": spec.digest,
                "tied_to": spec.tied_to,
            }
            for name, spec in specs.items()
        }
        version = None if snapshot.version is None else _version_fields(snapshot.version)
        print_json({"url": url, "version": version, "tensors": tensors})
        return
    total = sum(spec.nbytes for spec in specs.values() if not spec.tied_to)
    print(f"{printable(url)}: {counted(len(specs), 'tensor')}, {human_size(total)}")
    for name, spec in specs.items():
        tied = f"  = {printable(spec.tied_to)}" if spec.tied_to else ""
        shape = "[" + ", ".join(map(str, spec.shape)) + "]"
        size = human_size(spec.nbytes)
        print(f"  {spec.dtype:<8} {shape:<20} {size:>10}  {spec.digest}  {printable(name)}{tied}")


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
