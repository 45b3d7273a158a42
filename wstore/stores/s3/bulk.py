"""Bodies of ranged GETs through obstore, whose Rust client moves bytes without the interpreter lock.

It only carries what it can carry exactly: plain keys, in the process that started its runtime. What it
cannot, and every repeat after a failure, is the wire client's (`reading.read_range`).
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from wstore.errors import (
    BodyCut,
    BodyStalled,
    ConnectionFailed,
    NotFound,
    StoreError,
    StoreTimeout,
    Unavailable,
    WStoreError,
)
from wstore.stores import runtime
from wstore.stores.base import ObjectInfo, Read
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.reading import changed, require_tag, target

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore import GetOptions, GetResult
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from wstore.stores.s3.dialect import Dialect, Service

# Keys that obstore's path type takes and sends exactly as they are: no empty, "." or ".." segment (it
# refuses them), no slash at an end (it drops it), nothing whose escaping two clients may see in two ways.
_PLAIN = re.compile(r"(?!\.{1,2}(?:/|$))[\w.=+@,-]+(?:/(?!\.{1,2}(?:/|$))[\w.=+@,-]+)*", re.ASCII)

# While nobody competes for the interpreter lock, chunks of this size cost the least memory at no cost
# in CPU. While somebody does, each chunk waits its turn (5 ms for each busy thread), so the body is
# collected in Rust and taken in one piece. Bodies up to one chunk always are.
_CHUNK = 256 << 10
_PROBE_EVERY_S = 0.25
_BUSY_S = 0.003

# obstore names no status and no cause; its texts do.
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_TIMEOUT = "kind: Timeout"
_REFUSED = ("BareRedirect", "UnexpectedRange", "NotPartial", "InvalidCertificate")
_FOREVER = timedelta(days=365)
NO_RETRIES: RetryConfig = {"max_retries": 0, "retry_timeout": _FOREVER}


class AskWire(Exception):
    """obstore met a definite refusal whose words only the wire client can read: ask again, now."""


class _LockProbe:
    """Whether threads compete for the interpreter lock: measured, at most four times a second."""

    __slots__ = ("_busy", "_measured")

    def __init__(self) -> None:
        self._measured = -1.0
        self._busy = False

    def busy(self) -> bool:
        """The last finding. A wrong one costs speed or memory, nothing else; so no lock."""
        start = time.monotonic()
        if start - self._measured > _PROBE_EVERY_S:
            self._measured = start
            time.sleep(0)
            self._busy = time.monotonic() - start > _BUSY_S
        return self._busy


_probe = _LockProbe()


class Bulk:
    """obstore's client for one bucket; `open_client` makes it, and it never repeats anything."""

    def __init__(
        self, bucket: str, dialect: Dialect, open_client: Callable[[], ObjectStore]
    ) -> None:
        self._bucket = bucket
        self._dialect = dialect
        self._open_client = open_client
        self._client = PerProcess(self._open)

    @staticmethod
    def carries(key: str) -> bool:
        """Whether this key can be read here, in this process. obstore's runtime does not survive
        `os.fork()` (calls hang), so a child whose parent used it has none."""
        return runtime.is_usable() and _PLAIN.fullmatch(key) is not None

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None,
        tag: str | None,
        url: str,
    ) -> Read:
        """`Store.read` in one GET.

        Raises:
            AskWire: refused; the wire client will know why.
            Unavailable, StoreTimeout, BodyCut: anything else went wrong; the repeat is the wire
                client's.
        """
        options: GetOptions = {"range": (offset, offset + length)}
        if tag is not None and self._dialect.obstore_pin is not None:
            options[self._dialect.obstore_pin] = tag
        failure: WStoreError | AskWire
        try:
            result = obstore.get(self._client.get(), key, options=options)
        except (exceptions.BaseError, OSError, ValueError) as error:
            failure = self._refusal(error, tag, url)
        else:
            described = self._described(result, url)
            return receive(result, described, offset, length, buffer=buffer, tag=tag, url=url)
        # Raised here, outside of the handler, so that obstore's text stays out of the chain: it quotes
        # whole replies, and one to an expired token repeats the token.
        raise failure

    def close(self) -> None:
        """Forget the client of this process (the next read opens a new one)."""
        self._client.take()

    def _refusal(self, error: Exception, tag: str | None, url: str) -> WStoreError | AskWire:
        if isinstance(error, WStoreError):
            return error
        text = str(error)
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" in text:
                return NotFound(f"there is no bucket {self._bucket!r} (NoSuchBucket)", url=url)
            return NotFound("no such object (HTTP 404)", url=url)
        if isinstance(error, exceptions.PreconditionError) and tag is not None:
            return changed(url)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return AskWire()
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        odd = not status and any(word in text for word in _REFUSED)
        if odd or (400 <= status < 500 and status not in {408, 429}):
            return AskWire()
        return _unclear(text, status, url)

    def _described(self, result: GetResult, url: str) -> ObjectInfo:
        meta, dialect = result.meta, self._dialect
        tag = dialect.read_tag(meta[dialect.obstore_tag] or "")
        if not tag:
            text = f"the reply has no {dialect.tag_element}: is this {dialect.service}?"
            raise StoreError(text, url=url)
        return ObjectInfo(meta["size"], meta["last_modified"], tag)

    def _open(self) -> ObjectStore:
        runtime.note_use()
        return self._open_client()


