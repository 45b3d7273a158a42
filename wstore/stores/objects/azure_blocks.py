"""Uploads to Azure in blocks: Put Block, Put Block List ("Blob service REST API", Microsoft Learn).

Blocks wait under the blob's name, unseen, until a list names those that make the blob. There is no
request to drop them: Azure does, a week later, or with the next write of that name. So of two uploads
of one name the second to end finds its blocks gone, and says so.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from datetime import timedelta
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.store import AzureStore

from wstore.errors import OutcomeUnknown, StoreError, UnsupportedOperation
from wstore.stores.base import ObjectInfo
from wstore.stores.joining import joined_size
from wstore.stores.objects.unlogged import queries_unlogged
from wstore.stores.s3.bulk import Bulk
from wstore.stores.s3.dialect import normal_tag
from wstore.stores.s3.failures import Failure, printable
from wstore.stores.s3.replies import server_time
from wstore.stores.s3.wire import Request, Wire

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from wstore.stores.objects.azure import AzureConfig
    from wstore.stores.objects.store import ObstoreStore
    from wstore.stores.s3.dialect import Outgoing
    from wstore.stores.s3.replies import Reply

_SIGNED_FOR = timedelta(hours=24)
_CREATED = frozenset({201})
_MAX_KEY_CHARACTERS = 1024

Query = tuple[tuple[str, str], ...]


class Blocks:
    """Uploads to one container, whose URL errors name."""

    def __init__(self, url: str, container: str, config: AzureConfig) -> None:
        self._config = config
        below = urlsplit(config.base).path.strip("/")
        place = f"{below}/{container}" if below else container
        self._wire = _BlobWire(url, place, config)

    def begin(self, store: ObstoreStore, key: str) -> BlockUpload:
        """An upload of a key; no request for the blob itself is sent."""
        return BlockUpload(store, self._wire, key, self._signature(store, key))

    def close(self) -> None:
        """Close the idle connections."""
        self._wire.close()

    def _signature(self, store: ObstoreStore, key: str) -> Query:
        """What the query must hold to be allowed: nothing, where a header says who asks."""
        config = self._config
        if config.anonymous or config.key is not None:
            return ()
        if config.sas is not None:
            return tuple(parse_qsl(config.sas.text.removeprefix("?"), keep_blank_values=True))
        if config.token is not None:
            return ()
        if not Bulk.carries(key):
            # What obstore signs for such a name, Azure takes for a forgery.
            raise UnsupportedOperation(
                "large objects with such a name need an account key or a shared access signature",
                url=store.url_of(key),
            )

        def sign(client: ObjectStore) -> str:
            assert isinstance(client, AzureStore)
            return obstore.sign(client, "PUT", key, _SIGNED_FOR)

        return tuple(parse_qsl(urlsplit(store.run(key, sign)).query, keep_blank_values=True))


class _BlobWire(Wire):
    """Names blobs by the path's own URL, and keeps signatures, which are in queries, out of logs."""

    def __init__(self, url: str, place: str, config: AzureConfig) -> None:
        super().__init__(place, config, _Authority(config))
        self._url = url

    def url(self, key: str | None = None) -> str:
        return self._url + (f"/{printable(key, _MAX_KEY_CHARACTERS)}" if key else "")

    def call(self, request: Request, *, accept: frozenset[int] = frozenset({200})) -> Reply:
        with queries_unlogged():
            return super().call(request, accept=accept)


