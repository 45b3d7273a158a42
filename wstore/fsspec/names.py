"""The names of the fsspec file system, and the storage paths that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fsspec import get_filesystem_class
from fsspec.utils import stringify_path

from wstore import urls
from wstore.errors import InvalidPath
from wstore.path import StoragePath
from wstore.pure_path import PureStoragePath

if TYPE_CHECKING:
    import os
    from typing import TypeAlias

    PathText: TypeAlias = str | os.PathLike[str]

PROTOCOL = "wstore"


def strip(path: PathText) -> str:
    """The name without "wstore://" or "wstore::" and without slashes at its end.

    A file URL becomes the plain path, so that it is a prefix of the names that are found below it.
    """
    text = str(path) if isinstance(path, PureStoragePath) else cast("str", stringify_path(path))
    text = text.removeprefix(f"{PROTOCOL}://").removeprefix(f"{PROTOCOL}::")
    if text.startswith("file://"):
        text = "/" + urls.parse(text).key
    return text.rstrip("/") or text[:1]


def parent(name: str) -> str:
    """The name of the directory that it is in; a root is its own."""
    above, slash, _ = name.rpartition("/")
    if not slash or above.endswith(":/"):
        return name
    return above or "/"


def child(name: str, rest: str) -> str:
    """The name of what lies below."""
    return f"{name}{rest}" if name.endswith("/") else f"{name}/{rest}"


def cut_by_fsspec(scheme: str) -> str:
    """What fsspec cuts off the front of a URL of that scheme before it hands the rest to a chain:
    "s3://", "memory:/", or nothing.

    Raises:
        ImportError, ValueError: fsspec's own errors for a scheme that it does not serve here.
    """
    full = f"{scheme}://name"
    rest = cast("str", get_filesystem_class(scheme)._strip_protocol(full))
    if scheme in (urls.LOCAL, "local") or not full.endswith(rest):
        return ""
    return full.removesuffix(rest)


def located(name: str, *, cut: str, client: str | None) -> StoragePath:
    """The storage path of a stripped name.

    Raises:
        InvalidPath: a relative name, or what `StoragePath` refuses.
    """
    scheme = cut.partition(":")[0]
    if cut and not name.startswith(f"{scheme}://"):
        return StoragePath(cut + name, client=client)
    if "://" not in name and not name.startswith("/"):
        raise InvalidPath(
            f"{name!r} is relative: write a URL ({PROTOCOL}://s3://bucket/key) or an absolute path"
        )
    return StoragePath(name, client=client)