def client_options(config: Service, bucket: str) -> ClientConfig:
    """obstore's HTTP settings: idle timeouts, and none on the total."""
    options: ClientConfig = {
        "allow_http": config.target(bucket).scheme == "http",
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "read_timeout": timedelta(seconds=config.idle_timeout_s),
        "timeout": _FOREVER,
        "user_agent": "wstore",
    }
    if config.ca_bundle is not None:
        try:
            options["root_certificate"] = Path(config.ca_bundle).read_bytes()
        except OSError as error:
            text = f"{config.dialect.ca_variable} cannot be read: {error}"
            raise StoreError(text) from error
    return options


def receive(
    result: GetResult,
    info: ObjectInfo,
    offset: int,
    length: int,
    *,
    buffer: memoryview | None,
    tag: str | None,
    url: str,
) -> Read:
    """Check what the reply says it holds, then take it."""
    first, end = result.range
    require_tag(info, tag, url)
    if (first, end) != (offset, min(offset + length, info.size)):
        raise StoreError(
            f"asked for {length} bytes from {offset}, the reply has {first} to {end}", url=url
        )
    wanted = end - first
    view = target(buffer, wanted)
    filled, text = 0, ""
    try:
        if wanted <= _CHUNK or _probe.busy():
            filled = _place(memoryview(result.bytes()), view, filled)
        else:
            for chunk in result.stream(min_chunk_size=_CHUNK):
                filled = _place(memoryview(chunk), view, filled)
    except exceptions.BaseError as error:
        text = str(error)
    if filled == wanted and not text:
        return Read(view, info)
    if not filled:
        raise _unclear(text, 0, url)
    cut = f"the body ended after {filled} of {wanted} bytes"
    kind = BodyStalled if _TIMEOUT in text else BodyCut
    raise kind(cut, url=url, read=Read(view[:filled], info))


def _place(chunk: memoryview, view: memoryview, at: int) -> int:
    """Copy a chunk, never past the end of what was asked; returns where the next one goes."""
    end = min(at + chunk.nbytes, view.nbytes)
    view[at:end] = chunk[: end - at]
    return end


def _unclear(text: str, status: int, url: str) -> WStoreError:
    """A failure that may pass. Its headers are lost, so after 429 a wait of one second is assumed."""
    if status:
        wait_s = 1.0 if status == 429 else None
        return Unavailable(f"the read failed (HTTP {status})", url=url, retry_after_s=wait_s)
    if _TIMEOUT in text:
        return StoreTimeout("no byte within the idle timeout", url=url)
    return ConnectionFailed("the connection failed", url=url)
