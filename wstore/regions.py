"""Region aliases: one name for a place that has a URL in each region, so that code never changes.

A file `wstore.toml`, in the working directory or the nearest parent that has one, or wherever
`$WSTORE_CONFIG` says, maps an alias to a URL per region:

    [regions]
    weights = {us = "s3://weights-us/x", eu = "gs://weights-eu/x"}

`region://weights/run1` is then `s3://weights-us/x/run1` where `WSTORE_REGION=us`. Looked up when a path
is made; the file is read again when it changed.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wstore import urls
from wstore.errors import InvalidPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstore.urls import Location

SCHEME = "region"
FILE = "wstore.toml"
TABLE = "regions"

_MAX_FILE_BYTES = 1 << 20
# An alias is what may stand in a URL between "region://" and the next slash.
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Aliases = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file held when it was this one: (device, inode, time of change, size)."""

    identity: tuple[int, int, int, int]
    aliases: Aliases


_read: dict[Path, _Read] = {}


def resolve(location: Location, environment: Mapping[str, str] = os.environ) -> Location:
    """The concrete place of a `region://alias/key`; any other location as it is.

    Raises:
        InvalidPath: no configuration, no such alias, a region that is unset or that the alias has no
            URL for, or a configuration that is malformed; the text names the file.
    """
    if location.scheme != SCHEME:
        return location
    file = _configuration(environment, location)
    aliases = _aliases(file)
    places = aliases.get(location.root)
    if places is None:
        known = ", ".join(sorted(aliases)) or "none"
        raise InvalidPath(
            f"there is no alias {location.root!r} in {file} (it has: {known})", url=location.url
        )
    known = ", ".join(sorted(places))
    region = environment.get("WSTORE_REGION")
    if not region:
        raise InvalidPath(
            f"WSTORE_REGION is not set: say which region this is ({known})", url=location.url
        )
    if region not in places:
        raise InvalidPath(
            f"{file} has no URL of {location.root!r} for region {region!r} (it has: {known})",
            url=location.url,
        )
    base = _parsed(places[region], f"{TABLE}.{location.root}.{region}", file)
    key = "/".join(part for part in (base.key, location.key) if part)
    return replace(base, key=urls.checked_key(base.scheme, key), client=location.client)


def _configuration(environment: Mapping[str, str], location: Location) -> Path:
    named = environment.get("WSTORE_CONFIG")
    if named:
        return Path(named).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    raise InvalidPath(
        f"there is no {FILE} in {here} or above it, which would say where the alias "
        f"{location.root!r} is; or name the file in WSTORE_CONFIG",
        url=location.url,
    )


def _aliases(file: Path) -> Aliases:
    try:
        stat = file.stat()
        identity = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        known = _read.get(file)
        if known is not None and known.identity == identity:
            return known.aliases
        if stat.st_size > _MAX_FILE_BYTES:
            raise InvalidPath(f"{file} is {stat.st_size} bytes long: is this a configuration?")
        text = file.read_bytes()
    except OSError as error:
        raise InvalidPath(f"the configuration {file} cannot be read: {error.strerror}") from error
    aliases = _parse(text, file)
    _read[file] = _Read(identity, aliases)
    return aliases


def _parse(text: bytes, file: Path) -> Aliases:
    try:
        document = tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        raise InvalidPath(f"{file} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:  # its text ends with line and column
        raise InvalidPath(f"{file} is not valid TOML: {error}") from error
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise InvalidPath(f"{file}: [{TABLE}] must be a table")
    aliases: Aliases = {}
    for alias, places in table.items():
        if not _ALIAS.fullmatch(alias):
            text_of = "an alias is made of letters, digits, dots, underscores and hyphens"
            raise InvalidPath(f"{file}: {TABLE}.{alias!r}: {text_of}")
        if not isinstance(places, dict) or not places:
            raise InvalidPath(f'{file}: {TABLE}.{alias} must be like {{us = "s3://bucket/key"}}')
        for region, url in places.items():
            if not isinstance(url, str):
                raise InvalidPath(f"{file}: {TABLE}.{alias}.{region} must be a URL in quotes")
        aliases[alias] = dict(places)
    return aliases


def _parsed(url: str, name: str, file: Path) -> Location:
    if "://" not in url and not url.startswith("/"):
        raise InvalidPath(f"{file}: {name} must be a URL or an absolute path, not {url!r}")
    try:
        base = urls.parse(url)
    except InvalidPath as error:
        raise InvalidPath(f"{file}: {name}: {error}") from error
    if base.scheme == SCHEME:
        raise InvalidPath(f"{file}: {name} leads to another alias; write the URL itself")
    return base
