"""Google Cloud Storage's XML API in memory, written from its public description.

    with FaultServer(service=FakeGcs(token="t")) as server:
        ...     # point a client at server.url with that token, bucket server.bucket

Every content has a generation, which `x-goog-if-generation-match` names on GET, HEAD, PUT and DELETE ("0":
no object) and `x-goog-copy-source-if-generation-match` on a copy; `x-goog-hash` is checked. An upload takes
no condition, and is refused where it has no piece. A DELETE of nothing is 404. Source: "XML API reference"
and "Quotas & limits", Cloud Storage documentation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time

import google_crc32c

from wstore.testing.fake_messages import Refused, Reply, Request, StoredObject
from wstore.testing.fake_service import FakeService

_MATCH = "x-goog-if-generation-match"
_TOKENS = "oauth-token"


class FakeGcs(FakeService):
    """Buckets in memory that answer as Google Cloud Storage does.

    It also gives tokens, as Google's OAuth server does to service accounts: POST to `/oauth-token`.

    Args:
        token: requests without this bearer token are refused. None: anybody may ask.
        overwrite_interval_s: a key that was written less than so many seconds ago is not overwritten
            (429 SlowDown). Google: 1.
        min_piece, max_pieces: as in `FakeService`.

    Attributes:
        grants: how many tokens were given.
    """

    metadata = "x-goog-meta-"
    copy_source = "x-goog-copy-source"
    conditions = frozenset({_MATCH})
    request_id = "x-guploader-uploadid"

    def __init__(
        self,
        *,
        token: str | None = None,
        overwrite_interval_s: float = 0.0,
        min_piece: int = 1,
        max_pieces: int = 10_000,
    ) -> None:
        super().__init__(min_piece=min_piece, max_pieces=max_pieces)
        self.token = token
        self.grants = 0
        self._for_good = False
        self._overwrite_interval_s = overwrite_interval_s

    def handle(self, request: Request) -> Reply:
        """Serve one request, to the storage or for a token."""
        if (request.method, request.bucket) == ("POST", _TOKENS):
            return self._grant()
        return super().handle(request)

    def revoke(self, *, for_good: bool = False) -> None:
        """From now on only a token that is given later is accepted; none at all `for_good`."""
        self.token, self._for_good = secrets.token_hex(16), for_good

    def check_access(self, request: Request) -> None:
        shown = request.headers.get("authorization", "")
        if self.token is not None and shown != f"Bearer {self.token}":
            raise Refused(401, "AuthenticationRequired")
        if any(character in request.key for character in "\r\n"):
            raise Refused(400, "InvalidObjectName")

    def check_digests(self, request: Request) -> None:
        known = {
            "crc32c": google_crc32c.value(request.body).to_bytes(4, "big"),
            "md5": hashlib.md5(request.body).digest(),
        }
        for part in request.headers.get("x-goog-hash", "").split(","):
            name, _, text = part.strip().partition("=")
            if name in known and base64.b64decode(text) != known[name]:
                raise Refused(400, "BadDigest")

    def check_read(self, request: Request, held: StoredObject) -> None:
        if request.headers.get(_MATCH, str(held.generation)) != str(held.generation):
            raise Refused(412, "PreconditionFailed")

    def check_write(self, request: Request, held: StoredObject | None) -> None:
        wanted = request.headers.get(_MATCH)
        if wanted is not None and request.method == "POST":
            raise Refused(400, "InvalidArgument")  # an upload takes no condition
        present = "0" if held is None else str(held.generation)
        if wanted not in (None, present):
            raise Refused(412, "PreconditionFailed")
        if held is not None and time.time() - held.modified_s < self._overwrite_interval_s:
            raise Refused(429, "SlowDown")

    def check_copy(self, request: Request, source: StoredObject) -> None:
        wanted = request.headers.get(f"{self.copy_source}-if-generation-match")
        if wanted not in (None, str(source.generation)):
            raise Refused(412, "PreconditionFailed")

    def described(self, held: StoredObject) -> dict[str, str]:
        crc = base64.b64encode(google_crc32c.value(held.data).to_bytes(4, "big")).decode()
        return {
            "etag": f'"{held.etag}"',
            "x-goog-generation": str(held.generation),
            "x-goog-metageneration": "1",
            "x-goog-hash": f"crc32c={crc}",
            "x-goog-stored-content-length": str(len(held.data)),
        }

    def listed(self, held: StoredObject) -> str:
        return (
            f"<Generation>{held.generation}</Generation><MetaGeneration>1</MetaGeneration>"
            f"<ETag>&quot;{held.etag}&quot;</ETag>"
        )

    def delete(self, request: Request, held: StoredObject | None) -> Reply:
        if held is None:
            raise Refused(404, "NoSuchKey")
        self.check_read(request, held)
        self.drop(request)
        return Reply(204)

    def _grant(self) -> Reply:
        self.grants += 1
        granted = f"granted-{self.grants}"
        if not self._for_good:
            self.token = granted
        body = {"access_token": granted, "expires_in": 3600, "token_type": "Bearer"}
        return Reply(200, {"content-type": "application/json"}, json.dumps(body).encode())
