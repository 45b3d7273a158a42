"""The command cp: objects between any two stores, one or a whole tree."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import Bar, described, human_size, print_json, printable
from wstore.cli_paths import Client, opened, prefix_of, url_of
from wstore.errors import InvalidArgument, IsADirectory, NotFound
from wstore.path import StoragePath
from wstore.stores.posix_errors import OsErrors
from wstore.stores.posix_listing import left_out
from wstore.transfer import run_parallel

STDIN = "-"
# Each copy of a large object is parallel in itself; several at once are for many small ones.
WORKERS = 4


@dataclass(frozen=True, slots=True)
class _Copy:
    source: StoragePath
    target: StoragePath
    size: int


def cp(
    source: Annotated[
        str,
        typer.Argument(help="A URL, a local path, or - for stdin.", autocompletion=complete_url),
    ],
    target: Annotated[
        str, typer.Argument(help="A URL or a local path.", autocompletion=complete_url)
    ],
    recursive: Annotated[
        bool,
        typer.Option("-r", "--recursive", help="All below SOURCE, to the same names below TARGET."),
    ] = False,
    client: Client = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each copy, sizes in bytes.")
    ] = False,
) -> None:
    """Copy objects between any two places; each appears whole or not at all.

    A TARGET that is a directory, or ends with "/", takes the object under its own name.
    """
    if target == STDIN:
        raise InvalidArgument(
            "`wstore cat` writes an object to standard output; a file of this name is ./-",
            url=target,
        )
    if source == STDIN:
        _copy_stdin(opened(target, client), as_json=as_json)
        return
    path, place = opened(source, client), opened(target, client)
    into = target.endswith("/")
    copies = _tree(path, place) if recursive else [_single(path, place, into=into)]
    _run(copies, label=path.name or path.url, as_json=as_json)


def _copy_stdin(target: StoragePath, *, as_json: bool) -> None:
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed")
    with Bar("stdin") as bar:
        info = target.write_file(sys.stdin.buffer, progress=bar.at)
    if as_json:
        print_json(described(target.url, info))


def _single(source: StoragePath, target: StoragePath, *, into: bool) -> _Copy:
    try:
        size = source.stat().size
    except IsADirectory as error:
        raise InvalidArgument("this is a directory: add -r", url=source.url) from error
    into = into or target.is_dir()
    return _Copy(source, target / source.name if into else target, size)


def _tree(source: StoragePath, target: StoragePath) -> list[_Copy]:
    if source.is_file():
        raise InvalidArgument("this is one object: copy it without -r", url=source.url)
    if target.is_relative_to(source):
        raise InvalidArgument(f"{target.url} lies inside what is copied", url=source.url)
    prefix, client = prefix_of(source), source.location.client or None
    found = [
        _Copy(
            StoragePath(url_of(source, entry), client=client),
            target / entry.key.removeprefix(prefix),
            size,
        )
        for entry in source.store.list(prefix, recursive=True)
        # An empty object "name/" is some tools' mark of a directory.
        if entry.info and not ((size := entry.info.size) == 0 and entry.key.endswith("/"))
    ]
    if source.is_local:
        _warn_of_left_out(source)
    if not found and not source.is_dir():
        raise NotFound("there is nothing below it", url=source.url)
    twice = next((place for place, count in _targets(found).items() if count > 1), None)
    if twice is not None:  # such as "a/b" and "a//b", which are one name of a file
        raise InvalidArgument(f"two objects would both become {twice.url}", url=source.url)
    return found


def _warn_of_left_out(source: StoragePath) -> None:
    with OsErrors(source.url):
        paths = left_out(os.fsencode(source))
        first, count = next(paths, None), 1 + sum(1 for _ in paths)
    if first is not None:
        what = "links to directories, dangling links, FIFOs or the like, which are no objects"
        name = printable(os.fsdecode(first))
        print(f"wstore: {count} left out ({what}), first {name}", file=sys.stderr)


def _targets(copies: list[_Copy]) -> Counter[StoragePath]:
    return Counter(copy.target for copy in copies)


def _run(copies: list[_Copy], *, label: str, as_json: bool) -> None:
    cancel = threading.Event()
    with Bar(label, total=sum(copy.size for copy in copies)) as bar:

        def run(index: int) -> None:
            copy, done = copies[index], 0

            def progress(now: int, _total: int | None) -> None:
                nonlocal done
                bar.advance(now - done)
                done = now

            info = copy.source.copy(copy.target, progress=progress, cancel=cancel)
            bar.advance(info.size - done)
            if as_json:
                print_json({"source": copy.source.url, **described(copy.target.url, info)})

        try:
            run_parallel(len(copies), run, concurrency=WORKERS, cancel=cancel)
        except BaseException:
            cancel.set()  # Ctrl-C: the copies under way stop at their next request
            raise
    if not as_json and len(copies) != 1:
        total = human_size(sum(copy.size for copy in copies))
        print(f"{printable(label)}: {len(copies)} copied, {total}")
