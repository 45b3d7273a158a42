"""The commands on single objects and listings: ls, cat, stat, rm, wait, watch."""

from __future__ import annotations

import base64
import logging
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_output import CountBar, described, human_size, human_time, print_json, printable
from wstore.errors import InvalidArgument, IsADirectory, NotFound, WStoreError
from wstore.path import StoragePath
from wstore.stores.base import Entry
from wstore.stores.registry import bare_store
from wstore.urls import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.cli_output import Json
    from wstore.stores.base import Store

CHUNK = 8 << 20
MAX_OFFSET = (1 << 63) - 1
LOOK_S = 3.0

_log = logging.getLogger(__name__)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="s3://bucket/key or a local path.", autocompletion=complete_url
    ),
]
Urls = Annotated[
    list[str],
    typer.Argument(
        metavar="URL...", help="One or more, in this order.", autocompletion=complete_url
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, sizes in bytes.")]
Client = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Reach remote stores by this library instead: fsspec or obstore."
    ),
]
Recursive = Annotated[bool, typer.Option("-r", "--recursive", help="All below, at any depth.")]


def ls(
    url: Url, recursive: Recursive = False, client: Client = None, as_json: AsJson = False
) -> None:
    """List a directory or prefix, or one object: size, last change, name."""
    path = opened(url, client)
    found = False
    for entry in entries_of(path, recursive=recursive):
        found = True
        if as_json:
            print_json(_fields(path, entry))
        else:
            print(_line(path, entry))
    if not found and not path.is_dir():
        # A missing bucket says so, and so does a store without a listing.
        next(path.store.list(prefix_of(path), recursive=False), None)
        raise NotFound("there is no object here, and none below", url=path.url)


def stat(urls: Urls, client: Client = None, as_json: AsJson = False) -> None:
    """Show size, last change and tag of objects."""
    for url in urls:
        path = opened(url, client)
        info = path.stat()
        if as_json:
            print_json(described(path.url, info))
        else:
            size = f"{info.size:,} bytes ({human_size(info.size)})"
            print(printable(path.url))
            print(f"  size      {size}")
            print(f"  modified  {human_time(info.modified)}")
            print(f"  tag       {printable(info.tag)}")


def cat(
    urls: Urls,
    offset: Annotated[
        int, typer.Option(min=0, max=MAX_OFFSET, help="Skip so many bytes of each.")
    ] = 0,
    length: Annotated[
        int | None, typer.Option(min=0, help="At most so many bytes of each.")
    ] = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Write the bytes of objects to stdout. With --json each is one line, its bytes as base64."""
    for url in urls:
        path = opened(url, client)
        chunks = _chunks(path, offset, length)
        if as_json:
            content = base64.b64encode(b"".join(chunks)).decode()
            print_json({"url": path.url, "offset": offset, "base64": content})
        else:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
    if not as_json:
        sys.stdout.buffer.flush()


def rm(
    urls: Urls,
    recursive: Recursive = False,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Not an error where there is nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Needed to empty a whole bucket.")] = False,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Remove objects, or with -r all that lies below a directory or prefix."""
    for url in urls:
        path = opened(url, client)
        if recursive and not path.key and not yes:
            raise InvalidArgument("this would remove everything here: add --yes", url=path.url)
        try:
            removed = _remove(path, recursive=recursive, force=force)
        except IsADirectory as error:
            raise InvalidArgument("this is a directory: add -r", url=path.url) from error
        if as_json:
            print_json({"url": path.url, "removed": removed})
        elif recursive:
            print(f"{printable(path.url)}: {removed} removed")


def wait(
    url: Url,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds, then exit code 4. Default: no limit.")
    ] = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Wait until an object exists."""
    path = opened(url, client)
    _warn_without_bucket(path)
    info = path.wait(timeout)
    if as_json:
        print_json(described(path.url, info))
    else:
        print(f"{printable(path.url)}: {human_size(info.size)}")


def watch(
    url: Url,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="What to look for below: 'step_*/*.json'.")
    ],
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds without a new name, then exit code 4. Default: no limit."
        ),
    ] = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Print what matches a pattern, each name once: first what is there, then what appears."""
    path = opened(url, client)
    _warn_without_bucket(path)
    for found in path.watch(pattern, timeout=timeout):
        if as_json:
            print_json({"url": found.url})
        else:
            print(printable(str(found)))
        sys.stdout.flush()


def opened(url: str, client: str | None) -> StoragePath:
    """The path that a command line means; local files have one client only."""
    path = StoragePath(url)
    return path if client is None or path.is_local else StoragePath(path, client=client)


def _warn_without_bucket(path: StoragePath) -> None:
    """Say so where the bucket is missing: waiting for what is in it is probably a mistake in its name.

    A thread looks, once: a store that hangs must not hold the wait up for longer than `LOOK_S`.
    """
    store = bare_store(path.location)
    if path.is_local or not store.capabilities.listing:
        return
    look = threading.Thread(target=_look_for_bucket, args=(store, prefix_of(path)), daemon=True)
    look.start()
    look.join(LOOK_S)


def _look_for_bucket(store: Store, prefix: str) -> None:
    try:
        next(store.list(prefix, recursive=False), None)
    except NotFound as error:
        print(f"wstore: {printable(str(error))}; waiting all the same", file=sys.stderr)
    except WStoreError as error:
        _log.debug("the look for the bucket: %s", error)


def _remove(path: StoragePath, *, recursive: bool, force: bool) -> int:
    """How many objects were removed. A key can be an object and a prefix: with -r both go."""
    is_object = path.is_file()
    if not recursive or (is_object and not path.is_dir()):
        return _remove_object(path, force=force)
    with CountBar(f"removing {path.name or path.url}") as bar:
        removed = path.remove_tree(missing_ok=force, progress=bar.at)
    return removed + (_remove_object(path, force=True) if is_object else 0)


def _remove_object(path: StoragePath, *, force: bool) -> int:
    try:
        path.remove()
    except NotFound:
        if not force:
            raise
        return 0
    return 1


def entries_of(path: StoragePath, *, recursive: bool) -> Iterator[Entry]:
    """The object of this very name, if any, then what lies below it: one key can be both."""
    is_object = path.is_file()
    if is_object:
        yield Entry(path.key, path.stat())
    if path.is_dir():
        yield from path.store.list(prefix_of(path), recursive=recursive)


def prefix_of(path: StoragePath) -> str:
    """The start of all keys below this path."""
    return f"{path.key}/" if path.key else ""


def url_of(path: StoragePath, entry: Entry) -> str:
    """The entry's URL, for the path whose listing it is in."""
    return Location(path.scheme, path.root, entry.key).url


def _fields(path: StoragePath, entry: Entry) -> dict[str, Json]:
    if entry.info is None:
        return {"url": url_of(path, entry), "prefix": True}
    return described(url_of(path, entry), entry.info)


def _line(path: StoragePath, entry: Entry) -> str:
    name = entry.key.removeprefix(prefix_of(path)) if entry.key != path.key else path.name
    if entry.info is None:
        return f"{'-':>10}  {'':19}  {printable(name)}"
    return (
        f"{human_size(entry.info.size):>10}  {human_time(entry.info.modified)}  {printable(name)}"
    )


def _chunks(path: StoragePath, offset: int, length: int | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        left = length
        while left is None or left > 0:
            chunk = file.read(CHUNK if left is None else min(CHUNK, left))
            if not chunk:
                return
            yield chunk
            left = None if left is None else left - len(chunk)
