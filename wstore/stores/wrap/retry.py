"""The one place that repeats failed operations, and settles what a lost answer left open.

Back-off is exponential with full jitter (each pause is random between 0 and a growing bound), which
spreads clients that failed together: M. Brooker, "Exponential Backoff And Jitter", AWS, 2015.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wstore import errors
from wstore.stores.base import Expect, Read, Settle
from wstore.stores.wrap.base import Call, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import ObjectInfo, Store

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LASTING_S = 3.0
# Of its own: the state of the `random` module is the user's, who may have seeded it for a training run.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to insist.

    Attributes:
        deadline_s: from the first failure, or from the last one before which bytes came; no attempt
            starts later. An attempt under way is left to the store's own timeouts, so a slow transfer
            that makes progress finishes, and has all of this time when it breaks after hours.
        first_pause_s: bound of the first random pause; it doubles with each failure.
        longest_pause_s: bound of that doubling. What a server asks for (Retry-After) may be longer.
    """

    deadline_s: float = 120.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0


class Retry(Wrapper):
    """Repeats what failed with a `retryable` error, until it works or the deadline has passed.

    - A read whose body was cut continues at the next byte, pinned to the content that it began with.
    - A conditional write that meets an object after an attempt of its own may have landed asks whose
      that is (`Settle.wrote`): its own is a success, another's the error, and `OutcomeUnknown` where the
      store cannot tell. When the deadline passes before an answer came, the last error is raised and
      the outcome is not known either.
    - A delete that finds nothing, after an attempt that may have landed, is a success.
    - Errors that are not retryable (not found, denied, precondition) pass at once.
    """

    def __init__(
        self,
        inner: Store,
        policy: RetryPolicy = RetryPolicy(),
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = _random.uniform,
    ) -> None:
        """`sleep`, `clock` (monotonic seconds) and `uniform` are replaced by tests."""
        super().__init__(inner)
        self._policy = policy
        self._sleep = sleep
        self._clock = clock
        self._uniform = uniform

    def around(self, call: Call, run: Callable[[], T]) -> T:
        patience = _Patience(self._policy, self._sleep, self._clock, self._uniform)
        while True:
            try:
                return run()
            except errors.WStoreError as error:
                if not error.retryable:
                    raise
                patience.pause(call, error)

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        progress = _ReadProgress(self._inner, key, offset, length, buffer, tag)
        return self.around(Call("read", key, offset, length), progress.attempt)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        call = Call("write", key, length=len(data), expect=expect)
        if expect is Expect.ANY:
            return super().write(key, data, expect=expect, write_id=write_id)
        attempts = _ConditionalWrite(
            self._inner, key, data, expect, write_id or secrets.token_hex(16)
        )
        return self.around(call, attempts.attempt)

    def delete(self, key: str) -> None:
        may_have_landed = False

        def attempt() -> None:
            nonlocal may_have_landed
            try:
                self._inner.delete(key)
            except errors.NotFound:
                if not may_have_landed:
                    raise
            except errors.WStoreError as error:
                may_have_landed = may_have_landed or error.retryable
                raise

        self.around(Call("delete", key), attempt)


