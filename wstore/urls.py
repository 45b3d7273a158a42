"""URLs of storage: parsed and printed, purely (no I/O but the working directory of a relative path).

    s3://bucket/key       the key is taken as it is written: "%", "?", "#", "+", "//" and "." are literal
    gs://bucket/key       likewise, and so for memory, az and every other scheme but the next two
    file:///abs/path      percent-encoded (RFC 8089): "%20" is a space; printed encoded again
    https://host:1/path   percent-encoded; without a query, which would be a secret (a signed URL)
    /abs/path, rel/path   a plain local path: never decoded; a relative one is made absolute

A text with "://" that is neither a URL nor begins with "/", "./" or "../" is refused: it is a mistyped
URL or a chain of fsspec's, not a local name. One trailing "/" is dropped. A ".." segment is refused everywhere but in a plain local path, where it is
resolved as the kernel would: nothing that is joined later can leave the bucket or the directory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from wstore.errors import InvalidPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_LOST_SLASH = re.compile(r"(file|memory|s3|gs|az|abfss?|https?|region):/(?!/)", re.IGNORECASE)
_PLAIN_STARTS = ("/", "./", "../")
_SAFE = "/!$&'()*+,;=:@~"  # RFC 3986 pchar: what a path may hold unencoded

LOCAL = "file"
_HTTP = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class _RootRule:
    """What may stand between "scheme://" and the next slash."""

    pattern: re.Pattern[str]
    noun: str
    allowed: str
    example: str
    hint: str = "Credentials and endpoints come from the environment, not from the URL"


_NAMES = _RootRule(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "bucket name",
    "letters, digits, dots, underscores and hyphens",
    "bucket/key",
)
_BUCKETS = _RootRule(
    re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]"),
    "bucket name",
    "at least 3 letters, digits, dots and hyphens (new ones: lower case, at most 63)",
    "bucket/key",
)
# Credentials go to the host that is named here, so it must be one of Azure's own clouds (the public one,
# China's, the US government's) or OneLake.
_CONTAINERS = _RootRule(
    re.compile(
        r"[$a-z0-9][a-z0-9-]*(@[a-z0-9]+\.(dfs|blob)\."
        r"(core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net|fabric\.microsoft\.com))?"
    ),
    "container name",
    "a container, or container@account.dfs.core.windows.net",
    "container/key",
    "After '@' may only stand ACCOUNT.dfs.core.windows.net or a host of Azure's other clouds; any other "
    "endpoint goes into AZURE_STORAGE_ENDPOINT, credentials into the environment too",
)
_HOSTS = _RootRule(
    re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?"),
    "host",
    "a host name and perhaps a port",
    "host/path",
)
# Whatever fsspec has a protocol for: "user@host:22", "datasets"; never "user:password@".
_OTHERS = _RootRule(
    re.compile(r"([\w.%+-]+@)?[\w.+-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?"),
    "host or bucket",
    "a name, or user@host:port",
    "host/path",
)
_ROOT_RULES = {
    "s3": _BUCKETS,
    "gs": _BUCKETS,
    "memory": _NAMES,
    "region": _NAMES,
    "az": _CONTAINERS,
    "abfs": _CONTAINERS,
    "abfss": _CONTAINERS,
    "http": _HOSTS,
    "https": _HOSTS,
}


@dataclass(frozen=True, slots=True)
class Location:
    """Where an object is: the scheme, the root (bucket; "" for local files), and the key inside it.

    The key is exact; "" is the root itself. For local files it is the absolute path without its first
    slash. `client` names another than the scheme's own client ("fsspec"); it is no part of the URL.
    """

    scheme: str
    root: str
    key: str
    client: str = ""

    @property
    def anchor(self) -> str:
        """The URL of the root, ending with a slash: "s3://bucket/", "file:///"."""
        return f"{self.scheme}://{self.root}/"

    @property
    def url(self) -> str:
        """The URL; `parse(url)` gives this location again (for every key that `parse` accepts)."""
        if self.scheme == LOCAL or self.scheme in _HTTP:
            return self.anchor + quote(self.key, safe=_SAFE, errors="surrogateescape")
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
        if "://" in text and not text.startswith(_PLAIN_STARTS):
            raise InvalidPath(
                "this text has '://' but is no URL (not repeated here: it may hold a secret): a scheme is "
                "letters, digits, '+', '-' and '.', and chains ('simplecache::s3://...') are fsspec's own. "
                "Write a local path with such a name as './...'"
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
    if scheme in _HTTP:
        if "?" in key or "#" in key:
            raise InvalidPath(
                f"{scheme}://{root}/... with a query or fragment: not repeated here, since a signed URL "
                "is a secret. Write '%3F' and '%23' where the path itself holds '?' or '#'"
            )
        key = unquote(key, errors="surrogateescape")
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
    rule = _ROOT_RULES.get(scheme, _OTHERS)
    if not root:
        raise InvalidPath(f"{scheme}:// needs a {rule.noun}: {scheme}://{rule.example}")
    if rule.pattern.fullmatch(root):
        return
    if "@" in rest or ":" in root:
        raise InvalidPath(
            f"{scheme}:// URL with a user, password or port before the first '/': not repeated here. "
            f"{rule.hint}"
        )
    shown = repr(root) if _NAMES.pattern.fullmatch(root) else "this name"
    raise InvalidPath(
        f"{scheme}:// with an invalid {rule.noun}: {shown} is not made of {rule.allowed}"
    )
