"""Whether a server keeps what it promises, tried out: some accept a condition and ignore it."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wstore.errors import AlreadyExists, NotFound, WStoreError
from wstore.stores.base import Expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.stores.base import Store

_log = logging.getLogger(__name__)

_NAME = re.compile(r"probe-[0-9a-f]{32}")


def creates_exclusively(store: Store, prefix: str) -> bool:
    """Whether `Expect.ABSENT` binds here: a random object is created twice, then removed.

    Costs two or three small requests. Where directories exist the kernel decides, and nothing is tried.

    Args:
        prefix: the object's key begins with it; "" or ends with "/".

    Raises:
        The store's errors: writing is refused, or the store is away.
    """
    if store.capabilities.directories:
        return True
    key = f"{prefix}probe-{secrets.token_hex(16)}"
    try:
        for body in (b"first", b"second"):
            store.write(key, memoryview(body), expect=Expect.ABSENT)
    except AlreadyExists:
        return True
    else:
        return False
    finally:
        _remove(store, key)


def left_probes(store: Store, prefix: str, *, older_than_s: float) -> Iterator[str]:
    """The keys of probes that were killed before they cleaned up behind them. One listing.

    A probe under way must not be touched, or it would find that its condition does not bind.

    Args:
        prefix: as given to `creates_exclusively`.
        older_than_s: by this machine's clock and the server's: leave far more than they may differ.
    """
    if store.capabilities.directories:
        return
    now = datetime.now(UTC)
    for entry in store.list(prefix, recursive=False):
        if entry.info is None or not _NAME.fullmatch(entry.key[len(prefix) :]):
            continue
        if (now - entry.info.modified).total_seconds() >= older_than_s:
            yield entry.key


def _remove(store: Store, key: str) -> None:
    try:
        with contextlib.suppress(NotFound):
            store.delete(key)
    except WStoreError as error:
        _log.warning("a probe of the store was left behind as %s: %s", key, error)
