"""What environment variables hold, checked: shared by the configurations of all services."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from wstore.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no repr shows and no pickle carries."""

    text: str = field(repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("credentials are not pickled; each process finds its own")


class Environment:
    """Variables by name; an empty one counts as unset. Every error names the variable."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def first(self, *names: str) -> str | None:
        """The value of the first that is set."""
        return next((self._variables[name] for name in names if self._variables.get(name)), None)

    def true(self, *names: str) -> bool:
        """Whether the first that is set says yes."""
        return (self.first(*names) or "").lower() in _TRUE

    def seconds(self, name: str, default: float) -> float:
        """A positive number of seconds.

        Raises:
            InvalidArgument: it is none.
        """
        text = self.first(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < 1e6:
            raise InvalidArgument(f"{name} is {text!r}; it must be a positive number of seconds")
        return value

    def file(self, *names: str) -> str | None:
        """The path of a file that exists.

        Raises:
            InvalidArgument: there is no such file.
        """
        for name in names:
            path = self.first(name)
            if path is not None:
                if not os.path.isfile(path):
                    raise InvalidArgument(f"{name} is {path!r}, which is no file")
                return path
        return None

    def checksum(self, name: str) -> bool:
        """Whether uploads carry a CRC-32C.

        Raises:
            InvalidArgument: another word than crc32c or off.
        """
        text = self.first(name) or "crc32c"
        if text not in {"crc32c", "off"}:
            raise InvalidArgument(f"{name} is {text!r}; it may be crc32c or off")
        return text == "crc32c"


def is_this_machine(host: str) -> bool:
    """Whether a host name stands for this machine itself, so that nobody listens on the way."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def clean_endpoint(text: str, service: str, secrets: str) -> str:
    """An endpoint as "scheme://host[:port]".

    Args:
        service: whose endpoint, for the errors.
        secrets: the variables that a user name and password belong into.

    Raises:
        InvalidArgument: not such a URL, or it holds a user name or password (which is not repeated).
    """
    try:
        parts: SplitResult = urlsplit(text)
        has_host, has_user = bool(parts.hostname), "@" in parts.netloc
        _ = parts.port
    except ValueError as error:
        raise InvalidArgument(
            f"the {service} endpoint is not a URL: write http(s)://host[:port]"
        ) from error
    if has_user:
        raise InvalidArgument(
            f"the {service} endpoint holds a user name or password: give the key in {secrets}"
        )
    if parts.scheme not in {"http", "https"} or not has_host or parts.query or parts.fragment:
        raise InvalidArgument(f"the {service} endpoint is not a URL: write http(s)://host[:port]")
    if parts.path not in {"", "/"}:
        raise InvalidArgument(
            f"the {service} endpoint has a path ({parts.path!r}): none belongs there"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"
