"""What a command line names: places, versions of a root (URL@N), options that all commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wstore.cli_completion import complete_url
from wstore.cli_paths import opened
from wstore.errors import InvalidArgument, InvalidPath, NotFound
from wstore.urls import parse

if TYPE_CHECKING:
    from wstore.path import StoragePath
    from wstore_transports.versions import Root

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


def find_root(place: StoragePath) -> Root:
    """The root that is here, or that the pointer here leads to.

    Raises:
        NoRoot: neither is here. NotARoot, IntegrityError, NewerFormat.
    """
    from wstore_transports.delta.pointer import follow_pointer
    from wstore_transports.errors import NoRoot, NotARoot
    from wstore_transports.versions import Root

    try:
        return Root.open(place)
    except NoRoot as missing:
        try:
            return follow_pointer(place)
        except NoRoot as error:
            raise NotARoot(
                f"there is a pointer here, which leads astray: {error}", url=place.url
            ) from error
        except (NotFound, NotADirectoryError, IsADirectoryError):
            raise missing from None
