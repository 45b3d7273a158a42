"""Other threads run while a read waits for its bytes: on every client that reads. Nothing is timed.

The bytes of the read come only once another thread of this process has counted: a client that waits with
the interpreter lock in its hands keeps that thread from counting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from wstore.stores.base import MiB
from wstore.testing.certificates import make_identity
from wstore.testing.fault_server import FaultServer
from wstore.testing.fuse_mounts import DEVICE, FuseMount, fuse_is_missing
from wstore.testing.gcs_requests import create_gcs_bucket, put_gcs_object
from wstore.testing.s3_requests import put_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import MakeBucket
    from wstore.stores.base import Store
    from wstore.testing.gcs_requests import GcsEndpoint
    from wstore.testing.s3_requests import S3Endpoint
    from wstore.testing.servers import SeaweedEndpoint

SIZE = 8 * MiB
DATA = os.urandom(MiB) * 8
GATE = Path(__file__).with_name("gate.py")
HELD_S = 20  # then the read is broken off, and the test fails


@contextmanager
def gate(url: str) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """A proxy before a server: its URL, a wait until it holds an answer back, and what lets go."""
    parts = urlsplit(url)
    command = [sys.executable, "-S", str(GATE), str(parts.hostname), str(parts.port), str(HELD_S)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        held, let_go = process.stdout.readline, process.stdin
        url = f"{parts.scheme}://127.0.0.1:{int(held())}"
        yield url, held, lambda: print("go", file=let_go, flush=True)


def check_others_count(
    store: Store, key: str, held: Callable[[], object], let_go: Callable[[], object]
) -> None:
    """The whole object in one read, while another thread counts to 1000 before the rest may come."""
    counted = 0

    def count() -> None:
        nonlocal counted
        held()
        for _ in range(1000):
            counted += 1
        let_go()

    counter = threading.Thread(target=count)
    counter.start()
    buffer = bytearray(SIZE)
    read = store.read(key, 0, SIZE, buffer=memoryview(buffer))
    assert counted == 1000
    counter.join()
    assert len(read.data) == SIZE
    assert buffer == DATA


@pytest.mark.parametrize("tls", [False, True])
def test_s3(tls: bool, tmp_path: Path) -> None:
    """Without TLS wstore's own client, with TLS obstore."""
    from wstore.stores.s3 import S3Config, S3Store

    identity = make_identity(tmp_path)
    with FaultServer(tls=identity.context if tls else None) as server:
        server.put("k", DATA)
        with gate(server.endpoint.url) as (url, held, let_go):
            environment = server.endpoint.environment()
            environment |= {"AWS_ENDPOINT_URL": url, "AWS_CA_BUNDLE": str(identity.ca_bundle)}
            store = S3Store(server.bucket, S3Config.from_environment(environment))
            check_others_count(store, "k", held, let_go)
            store.close()
        by_obstore = "accept-encoding" not in server.requests("GET", "k")[-1].request.headers
        assert by_obstore is tls


def test_http(fault_server: FaultServer) -> None:
    from wstore.stores.objects.http_store import HttpConfig, HttpStore

    fault_server.put("k", DATA)
    with gate(fault_server.endpoint.url) as (url, held, let_go):
        store = HttpStore("http", url.removeprefix("http://"), HttpConfig())
        check_others_count(store, f"{fault_server.bucket}/k", held, let_go)
        store.close()


def test_gcs_json(gcs: GcsEndpoint) -> None:
    from wstore.stores.fsspec.gcs_store import GcsJsonStore
    from wstore.stores.gcs.config import GcsConfig

    create_gcs_bucket(gcs, "wstore-gil")
    put_gcs_object(gcs, "wstore-gil", "k", DATA)
    with gate(gcs.url) as (url, held, let_go):
        config = GcsConfig.from_environment({"STORAGE_EMULATOR_HOST": url})
        store = GcsJsonStore("wstore-gil", config)
        check_others_count(store, "k", held, let_go)
        store.close()


@pytest.mark.long
def test_s3fs(moto: S3Endpoint, bucket: MakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    from wstore.stores.fsspec.fsspec_store import FsspecStore

    name = bucket(moto)
    put_object(moto, name, "k", DATA)
    with gate(moto.url) as (url, held, let_go):
        for variable, value in {**moto.environment(), "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(variable, value)
        store = FsspecStore("s3", name)
        check_others_count(store, "k", held, let_go)
        store.close()


@pytest.mark.long
@pytest.mark.skipif(fuse_is_missing(), reason=f"{DEVICE} is missing: there is no mount to stop")
def test_posix(seaweed: SeaweedEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mount whose daemon stands still from the moment in which the file is read."""
    from wstore.stores.posix_store import PosixStore

    mount = FuseMount(tmp_path / "mount", seaweed.filer, tmp_path / "work")
    path = mount.path / f"gil-{os.getpid()}"
    with mount.mounted():
        path.write_bytes(DATA)
    real, held = os.preadv, threading.Event()
    with mount.mounted() as group:  # a new daemon, and nothing in the kernel's cache

        def stopping(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            if not held.is_set():
                os.killpg(group, signal.SIGSTOP)
                held.set()
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", stopping)
        with rescued(group):
            check_others_count(
                PosixStore(),
                str(path)[1:],
                held.wait,
                lambda: os.killpg(group, signal.SIGCONT),
            )


@contextmanager
def rescued(group: int) -> Iterator[None]:
    """What stands still goes on after `HELD_S` seconds, whoever has the interpreter lock."""
    script = f"sleep {HELD_S}; kill -CONT -{group}"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as rescuer:
        try:
            yield
        finally:
            os.killpg(rescuer.pid, signal.SIGKILL)
            os.killpg(group, signal.SIGCONT)
