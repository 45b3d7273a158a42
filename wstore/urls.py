"""URLs of storage: parsed and printed, purely (no I/O but the working directory of a relative path).

    s3://bucket/key       the key is taken as it is written: "%", "?", "#", "+", "//" and "." are literal
    memory://name/key     likewise
    file:///abs/path      percent-encoded (RFC 8089): "%20" is a space; printed encoded again
    /abs/path, rel/path   a plain local path: never decoded; a relative one is made absolute

One trailing "/" is dropped. A ".." segment is refused everywhere but in a plain local path, where it is
resolved as the kernel would: nothing that is joined later can leave the bucket or the directory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from wstore.errors import InvalidPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_LOST_SLASH = re.compile(r"(file|memory|s3|gs|az|abfss?|https?):/(?!/)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_S3_BUCKET = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_FILE_SAFE = "/!$&'()*+,;=:@~"  # RFC 3986 pchar: what a path may hold unencoded

LOCAL = "file"


@dataclass(frozen=True, slots=True)
class Location:
    """Where an object is: the scheme, the root (bucket; "" for local files), and the key inside it.

    The key is exact; "" is the root itself. For local files it is the absolute path without its first
    slash.
    """

    scheme: str
    root: str
    key: str

    @property
    def anchor(self) -> str:
        """The URL of the root, ending with a slash: "s3://bucket/", "file:///"."""
        return f"{self.scheme}://{self.root}/"

    @property
    def url(self) -> str:
        """The URL; `parse(url)` gives this location again (for every key that `parse` accepts)."""
        if self.scheme == LOCAL:
            return self.anchor + quote(self.key, safe=_FILE_SAFE, errors="surrogateescape")
        # A key that ends with "/" gets a second one, since parsing drops one.
        return self.anchor + self.key + ("/" if self.key.endswith("/") else "")


def parse(text: str) -> Location:
    """Read a URL or a plain local path.

    Raises:
        InvalidPath: empty, malformed, an invalid bucket name, a user or password, or a ".." segment.
            The message never repeats what may be a secret. Whether the scheme is known is for
            `stores.registry` to say.
    """
    if not text:
        raise InvalidPath("an empty string is neither a URL nor a path")
    found = _URL.fullmatch(text)
    if found is None:
        if _LOST_SLASH.match(text):
            raise InvalidPath(
                f"{text[: text.index(':')]}:/ has one slash too few; was the URL passed through "
                "pathlib.Path? Write a local path with such a name as './...'"
            )
        return Location(LOCAL, "", _absolute_key(text))
    scheme, rest = found.group(1).lower(), found.group(2)
    root, slash, key = rest.partition("/")
    if scheme == LOCAL:
        if root not in ("", "localhost") or not slash:
            raise InvalidPath(
                "a file URL is file:///absolute/path, without a host; use a plain path for a relative one"
            )
        key = unquote(key, errors="surrogateescape")
        return Location(LOCAL, "", checked_key(LOCAL, key))
    _check_root(scheme, root, rest)
    return Location(scheme, root, checked_key(scheme, key.removesuffix("/")))


def checked_key(scheme: str, key: str) -> str:
    """The key as the store of that scheme takes it. Raises InvalidPath for what no key can be."""
    segments = key.split("/")
    if ".." in segments:
        raise InvalidPath(f"'..' may not be part of a key: {key!r}")
    if scheme == LOCAL:
        if "\0" in key:
            raise InvalidPath(f"a file name cannot hold a NUL character: {key!r}")
        return "/".join(s for s in segments if s not in ("", "."))
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"a key must be encodable as UTF-8: {key!r}") from error
    return key


def _absolute_key(text: str) -> str:
    """The key of a plain local path; ".." is resolved through symbolic links, as the kernel does."""
    if "\0" in text:
        raise InvalidPath(f"a file name cannot hold a NUL character: {text!r}")
    segments = os.path.join(os.getcwd(), text).split("/")
    if ".." in segments:
        split = len(segments) - segments[::-1].index("..")
        segments = [*os.path.realpath("/".join(segments[:split])).split("/"), *segments[split:]]
    return "/".join(s for s in segments if s not in ("", "."))


def _check_root(scheme: str, root: str, rest: str) -> None:
    if not root:
        raise InvalidPath(f"{scheme}:// needs a bucket name: {scheme}://bucket/key")
    rule = _S3_BUCKET if scheme == "s3" else _NAME
    if rule.fullmatch(root):
        return
    if "@" in rest or ":" in root:
        raise InvalidPath(
            f"{scheme}:// URL with a user, password or port before the first '/': not repeated here. "
            "Credentials and endpoints come from the environment, not from the URL"
        )
    shown = repr(root) if _NAME.fullmatch(root) else "this name"
    allowed = (
        "at least 3 letters, digits, dots and hyphens (new ones: lower case, at most 63)"
        if scheme == "s3"
        else "letters, digits, dots, underscores and hyphens"
    )
    raise InvalidPath(f"{scheme}:// with an invalid bucket name: {shown} is not made of {allowed}")
