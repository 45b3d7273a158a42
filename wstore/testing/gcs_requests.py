"""Requests to an emulator of Google Cloud Storage in their plainest form: the back door of tests.

It shares no code with the stores: one connection a request, no retries, no streaming.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from wstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping


_OTHERS = ("GOOGLE_", "CLOUDSDK_", "WSTORE_GCS_", "STORAGE_EMULATOR_HOST")


@dataclass(frozen=True, slots=True)
class GcsEndpoint:
    """Where an emulator listens: "http://host:port"."""

    url: str

    def environment(self) -> dict[str, str]:
        """The variables that point any client at this emulator."""
        return {"STORAGE_EMULATOR_HOST": self.url}

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment in which every client reaches this emulator, and nobody's endpoint or identity
        is left."""
        kept = {name: value for name, value in environment.items() if not name.startswith(_OTHERS)}
        return kept | self.environment()


def send(
    endpoint: GcsEndpoint,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 30.0,
) -> tuple[int, bytes]:
    """One request; its status and the whole body."""
    parts = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def create_gcs_bucket(endpoint: GcsEndpoint, name: str) -> None:
    """Make a bucket. Raises StoreError where the emulator refuses."""
    headers = {"content-type": "application/json"}
    body = json.dumps({"name": name}).encode()
    status, said = send(
        endpoint, "POST", "/storage/v1/b?project=wstore", headers=headers, body=body
    )
    _require(status, said, endpoint, 200)


def get_gcs_object(endpoint: GcsEndpoint, bucket: str, key: str) -> bytes | None:
    """The object's bytes, None where there is none."""
    status, body = send(endpoint, "GET", f"{_path(bucket)}/{quote(key, safe='')}?alt=media")
    if status == 404:
        return None
    _require(status, body, endpoint, 200)
    return body


def put_gcs_object(endpoint: GcsEndpoint, bucket: str, key: str, data: bytes) -> None:
    """Write an object."""
    path = f"/upload{_path(bucket)}?uploadType=media&name={quote(key, safe='')}"
    headers = {"content-type": "application/octet-stream"}
    status, said = send(endpoint, "POST", path, headers=headers, body=data)
    _require(status, said, endpoint, 200)


def _path(bucket: str) -> str:
    return f"/storage/v1/b/{bucket}/o"


def _require(status: int, body: bytes, endpoint: GcsEndpoint, wanted: int) -> None:
    if status != wanted:
        raise StoreError(f"the emulator answered {status}: {body[:200]!r}", url=endpoint.url)