class BlockUpload:
    """One upload (`stores.base.Upload`)."""

    def __init__(self, store: ObstoreStore, wire: Wire, key: str, signature: Query) -> None:
        self._store = store
        self._wire = wire
        self._key = key
        self._signature = signature
        self._id = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._pieces: dict[int, tuple[int, int]] = {}
        self._failed: set[int] = set()
        self._asked = False  # to publish: whether that happened may be unknown
        self._ended = False

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Send one block. One of no bytes, which Azure refuses, is only remembered."""
        self._require_open()
        with self._lock:
            self._failed.add(number)
        if data.nbytes:
            query = (("comp", "block"), ("blockid", self._block(number)))
            headers = {"content-length": str(data.nbytes)}
            self._wire.call(self._request(query, headers, data), accept=_CREATED)
        with self._lock:
            self._pieces[number] = (offset, data.nbytes)
            self._failed.discard(number)

    def complete(self) -> ObjectInfo:
        """Publish. May be repeated: a list of the same blocks makes the same blob.

        Raises:
            StoreError: a piece is missing or failed, or the blocks are gone; nothing was published.
            OutcomeUnknown: the blocks are gone, and an earlier call may have published them.
        """
        self._require_open()
        url = self._store.url_of(self._key)
        with self._lock:
            pieces, failed = dict(self._pieces), set(self._failed)
        if failed:
            raise StoreError(f"piece {min(failed)} failed: nothing was published", url=url)
        size = joined_size(pieces, url)
        if not size:
            info = self._store.write(self._key, memoryview(b""))
            self._ended = True
            return info
        body = memoryview(_block_list([self._block(n) for n in sorted(pieces) if pieces[n][1]]))
        headers = {"content-length": str(body.nbytes)}
        request = self._request((("comp", "blocklist"),), headers, body)
        repeated, self._asked = self._asked, True
        reply = self._wire.call(request, accept=frozenset({201, 400}))
        if reply.status == 400:
            if Failure.of(reply).code != "InvalidBlockList":
                raise self._wire.error(reply, self._key)
            if repeated:
                text = "the pieces are gone: published and replaced since, or another write ended before"
                raise OutcomeUnknown(text, url=url)
            text = "the pieces are gone: another write of this key ended meanwhile, or replaced this one"
            raise StoreError(text, url=url)
        self._ended = True
        tag = normal_tag(reply.headers.get("etag", ""))
        return ObjectInfo(size, server_time(reply.headers), tag)

    def abort(self) -> None:
        """Nothing can be published any more; Azure forgets the blocks by itself."""
        self._ended = True

    def _require_open(self) -> None:
        if self._ended:
            text = "the upload was already completed or aborted"
            raise UnsupportedOperation(text, url=self._store.url_of(self._key))

    def _block(self, number: int) -> str:
        return base64.b64encode(f"{self._id}{number:06d}".encode()).decode()

    def _request(self, query: Query, headers: dict[str, str], body: memoryview) -> Request:
        return Request("PUT", self._key, (*query, *self._signature), headers, body, bulk=True)


class _Authority:
    """Signs with the account's key ("Authorize with Shared Key", Microsoft Learn), or shows a token."""

    def __init__(self, config: AzureConfig) -> None:
        self._config = config

    def __repr__(self) -> str:
        return "_Authority()"

    def authorised(self, request: Outgoing) -> dict[str, str]:
        config, headers = self._config, dict(request.headers)
        if config.anonymous:
            return headers
        if config.key is not None:
            headers["x-ms-date"] = formatdate(usegmt=True)
            signature = shared_key_signature(
                request, headers, config.account or "", config.key.text
            )
            headers["authorization"] = f"SharedKey {config.account}:{signature}"
        elif config.sas is None and config.token is not None:
            headers["authorization"] = f"Bearer {config.token.text}"
        return headers

    def renewed(self) -> bool:
        return False


def shared_key_signature(request: Outgoing, headers: dict[str, str], account: str, key: str) -> str:
    """The signature of a request without further conditions than its headers say."""
    own = sorted((name, value) for name, value in headers.items() if name.startswith("x-ms-"))
    length = headers.get("content-length", "")
    # Encoding, language, length, MD5, type, date, four conditions, range.
    standard = ["", "", "" if length == "0" else length, *[""] * 8]
    lines = [request.method, *standard, *(f"{name}:{value}" for name, value in own)]
    lines.append(f"/{account}{request.path}")
    lines += [f"{name.lower()}:{value}" for name, value in sorted(request.query)]
    digest = hmac.digest(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def _block_list(blocks: list[str]) -> bytes:
    named = "".join(f"<Latest>{block}</Latest>" for block in blocks)
    return f'<?xml version="1.0" encoding="utf-8"?><BlockList>{named}</BlockList>'.encode()
