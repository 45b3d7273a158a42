"""Create one object exactly once, and know afterwards whether it was this caller who did."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wstore.errors import (
    AlreadyExists,
    ConnectionFailed,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
    WStoreError,
)
from wstore.stores.base import capabilities_at
from wstore.stores.probing import creates_exclusively

if TYPE_CHECKING:
    from wstore.path import StoragePath

_log = logging.getLogger(__name__)

_MAY_HAVE_LANDED = (ConnectionFailed, OutcomeUnknown, StoreTimeout, Unavailable)
_PAUSES_S = (0.0, 0.2, 1.0)


def require_exclusive(root: StoragePath) -> None:
    """Make sure that two publishers could not both create one object here. A few small requests.

    Where the store says itself that it cannot tell, there is nothing to try.

    Raises:
        UnsupportedOperation: the server takes the condition and ignores it, as some emulators do.
    """
    store = root.store
    if not capabilities_at(store, root.key).create_if_absent:
        return
    if not creates_exclusively(store, f"{root.key}/" if root.key else ""):
        raise UnsupportedOperation(
            "this server overwrote an object that was only to be created if absent: it ignores "
            "preconditions, so nothing keeps two publishers apart and no root may be published to here. "
            "Use a server that honours them",
            url=root.url,
        )


def create(path: StoragePath, data: bytes) -> bool:
    """Create the object with `data`; False when it exists with other content.

    A lost answer is settled by reading back, and where that finds nothing by asking for the same once
    more: a request that is still under way can only land with these very bytes. So True means "there,
    and these bytes", False means "another's", and an error means that nobody knows yet.

    On a store without create-if-absent this looks, then writes: right for one writer only.

    Raises:
        OutcomeUnknown: the answer was lost each time that the store was asked.
        The store's errors: refused.
    """
    if not capabilities_at(path.store, path.key).create_if_absent:
        return _create_alone(path, data)
    lost: WStoreError | None = None
    for pause in _PAUSES_S:
        time.sleep(pause)
        try:
            path.write_file(data, if_absent=True)
        except (UnsupportedOperation, InvalidArgument):
            raise  # nothing was sent
        except WStoreError as error:
            settled = _settle(path, data)
            if settled is not None:
                return settled
            if not isinstance(error, (AlreadyExists, *_MAY_HAVE_LANDED)):
                raise
            lost = error
            _log.warning("%s: the answer to a create was lost; asking again: %s", path.url, error)
        else:
            return True
    raise OutcomeUnknown(
        f"whether this was created is not known ({lost}); what the log shows decides", url=path.url
    ) from lost


def _settle(path: StoragePath, data: bytes) -> bool | None:
    """Whether the object is ours, another's, or (None) neither seen nor excluded."""
    try:
        return _holds(path, data)
    except WStoreError:
        return None


def _holds(path: StoragePath, data: bytes) -> bool:
    # One byte more than ours tells a longer object apart, with one request.
    return path.store.read(path.key, 0, len(data) + 1).data == data


def _create_alone(path: StoragePath, data: bytes) -> bool:
    try:
        return _holds(path, data)
    except NotFound:
        path.write_file(data)
        return True
