"""Reading over HTTP(S): servers with and without ranges, liars, redirects, TLS, and a whole root."""

from __future__ import annotations

import http.server
import logging
import os
import threading
import time
import traceback
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import fsspec
import numpy as np
import pytest

from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    BodyCut,
    IsADirectory,
    NotADirectory,
    NotFound,
    ObjectChanged,
    StoreError,
    UnsupportedOperation,
)
from wstore.stores.objects.http_store import HttpConfig, HttpStore
from wstore.stores.registry import bare_store
from wstore.testing.certificates import make_identity
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import Cut, IgnoredRange, LyingLength, ShortBody, Status, WrongRange
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import UseEndpoint

DATA = bytes(range(256)) * 40


class _Files(http.server.SimpleHTTPRequestHandler):
    """Python's own file server: no ranges, no ETag."""

    protocol_version = "HTTP/1.1"
    extra: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        if self.path in self.extra:
            status, location = self.extra[self.path]
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        super().do_GET()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet."""

    def log_error(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def served(directory: Path, redirects: dict[str, tuple[int, str]] | None = None) -> Iterator[str]:
    """The directory on a loopback port; its URL."""
    handler = type("Handler", (_Files,), {"extra": redirects or {}})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(handler, directory=str(directory))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def ranged(fault_server: FaultServer) -> StoragePath:
    """An object on a server with ranges."""
    fault_server.put("file", DATA)
    return StoragePath(f"{fault_server.endpoint.url}/{fault_server.bucket}/file")


def test_reads_of_a_server_with_ranges(ranged: StoragePath) -> None:
    assert ranged.exists()
    assert ranged.is_file()
    info = ranged.stat()
    assert (info.size, ranged.read_bytes()) == (len(DATA), DATA)
    assert ranged.read_range(5, 10) == DATA[5:15]
    assert ranged.read_range(len(DATA) - 3, 10) == DATA[-3:]
    assert ranged.read_range(len(DATA), 10) == b""
    assert ranged.read_range(len(DATA) + 7, 10) == b""
    assert [bytes(r) for r in ranged.read_ranges([(0, 3), (9000, 5)])] == [
        DATA[:3],
        DATA[9000:9005],
    ]
    buffer = bytearray(len(DATA))
    assert ranged.read_into(buffer) == len(DATA)
    assert buffer == DATA


def test_names_are_percent_encoded_on_the_way(fault_server: FaultServer) -> None:
    name = "a b+c%20#1?é&=.bin"
    fault_server.put(name, b"odd")
    path = StoragePath(f"{fault_server.endpoint.url}/{fault_server.bucket}") / name
    assert path.read_bytes() == b"odd"
    assert StoragePath(path.url) == path


def test_what_is_missing_or_denied(fault_server: FaultServer, ranged: StoragePath) -> None:
    gone = ranged.with_name("gone")
    assert not gone.exists()
    with pytest.raises(NotFound, match="gone"):
        gone.read_bytes()
    fault_server.script(Status(403, "AccessDenied"), key="file", times=FOREVER)
    with pytest.raises(AccessDenied):
        ranged.read_bytes()


def test_an_object_replaced_between_two_reads_is_noticed(
    fault_server: FaultServer, ranged: StoragePath
) -> None:
    tag = ranged.stat().tag
    store = bare_store(ranged.location)
    assert bytes(store.read(ranged.key, 0, 4, tag=tag).data) == DATA[:4]
    fault_server.put("file", DATA[::-1])
    with pytest.raises(ObjectChanged):
        store.read(ranged.key, 4, 4, tag=tag)
    with pytest.raises(ObjectChanged):
        store.read(ranged.key, len(DATA), 4, tag=tag)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ShortBody(0.5), StoreError),
        (WrongRange(7), StoreError),
        (IgnoredRange(), UnsupportedOperation),
        (LyingLength(-3), StoreError),
        (LyingLength(3), StoreError),
        (Cut(0.4), BodyCut),
        (Cut(0.4, reset=True), BodyCut),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_a_lie_is_an_error_and_never_wrong_bytes(
    fault_server: FaultServer,
    ranged: StoragePath,
    fault: ShortBody,
    kind: type[Exception],
) -> None:
    fault_server.script(fault, key="file", method="GET", times=FOREVER)
    with pytest.raises(kind, match="file"):
        bare_store(ranged.location).read(ranged.key, 100, 1000)


def test_a_cut_body_is_resumed(fault_server: FaultServer, ranged: StoragePath) -> None:
    fault_server.script(Cut(0.3), key="file", method="GET", times=2)
    assert ranged.read_bytes() == DATA
    assert len(fault_server.requests("GET", "file")) == 3


def test_a_server_without_ranges_gives_whole_objects_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with served(tmp_path) as url:
        path = StoragePath(url) / "file"
        assert path.stat().size == len(DATA)
        assert path.read_bytes() == DATA
        assert path.read_range(0, len(DATA)) == DATA
        assert path.read_range(len(DATA), 5) == b""
        for offset, length in ((1, 5), (0, 5), (1, len(DATA))):
            with pytest.raises(UnsupportedOperation, match="ignores ranges"):
                path.read_range(offset, length)
        path.store.close()


def test_without_an_etag_size_and_time_tell_contents_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with served(tmp_path) as url:
        store = HttpStore("http", url.removeprefix("http://"), HttpConfig())
        tag = store.stat("file").tag
        assert store.read("file", 0, len(DATA), tag=tag).info.tag == tag
        later = time.time() + 10
        os.utime(tmp_path / "file", (later, later))
        with pytest.raises(ObjectChanged):
            store.read("file", 0, len(DATA), tag=tag)
        store.close()


def test_nothing_is_listed_or_written(fault_server: FaultServer, ranged: StoragePath) -> None:
    before = len(fault_server.log)
    for call in (
        lambda: ranged.write_bytes(b"x"),
        lambda: ranged.write_file(b"x", if_absent=True),
        lambda: ranged.write_file(b"x", if_match='"tag"'),
        lambda: list(ranged.store.list("bucket/", recursive=True)),
        lambda: ranged.store.delete(ranged.key),
    ):
        with pytest.raises(UnsupportedOperation):
            call()
    assert len(fault_server.log) == before
    with pytest.raises(UnsupportedOperation, match="no listing"):
        list(ranged.parent.iterdir())


def test_what_is_no_file_is_no_directory_either(
    fault_server: FaultServer, ranged: StoragePath
) -> None:
    assert not ranged.is_dir()
    assert not ranged.parent.is_dir()
    assert not ranged.with_name("gone").is_dir()
    assert [*ranged.parent.glob("file"), *ranged.parent.glob("gone")] == [ranged]
    with pytest.raises(UnsupportedOperation, match="lists nothing"):
        ranged.with_name("gone").remove_tree(missing_ok=True)
    with pytest.raises(NotADirectory):
        ranged.remove_tree()


def test_fsspecs_listings_of_a_file_are_the_file(
    fault_server: FaultServer, ranged: StoragePath
) -> None:
    files = fsspec.filesystem("wstore")
    itself = files.info(ranged.url)
    assert (itself["type"], itself["size"]) == ("file", len(DATA))
    assert files.ls(ranged.url) == [itself]
    for found in (files.find(ranged.url, detail=True), files.find(ranged.url, 1, detail=True)):
        assert found == {itself["name"]: itself}
    assert files.exists(ranged.url)
    gone = ranged.with_name("gone").url
    assert not files.exists(gone)
    with pytest.raises(FileNotFoundError):
        files.info(gone)
    for call in (files.ls, files.find):
        with pytest.raises(UnsupportedOperation, match="no listing"):
            call(gone)  # it may be a directory


def test_redirects_are_followed_where_that_is_safe(
    tmp_path: Path,
    fault_server: FaultServer,
    ranged: StoragePath,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="urllib3")
    (tmp_path / "file").write_bytes(DATA)
    (tmp_path / "directory").mkdir()
    redirects = {
        "/away": (302, ranged.url + "?signature=secret-of-the-target"),
        "/round": (307, "/round"),
        "/out": (301, "ftp://127.0.0.1/file"),
        "/login": (302, "http://user:secret-password@127.0.0.1/file"),
        "/port": (302, "http://127.0.0.1:99999/file?signature=secret"),
        "/odd": (302, "http://[secret/file"),
        "/missing": (302, f"{ranged.url}-gone?signature=secret-of-the-target"),
    }
    with served(tmp_path, redirects) as url:
        base = StoragePath(url)
        assert bytes(base.store.read("away", 5, 10).data) == DATA[5:15]
        for name, says in (
            ("round", "redirects"),
            ("out", "no HTTP"),
            ("port", "no HTTP"),
            ("odd", "no HTTP"),
            ("login", "user name"),
        ):
            with pytest.raises(StoreError, match=says) as caught:
                base.store.read(name, 0, 1)
            assert "secret" not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(NotFound) as missing:
            base.store.read("missing", 0, 1)
        assert "secret" not in str(missing.value)
        with pytest.raises(IsADirectory):
            base.store.read("directory", 0, 1)
        base.store.close()
    ranged.store.close()
    assert "/file?..." in caplog.text
    assert "secret" not in caplog.text


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = make_identity(tmp_path)
    with FaultServer(tls=identity.context) as server:
        server.put("file", DATA)
        path = StoragePath(f"{server.endpoint.url}/{server.bucket}/file")
        assert path.scheme == "https"
        with pytest.raises(StoreError, match="SSL_CERT_FILE"):
            bare_store(path.location).stat(path.key)
        monkeypatch.setenv("SSL_CERT_FILE", str(identity.ca_bundle))
        assert path.read_bytes() == DATA
        path.store.close()


def test_a_root_is_read_over_http_without_listing(
    fault_server: FaultServer, s3_environment: UseEndpoint
) -> None:
    s3_environment(fault_server.endpoint)
    weights: dict[str, np.ndarray] = {
        "w": np.arange(5000, dtype=np.float32).reshape(50, 100),
        "b": np.ones(3),
    }
    with CheckpointWriter(f"s3://{fault_server.bucket}/root") as writer:
        writer.write(1, weights)
        writer.write(2, {**weights, "b": np.zeros(3)})
    before = len(fault_server.log)
    root = StoragePath(f"{fault_server.endpoint.url}/{fault_server.bucket}/root")
    reader = CheckpointReader(root)
    assert reader.latest().step == 2
    found = reader.load()
    np.testing.assert_array_equal(found["w"], weights["w"])
    np.testing.assert_array_equal(found["b"], np.zeros(3))
    assert {entry.request.method for entry in fault_server.log[before:]} <= {"GET", "HEAD"}
    root.store.close()
