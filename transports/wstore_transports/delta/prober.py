"""One process of a host looks at the store for all; the others look at a local file."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Self

from wstore_transports.delta.host_lock import HostLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)

STALE_S = 5.0
"""A leader that has said nothing for so long (stopped, or its store hangs) is stood in for."""

_TIP = "tip"
_LOCK = "prober.lock"
_MAX_DIGITS = 12


def read_tip(directory: Path) -> int:
    """The newest record number that a leader wrote; 0 where there is none, or none that can be read.

    Only a hint, as `head.json` is: whoever acts on it reads the record from the store.
    """
    try:
        with open(directory / _TIP, "rb") as file:
            text = file.read(_MAX_DIGITS + 1)
    except OSError:
        return 0
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else 0


class Prober:
    """This waiter's part in looking for news. For one thread; a context manager around one wait.

    In each turn of a wait: if `is_leader()`, look at the store and `announce` what is there (also when it
    is the same as before: that is the sign of life); in any case act on `seen()`, which reads a local
    file only. When the leader ends, is killed, or leaves its wait, the next that asks becomes the
    leader. Nothing here raises: where the directory cannot be used, everyone looks for itself.

    Args:
        directory: the root's, in the shared cache; made on first use.
        stale_s: seconds without a sign of life after which others look for themselves too.
        clock: the time in seconds, never falling.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._stale_s = stale_s
        self._clock = clock
        self._lock: HostLock | None = None
        self._newest = 0
        self._alone = False  # the directory cannot be used
        self._sign: tuple[int, int] | None = None  # what the tip file looked like
        self._since = clock()
        self._own_sign: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._give_up_sharing(error)
        return self

    def __exit__(self, *_: object) -> None:
        self._resign()

    def is_leader(self) -> bool:
        """Whether this waiter is to look at the store now."""
        if self._alone or (self._lock is not None and self._lock.held):
            return True
        try:
            self._lock = HostLock.take(self._directory / _LOCK)
        except OSError as error:
            self._give_up_sharing(error)
            return True
        return self._lock is not None or self._stands_in()

    def announce(self, number: int) -> None:
        """Tell the others the newest record number that the store has shown, and that this one lives."""
        self._newest = max(self._newest, number)
        if self._alone:
            return
        tip = self._directory / _TIP
        try:
            if self._newest > read_tip(self._directory) or not tip.exists():
                _replace(tip, b"%d" % self._newest)
            else:
                os.utime(tip)
            self._own_sign = self._look()
        except OSError as error:
            self._give_up_sharing(error)

    def seen(self) -> int:
        """The newest record number that this waiter or a leader has seen; it never falls. 0: none."""
        self._newest = max(self._newest, read_tip(self._directory))
        return self._newest

    def _stands_in(self) -> bool:
        sign, now = self._look(), self._clock()
        if sign != self._sign:
            self._sign = sign
            if sign != self._own_sign:  # somebody else lives
                self._since = now
        return now - self._since >= self._stale_s

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._directory / _TIP)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _give_up_sharing(self, error: OSError) -> None:
        """From now on this waiter looks for itself; a held lock goes, so that others are not kept still."""
        _log.warning(
            "%s: cannot be shared, every engine looks at the store: %s", self._directory, error
        )
        self._alone = True
        self._resign()

    def _resign(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
