"""Azurite, Microsoft's emulator of Azure Storage, on a loopback port; and a back door to its blobs.

It is a program for node: on PATH, or beside this Python, where the Makefile installs it. Nothing is
installed here. The back door signs by itself and shares no code with the store.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from wstore.errors import MissingPackage, StoreError
from wstore.testing.guarding import (
    ATTEMPTS,
    Exited,
    free_ports,
    guarded,
    tail_of,
    until_ready,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# "Use the Azurite emulator for local Azure Storage development", Microsoft Learn.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_VERSION = "2023-11-03"


@dataclass(frozen=True, slots=True)
class AzureEndpoint:
    """Where an Azurite listens: "http://127.0.0.1:PORT/devstoreaccount1"."""

    url: str

    def environment(self) -> dict[str, str]:
        """The variables that point a client at it."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.url,
        }


def azurite_is_missing() -> str:
    """What is missing, and how to get it; "" where `azurite_server` can start it."""
    if shutil.which("node") is None:
        return "node is not installed"
    if _program() is None:
        return "Azurite is not installed (`make test` does it where npm is; else: npm install -g azurite)"
    return ""


@contextmanager
def azurite_server(directory: Path) -> Iterator[AzureEndpoint]:
    """An Azurite that keeps its blobs in memory and its log under `directory`.

    Raises:
        MissingPackage: it is not installed (`azurite_is_missing`).
        StoreError: it did not come up; the message holds the end of its log.
    """
    program = _program()
    if program is None:
        raise MissingPackage(f"no Azurite: {azurite_is_missing()}")
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "azurite.log"
    for _ in range(ATTEMPTS):
        (port,) = free_ports(1)
        command = [
            program,
            "--blobHost=127.0.0.1",
            f"--blobPort={port}",
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            "--silent",
        ]
        endpoint = AzureEndpoint(f"http://127.0.0.1:{port}/{ACCOUNT}")
        with guarded(command, log, dict(os.environ)) as process:
            try:
                until_ready(process, partial(_answers, endpoint), log)
            except Exited:
                continue
            yield endpoint
            return
    raise StoreError(f"Azurite did not start in {ATTEMPTS} attempts: {tail_of(log)}")


def create_container(endpoint: AzureEndpoint, name: str) -> None:
    """Make a container."""
    _expect(_request(endpoint, "PUT", name, query={"restype": "container"}), 201)


def get_blob(endpoint: AzureEndpoint, container: str, key: str) -> bytes | None:
    """The blob's bytes, or None."""
    status, body = _request(endpoint, "GET", f"{container}/{quote(key, safe='/')}")
    if status == 404:
        return None
    _expect((status, body), 200)
    return body


def put_blob(endpoint: AzureEndpoint, container: str, key: str, data: bytes) -> None:
    """Write a blob."""
    headers = {"x-ms-blob-type": "BlockBlob"}
    path = f"{container}/{quote(key, safe='/')}"
    _expect(_request(endpoint, "PUT", path, body=data, headers=headers), 201)


def _folder() -> Path:
    return Path(sys.prefix) / "azurite"


def _program() -> str | None:
    beside = _folder() / "node_modules" / ".bin" / "azurite-blob"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("azurite-blob")


def _answers(endpoint: AzureEndpoint) -> bool:
    try:
        return _request(endpoint, "GET", "", query={"comp": "list"})[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _expect(answer: tuple[int, bytes], status: int) -> None:
    if answer[0] != status:
        raise StoreError(f"Azurite answered {answer[0]}: {answer[1][:300]!r}")


def _request(
    endpoint: AzureEndpoint,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> tuple[int, bytes]:
    """One request, signed with the account's key ("Authorize with Shared Key", Microsoft Learn)."""
    parts = urlsplit(endpoint.url)
    target = f"{parts.path}/{path}" if path else f"{parts.path}/"
    pairs = sorted((query or {}).items())
    own = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION, **(headers or {})}
    signed = "\n".join(
        [
            method,
            *("", "", str(len(body)) if body else "", *[""] * 8),
            *(f"{name}:{value}" for name, value in sorted(own.items())),
            f"/{ACCOUNT}{target}",
            *(f"{name}:{value}" for name, value in pairs),
        ]
    )
    digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    own["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    if pairs:
        target += "?" + "&".join(f"{name}={value}" for name, value in pairs)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, target, body if method == "PUT" else None, own)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()