class _Patience:
    """One operation's pauses: how many there were, and until when there may be more.

    The time counts from the first failure, and anew from a cut that brought bytes: how long an operation
    worked before says nothing about how long the service may be away.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        uniform: Callable[[float, float], float],
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._clock = clock
        self._uniform = uniform
        self._failing_since: float | None = None
        self._failed_at: float | None = None
        self._failures = 0
        self._told = False

    def pause(self, call: Call, error: errors.WStoreError) -> None:
        """Wait before the next attempt; raises `error` when that would begin after the deadline."""
        policy, now = self._policy, self._clock()
        moved = (
            isinstance(error, errors.BodyCut)
            and error.read is not None
            and len(error.read.data) > 0
        )
        # A body that stands still again and again is not moving on, unless it moved for long before.
        stood = isinstance(error, errors.BodyStalled) and (
            self._failed_at is None or now - self._failed_at < 2 * policy.deadline_s
        )
        self._failed_at = now
        if moved and not stood:
            # It moves on: no reason to slow down or to lose patience.
            self._failing_since, self._failures = now, 0
        if self._failing_since is None:
            self._failing_since = now
        bound = min(policy.longest_pause_s, policy.first_pause_s * 2 ** min(self._failures, 30))
        self._failures += 1
        # What the server asked for is the least, and jitter on top keeps clients apart.
        pause = (error.retry_after_s or 0.0) + self._uniform(0.0, bound)
        elapsed = now - self._failing_since
        if elapsed + pause > policy.deadline_s:
            error.add_note(
                f"gave up {call.op} after {elapsed:.1f} s of failures (deadline {policy.deadline_s} s)"
            )
            raise error
        self._tell(call, error, elapsed, pause)
        self._sleep(pause)

    def _tell(self, call: Call, error: errors.WStoreError, elapsed: float, pause: float) -> None:
        """Log each repeat for who debugs; one that has lasted for everybody, once an operation."""
        _log.debug("%s of %s failed (%s), again in %.2f s", call.op, call.key, error, pause)
        if elapsed > _LASTING_S and not self._told:
            self._told = True
            patience = self._policy.deadline_s - elapsed
            _log.warning("%s fails (%s); trying for another %.0f s", call.op, error, patience)


class _ReadProgress:
    """One ranged read over several attempts: what came, and from which content."""

    def __init__(
        self,
        store: Store,
        key: str,
        offset: int,
        length: int,
        buffer: memoryview | None,
        tag: str | None,
    ) -> None:
        self._store = store
        self._key = key
        self._offset = offset
        self._length = length
        self._buffer = buffer
        self._tag = tag
        self._done = 0
        self._parts: list[memoryview] = []

    def attempt(self) -> Read:
        """Read what is missing. A cut keeps what came and pins the rest to the same content."""
        try:
            last = self._store.read(
                self._key,
                self._offset + self._done,
                self._length - self._done,
                buffer=None if self._buffer is None else self._buffer[self._done :],
                tag=self._tag,
            )
        except errors.BodyCut as cut:
            if cut.read is None:
                raise
            last = cut.read
            self._keep(last)
            if self._done < self._length:
                raise
        else:
            self._keep(last)
        return Read(self._whole(), last.info)

    def _keep(self, read: Read) -> None:
        self._tag = read.info.tag
        self._done += len(read.data)
        if self._buffer is None:
            self._parts.append(read.data)

    def _whole(self) -> memoryview:
        if self._buffer is not None:
            return self._buffer[: self._done]
        return self._parts[0] if len(self._parts) == 1 else memoryview(b"".join(self._parts))


class _ConditionalWrite:
    """One logical write over several attempts, all stamped with the same id."""

    def __init__(
        self, store: Store, key: str, data: memoryview, expect: Expect | str, write_id: str
    ) -> None:
        self._store = store
        self._key = key
        self._data = data
        self._expect = expect
        self._id = write_id
        self._may_have_landed = False

    def attempt(self) -> ObjectInfo:
        """Write; after a lost answer, a met object may be our own."""
        try:
            return self._store.write(self._key, self._data, expect=self._expect, write_id=self._id)
        except (errors.AlreadyExists, errors.PreconditionFailed) as error:
            if not self._may_have_landed:
                raise
            return self._settle(error)
        except errors.WStoreError as error:
            if error.retryable:
                self._may_have_landed = True
            elif self._may_have_landed:
                # This attempt was refused for good, which says nothing about the one before.
                raise errors.OutcomeUnknown(
                    "an earlier attempt of this write lost its answer, and the repeat was refused "
                    f"({error.message}): read the object back",
                    url=error.url,
                ) from error
            raise

    def _settle(self, error: errors.WStoreError) -> ObjectInfo:
        settle = self._store.feature(Settle)
        if settle is None:
            raise errors.OutcomeUnknown(
                "an earlier attempt of this write lost its answer, and this store cannot tell whose "
                "the present object is: read it back and compare",
                url=error.url,
            ) from error
        if not settle.wrote(self._key, self._id):
            raise error
        info, size = self._store.stat(self._key), self._data.nbytes
        if info.size != size:
            text = (
                f"{size} bytes were sent by an attempt that lost its answer, {info.size} are stored"
            )
            raise errors.IntegrityError(text, url=error.url) from error
        return info
