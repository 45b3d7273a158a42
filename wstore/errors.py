"""Every error that wstore raises: one tree, each class also the matching builtin.

An error names the URL it concerns and the cause; it never contains a secret. `retryable` is set where
the error is raised and read only by the retry wrapper. All errors pickle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wstore.stores.base import Read


class WStoreError(Exception):
    """Base of all errors of this package.

    Attributes:
        url: what the operation concerned, without secrets; "" when there is none.
        retryable: whether the same call may succeed when repeated (read by the retry wrapper only).
        retry_after_s: seconds that the server asked to wait before the next attempt, if it did.
    """

    retryable: bool = False

    def __init__(self, message: str, *, url: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.url = url
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.url}: {self.message}" if self.url else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


def _rebuild(kind: type[WStoreError], message: str, fields: dict[str, object]) -> WStoreError:
    error = kind(message)
    error.__dict__.update(fields)
    return error


class NotFound(WStoreError, FileNotFoundError):
    """There is no object under this key."""


class AlreadyExists(WStoreError, FileExistsError):
    """A create-if-absent met an object."""


class AccessDenied(WStoreError, PermissionError):
    """The store refused the credentials, or the file mode forbids it."""


class CredentialsMissing(AccessDenied):
    """No credentials were found, or they could not be refreshed."""


class IsADirectory(WStoreError, IsADirectoryError):
    """A file was expected and this is a directory or a prefix."""


class NotADirectory(WStoreError, NotADirectoryError):
    """A directory was expected and this, or one of its parents, is a file."""


class DirectoryNotEmpty(WStoreError, OSError):
    """A directory that still has entries cannot be removed this way."""


class InvalidPath(WStoreError, ValueError):
    """A URL or a name that is malformed, escapes its root, or has an unknown scheme."""


class InvalidArgument(WStoreError, ValueError):
    """A value outside its domain: a negative offset, a read-only buffer, an object over a limit."""


class UnsupportedOperation(WStoreError, NotImplementedError):
    """The store cannot do this; nothing was sent."""


class PreconditionFailed(WStoreError):
    """`if_match` met another content than the tag names."""


class ObjectChanged(WStoreError):
    """The object was replaced, or a local source changed, while it was being read."""


class OutcomeUnknown(WStoreError):
    """A conditional write's answer was lost and the store cannot tell whether it took effect."""


class IntegrityError(WStoreError, ValueError):
    """Bytes that do not match their hash, or a document that does not parse as what it claims."""


class StateLost(IntegrityError):
    """Memory that was being changed could not be brought back to what it was: load the weights again."""


class UnalignedSlice(WStoreError, ValueError):
    """A delta of a block cannot be applied to the part of the block that is held."""


class NewerFormat(WStoreError):
    """Written by a newer format than this version reads."""


class WaitTimeout(WStoreError, TimeoutError):
    """What was waited for did not appear before the deadline."""


class Cancelled(WStoreError):
    """The caller's cancel event was set."""


class ForkedProcess(WStoreError, RuntimeError):
    """A client that cannot cross `os.fork()` was used in the child."""


class MissingPackage(WStoreError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""


class NoSpace(WStoreError, OSError):
    """The device or the quota is full."""


class StoreError(WStoreError, OSError):
    """The store failed in a way that repeating will not help."""


class StoreTimeout(WStoreError, TimeoutError):
    """A request made no progress for the idle timeout."""

    retryable = True


class ConnectionFailed(WStoreError, ConnectionError):
    """The endpoint could not be reached, or the connection broke before the reply was whole."""

    retryable = True


class Unavailable(WStoreError, OSError):
    """The store answered 408, 429 or 5xx, or the like (ESTALE): try again later."""

    retryable = True


class BodyCut(ConnectionFailed):
    """A reply's body ended early; what came is kept so that a retry resumes at that byte.

    Attributes:
        read: the bytes that did arrive, with the `ObjectInfo` they belong to (None after pickling).
    """

    def __init__(self, message: str, *, url: str = "", read: Read | None = None) -> None:
        super().__init__(message, url=url)
        self.read = read

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, {**self.__dict__, "read": None})


class BodyStalled(BodyCut, StoreTimeout):
    """A reply's body stood still for the idle timeout; what came before is kept, as in `BodyCut`."""
