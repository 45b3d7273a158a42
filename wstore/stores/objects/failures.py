"""From obstore's errors to the ones that a caller sees.

obstore names no status and no cause; its texts do. They also quote whole replies, so they stay out of
what is raised, and out of its chain.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from obstore import exceptions

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    InvalidArgument,
    InvalidPath,
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreTimeout,
    Unavailable,
    WStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_TIMEOUT = "kind: Timeout"
_CONNECT = "kind: Connect"
_NETWORK = "HTTP error"
# Azurite answers a range of some empty blobs with a Content-Range of less than nothing.
_PAST_THE_END = ("StartTooLarge", "status code: 416", '"bytes 0--1/0"')
_WHOLE = ("NotPartial", "non-partial response")
_BAD_NAME = ("Error parsing Path", "illegal character sequence", "InvalidPath", "BadSegment")


class Failed(Exception):
    """A call into obstore failed.

    Attributes:
        kind: the class of obstore's error.
        text: its text, which may hold secrets: for looking, never for showing.
    """

    def __init__(self, kind: type[Exception], text: str) -> None:
        super().__init__(kind.__name__)
        self.kind = kind
        self.text = text

    @property
    def is_missing(self) -> bool:
        """There is no such object, or no such container."""
        return issubclass(self.kind, FileNotFoundError) or self.status == 404

    @property
    def is_taken(self) -> bool:
        """A create met an object."""
        return issubclass(self.kind, exceptions.AlreadyExistsError)

    @property
    def is_other_content(self) -> bool:
        """A demanded tag was not that of the present object."""
        return issubclass(self.kind, exceptions.PreconditionError) or self.status == 412

    @property
    def is_past_the_end(self) -> bool:
        """A range began at or after the object's end."""
        return any(word in self.text for word in _PAST_THE_END)

    @property
    def is_unasked_whole(self) -> bool:
        """The reply to a ranged request was the whole object."""
        return any(word in self.text for word in _WHOLE)

    @property
    def status(self) -> int:
        """The HTTP status of the reply, 0 where none came."""
        found = _STATUS.search(self.text)
        return int(found[1]) if found else 0

    @property
    def code(self) -> str:
        """The service's own name of the error, "" where it gave none."""
        found = _CODE.search(self.text)
        return found[1] if found else ""

    def error(self, url: str) -> WStoreError:
        """What to raise."""
        if self.is_missing:
            what = "container" if self.code == "ContainerNotFound" else "object"
            return NotFound(self._said(f"there is no such {what}"), url=url)
        if self.is_other_content:
            return PreconditionFailed(self._said("the object has another content"), url=url)
        if any(word in self.text for word in _BAD_NAME):
            text = "a key under this prefix has an empty, '.' or '..' segment, which obstore cannot carry"
            return InvalidPath(text, url=url)
        denied = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        if issubclass(self.kind, denied) or self.status in {401, 403}:
            return AccessDenied(
                self._said("access denied: these credentials may not do this"), url=url
            )
        if self.status:
            return self._refused(url)
        if _TIMEOUT in self.text:
            return StoreTimeout("no byte within the idle timeout", url=url)
        if _CONNECT in self.text:
            return ConnectionFailed("no connection came about: check the endpoint", url=url)
        if _NETWORK in self.text:
            return ConnectionFailed("the connection failed", url=url)
        return StoreError(f"obstore failed ({self.kind.__name__})", url=url)

    def _refused(self, url: str) -> WStoreError:
        status = self.status
        if status in {408, 429} or status >= 500:
            # The reply's headers are lost, so after 429 a wait of one second is assumed.
            wait_s = 1.0 if status == 429 else None
            text = self._said("the service asks to try again later")
            return Unavailable(text, url=url, retry_after_s=wait_s)
        if status == 413:
            return InvalidArgument(self._said("the object is too large"), url=url)
        return StoreError(self._said("the service refused the request"), url=url)

    def _said(self, lead: str) -> str:
        facts = [f"HTTP {self.status}"] if self.status else []
        facts += [self.code] if self.code else []
        return f"{lead} ({', '.join(facts)})" if facts else lead


def attempt(call: Callable[[], T]) -> T:
    """The result of a call into obstore. Raises Failed, without obstore's error in its chain."""
    try:
        return call()
    except WStoreError:
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        failed = Failed(type(error), str(error))
    raise failed
