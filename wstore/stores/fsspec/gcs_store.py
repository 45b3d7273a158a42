"""Google Cloud Storage through its JSON API and gcsfs: for emulators, and where fsspec is the client.

The tag of an object is its generation, so reads are pinned, creates and replacements conditional, in the
service. A write is one upload; larger objects are pieces that the service composes (`gcs_upload`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import NotFound, ObjectChanged, Unavailable
from wstore.stores.base import Capabilities, Copy, Expect, Multipart, Read, Settle, Sweep
from wstore.stores.fsspec import gcs_upload
from wstore.stores.fsspec.gcs_calls import object_info, rewrite
from wstore.stores.fsspec.gcs_listing import entries
from wstore.stores.fsspec.gcs_replies import document, written_by
from wstore.stores.fsspec.gcs_session import Request, Session
from wstore.stores.fsspec.gcs_writing import LIMITS, put_object
from wstore.stores.gcs.dialect import generation

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from wstore.stores.base import Entry, F, ObjectInfo
    from wstore.stores.gcs.config import GcsConfig

_CAPABILITIES = Capabilities(
    create_if_absent=True,
    if_match=True,
    pieces=LIMITS,
    small_concurrency=16,
    overwrite_interval_s=1.0,
)
_FEATURES = (Multipart, Copy, Settle, Sweep)


class GcsJsonStore:
    """One bucket. Safe from any thread; a forked child opens connections of its own."""

    def __init__(self, bucket: str, config: GcsConfig) -> None:
        self._session = Session(bucket, config)

    def __repr__(self) -> str:
        return f"GcsJsonStore({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a store is not pickled; a StoragePath is, and opens its own")

    @property
    def url(self) -> str:
        return self._session.url()

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def stat(self, key: str) -> ObjectInfo:
        """One request."""
        self._require_key(key)
        return object_info(self._session, key)

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """One request, conditional on the generation: naming it would serve what a bucket that keeps old
        ones no longer has under this key. A second one only past the end, or to tell a missing object
        from another generation."""
        url = self._session.url(key)
        if tag is not None and not generation(tag):
            self.stat(key)
            raise ObjectChanged("no object ever had this tag", url=url)
        query = [("alt", "media"), ("ifGenerationMatch", tag or "")]
        headers = {"range": f"bytes={offset}-{offset + length - 1}"}
        request = Request("GET", self._path(key), query, headers)
        got = self._session.read(request, url, offset=offset, length=length, buffer=buffer)
        if not isinstance(got, Read):
            if got.status in {412, 416}:
                return self._beyond(key, offset, tag)
            raise self._session.error(got, url)
        if tag not in (None, got.info.tag):
            raise _changed(url)
        return got

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """One request; its CRC-32C is checked."""
        return put_object(self._session, key, data, expect=expect, write_id=write_id)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """Pages of objects; the pieces of unfinished uploads are left out."""
        listed = entries(self._session, prefix, recursive=recursive, start_after=start_after)
        return (entry for entry in listed if not gcs_upload.is_hidden(entry.key))

    def delete(self, key: str) -> None:
        """One request."""
        request = Request("DELETE", self._path(key))
        self._session.call(request, self._session.url(key), accept=frozenset({200, 204}))

    def close(self) -> None:
        self._session.close()

    def feature(self, kind: type[F]) -> F | None:
        return self if kind in _FEATURES and isinstance(self, kind) else None

    # Multipart

    def upload(self, key: str, *, size: int | None = None) -> gcs_upload.GcsUpload:
        """Begin an upload; no request yet."""
        return gcs_upload.GcsUpload(self._session, key)

    # Copy

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Rewrites inside the service, of one generation of the source, until it is whole."""
        self._require_key(source)
        return rewrite(self._session, source, target)

    # Settle

    def wrote(self, key: str, write_id: str) -> bool:
        """One request."""
        url = self._session.url(key)
        try:
            reply = self._session.call(
                Request("GET", self._path(key), (("fields", "metadata"),)), url
            )
        except NotFound:
            return False
        return written_by(document(reply, url)) == write_id

    # Sweep

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        """Remove the pieces of uploads whose youngest piece is that old, by the service's clock."""
        return gcs_upload.sweep(self._session, prefix, older_than_s=older_than_s)

    def _path(self, key: str) -> str:
        self._require_key(key)
        return self._session.object_path(key)

    def _require_key(self, key: str) -> None:
        if not key:
            raise NotFound("the root is not an object", url=self.url)

    def _beyond(self, key: str, offset: int, tag: str | None) -> Read:
        """There was nothing to read: at the end, or because the object is another one or none."""
        info, url = self.stat(key), self._session.url(key)
        if tag not in (None, info.tag):
            raise _changed(url)
        if info.size > offset:
            raise Unavailable("the object grew while it was being read", url=url)
        return Read(memoryview(b""), info)


def _changed(url: str) -> ObjectChanged:
    return ObjectChanged("the object was replaced while it was being read", url=url)
