"""From what fsspec and its clients raise to wstore's errors."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from fsspec.exceptions import FSTimeoutError

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    IsADirectory,
    MissingPackage,
    NoSpace,
    NotADirectory,
    NotFound,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Classes of clients that share no base with the builtin errors, by name: importing all of them would cost
# more than any request.
_CONNECTION = frozenset(
    {
        "ClientError",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "ReadTimeoutError",
        "ResponseStreamingError",
        "SSHException",
        "ServerDisconnectedError",
    }
)
_CREDENTIALS = frozenset(
    {"AuthenticationException", "NoCredentialsError", "PartialCredentialsError", "RefreshError"}
)
_LATER = frozenset({errno.EBUSY, errno.EAGAIN, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT})
_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAX_TEXT = 200


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Any error of the body as one of wstore's. Its traceback shows where the cause came from; the cause
    is not in its chain: it may quote anything."""
    found: WStoreError | None = None
    try:
        yield
    except WStoreError:
        raise
    except Exception as error:
        found = meaning(error, url)
        raise found.with_traceback(error.__traceback__) from error
    finally:
        if (
            found is not None
        ):  # the `with` is a handler too: there is no place outside to raise from
            found.__cause__ = found.__context__ = None


def meaning(error: Exception, url: str) -> WStoreError:
    """What an error of a client means."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = _text(error)
    if names & _CREDENTIALS:
        return CredentialsMissing(f"no usable credentials: {text}", url=url)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no such object ({text})", url=url)
    if isinstance(error, PermissionError):
        return AccessDenied(f"access denied ({text})", url=url)
    if isinstance(error, IsADirectoryError):
        return IsADirectory("this is a directory", url=url)
    if isinstance(error, NotADirectoryError | FileExistsError):
        return NotADirectory(f"a parent of this key is a file ({text})", url=url)
    if isinstance(error, TimeoutError | FSTimeoutError):
        return StoreTimeout(f"no answer in time ({text})", url=url)
    # paramiko's word for a connection that is gone is an OSError without a number.
    gone = isinstance(error, OSError) and str(error) == "Socket is closed"
    if gone or isinstance(error, ConnectionError | EOFError) or names & _CONNECTION:
        return ConnectionFailed(f"the connection failed ({text})", url=url)
    if isinstance(error, ImportError):
        return MissingPackage(f"fsspec needs another package: {text}", url=url)
    if isinstance(error, NotImplementedError):
        return UnsupportedOperation("fsspec's client cannot do this", url=url)
    if isinstance(error, OSError) and error.errno in _SPACE:
        return NoSpace(f"no space left ({text})", url=url)
    if isinstance(error, OSError) and error.errno in _LATER:
        return Unavailable(f"try again later ({text})", url=url)
    return StoreError(f"fsspec's client failed ({text})", url=url)


def _text(error: Exception) -> str:
    """Kind and reason on one line; the reason of what is no OSError may quote anything, and is left out."""
    said = str(error) if isinstance(error, OSError | ImportError) else ""
    shown = "".join(c if c.isprintable() else " " for c in said)[:_MAX_TEXT].strip()
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
