"""Store, Multipart, Copy, Sweep and Settle over one bucket of a service that speaks S3's XML.

Durable and atomic as the service is: a write is one PUT or one completed multipart upload. Two clients
share the work: `bulk` (obstore; without TLS `plain`) carries bodies of ranged reads, `wire` everything
else. In a forked child, where obstore would hang, the wire client reads as well.

Two services use it, `S3Store` and `stores.gcs.GcsStore`; `dialect` holds how they differ.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import TYPE_CHECKING

from wstore.errors import InvalidArgument, InvalidPath, IsADirectory, StoreError, WStoreError
from wstore.stores.base import (
    Copy,
    Entry,
    Expect,
    Multipart,
    ObjectInfo,
    Read,
    Settle,
    Sweep,
)
from wstore.stores.s3 import documents
from wstore.stores.s3.bulk import AskWire, Bulk
from wstore.stores.s3.maintenance import abort_old_uploads, copy_object
from wstore.stores.s3.plain import NotPlain, Plain
from wstore.stores.s3.reading import head, read_range
from wstore.stores.s3.upload import PiecewiseUpload
from wstore.stores.s3.wire import Request, Wire
from wstore.stores.s3.writing import put_object, write_id_of

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator

    from obstore.store import ObjectStore

    from wstore.stores.base import Capabilities, F
    from wstore.stores.s3.dialect import Authority, Service
    from wstore.stores.s3.reading import Opener

_FEATURES = (Multipart, Copy, Sweep, Settle)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_MAX_REPEATS = 1024
_COPY_PIECE = 1 << 30


class XmlStore:
    """One bucket of one service. Safe from any thread, and in a forked child.

    Args:
        authority: signs what the wire client sends.
        open_client: makes obstore's client of the same bucket, which signs by itself.
    """

    def __init__(
        self,
        bucket: str,
        config: Service,
        authority: Authority,
        open_client: Callable[[], ObjectStore],
        *,
        capabilities: Capabilities,
    ) -> None:
        if _BUCKET.fullmatch(bucket) is None:
            url = f"{config.dialect.scheme}://"
            raise InvalidPath(f"{bucket[:80]!r} is no bucket name", url=url)
        self._capabilities = capabilities
        self._wire = Wire(bucket, config, authority)
        self._bulk = Bulk(bucket, config.dialect, open_client)
        self._plain = Plain(self._wire) if self._wire.is_plain else None
        # Reads whose last attempt by the bulk client failed, as (key, end): the repeat, which ends at
        # the same byte, is the wire client's. Bounded: a caller may give up and never repeat.
        self._repeats: dict[tuple[str, int], None] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a store is not pickled; a StoragePath is, and opens its own")

    @property
    def url(self) -> str:
        return self._wire.url()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def stat(self, key: str) -> ObjectInfo:
        """One HEAD."""
        self._require_object(key)
        return head(self._wire, key)

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """One GET; a second request only where the first was refused and did not say why."""
        self._require_object(key)
        if self._plain is not None:
            with contextlib.suppress(NotPlain):
                return self._read(key, offset, length, buffer, tag, opener=self._plain)
        elif (mark := (key, offset + length)) not in self._repeats and self._bulk.carries(key):
            url = self._wire.url(key)
            try:
                return self._bulk.read(key, offset, length, buffer=buffer, tag=tag, url=url)
            except AskWire:
                pass
            except WStoreError as error:
                if error.retryable:
                    self._mark(mark)
                raise
        result = self._read(key, offset, length, buffer, tag, opener=self._wire)
        self._repeats.pop((key, offset + length), None)
        return result

    def _read(
        self,
        key: str,
        offset: int,
        length: int,
        buffer: memoryview | None,
        tag: str | None,
        *,
        opener: Opener,
    ) -> Read:
        return read_range(self._wire, key, offset, length, buffer=buffer, tag=tag, opener=opener)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """One PUT."""
        return put_object(self._wire, key, data, expect=expect, write_id=write_id)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """Pages of ListObjectsV2, as they are: nothing is hidden, also not "dir/" markers."""
        query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)]
        if not recursive:
            query.append(("delimiter", "/"))
        if start_after:
            query.append(("start-after", start_after))
        parse = partial(documents.parse_listing, dialect=self._wire.dialect)
        after = start_after.encode()
        token: str | None = None
        while True:
            more = [] if token is None else [("continuation-token", token)]
            reply = self._wire.call(Request("GET", query=(*query, *more)))
            page = self._wire.parsed(reply, prefix, parse)
            # "a/" sums up keys after "a/b" as well as before it; the contract is about its own name.
            yield from (entry for entry in page.entries if entry.key.encode() > after)
            if page.next_token is None:
                return
            if page.next_token == token:
                text = "the service gives the same page of a listing for ever"
                raise StoreError(text, url=self._wire.url(prefix))
            token = page.next_token

    def delete(self, key: str) -> None:
        """One DELETE; most services answer alike whether there was an object or not."""
        self._wire.call(Request("DELETE", key), accept=frozenset({200, 204}))

    def close(self) -> None:
        self._wire.close()
        self._bulk.close()
        if self._plain is not None:
            self._plain.close()

    def feature(self, kind: type[F]) -> F | None:
        return self if kind in _FEATURES and isinstance(self, kind) else None

    def upload(self, key: str, *, size: int | None = None) -> PiecewiseUpload:
        """Begin a multipart upload (one request)."""
        dialect = self._wire.dialect
        if size is not None and size > dialect.limits.max_object:
            text = f"an object of {size} bytes: {dialect.service} takes {dialect.limits.max_object}"
            raise InvalidArgument(text, url=self._wire.url(key))
        return PiecewiseUpload(self._wire, key, checksum=self._wire.config.checksum)

    def copy(self, source: str, target: str) -> ObjectInfo:
        """One copy, or pieces of it above what one request copies; the source is pinned by its tag."""
        limit = self._wire.dialect.max_copy
        return copy_object(self._wire, source, target, limit=limit, piece=_COPY_PIECE)

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        """Abort unfinished uploads that began longer ago than that, by the service's clock."""
        return abort_old_uploads(self._wire, prefix, older_than_s=older_than_s)

    def wrote(self, key: str, write_id: str) -> bool:
        """One HEAD."""
        return write_id_of(self._wire, key)[0] == write_id

    def _require_object(self, key: str) -> None:
        if not key:
            raise IsADirectory("this is the root of a bucket, not an object", url=self.url)

    def _mark(self, mark: tuple[str, int]) -> None:
        if len(self._repeats) >= _MAX_REPEATS:
            self._repeats.clear()
        self._repeats[mark] = None
