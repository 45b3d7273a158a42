"""Google Cloud Storage's JSON API over gcsfs: configuration, pinning, composing, errors, forks, paths."""

from __future__ import annotations

import os
import pickle
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    NotFound,
    StoreError,
    Unavailable,
    WStoreError,
)
from wstore.stores.base import MiB
from wstore.stores.fsspec import gcs_upload, scheme_of
from wstore.stores.fsspec.gcs_config import GcsJsonConfig, emulator_url
from wstore.stores.fsspec.gcs_replies import Reply, extent, failure, no_credentials
from wstore.stores.fsspec.gcs_store import GcsJsonStore
from wstore.testing.gcs_requests import GcsEndpoint, get_gcs_object, put_gcs_object
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEADERS = {
    "x-goog-generation": "17",
    "last-modified": "Mon, 30 Nov 2026 14:34:16 GMT",
    "content-length": "5",
}


@pytest.fixture
def store(gcs_bucket: str) -> Iterator[GcsJsonStore]:
    made = GcsJsonStore(gcs_bucket, GcsJsonConfig.from_environment())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", None),
        ("default", None),
        ("localhost:4443", "http://localhost:4443"),
        ("http://localhost:4443/", "http://localhost:4443"),
        ("https://[::1]:1", "https://[::1]:1"),
    ],
)
def test_both_forms_of_the_emulators_variable(text: str, url: str | None) -> None:
    assert emulator_url(text) == url


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://h:port", "u:pw@h:1", "http://h/p"])
def test_an_emulator_that_is_none(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        emulator_url(text)
    assert "pw" not in str(caught.value)


def test_the_configuration_follows_the_environment() -> None:
    config = GcsJsonConfig.from_environment({"STORAGE_EMULATOR_HOST": "h:1"})
    assert (config.emulator, config.anonymous) == ("http://h:1", True)
    real = GcsJsonConfig.from_environment({"WSTORE_IDLE_TIMEOUT": "5"})
    assert (real.emulator, real.anonymous, real.idle_timeout_s) == (None, False, 5.0)
    with pytest.raises(InvalidArgument, match="WSTORE_IDLE_TIMEOUT"):
        GcsJsonConfig.from_environment({"WSTORE_IDLE_TIMEOUT": "soon"})


@pytest.mark.parametrize("with_scheme", [True, False])
def test_paths_choose_gcsfs_for_an_emulator(
    gcs: GcsEndpoint, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch, with_scheme: bool
) -> None:
    address = gcs.url if with_scheme else gcs.url.removeprefix("http://")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    data = os.urandom(3 * MiB + 1)
    for client in (None, "fsspec"):
        path = StoragePath(f"gs://{gcs_bucket}", client=client) / "a b" / "object#1"
        path.write_file(data, piece_size=MiB)
        assert get_gcs_object(gcs, gcs_bucket, "a b/object#1") == data
        assert path.read_bytes() == data
        assert [entry.name for entry in path.parent.iterdir()] == ["object#1"]
        path.store.close()


def test_the_environment_is_left_alone() -> None:
    scheme_of("gs")
    assert "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT" not in os.environ
    assert "NO_GCE_CHECK" not in os.environ


def test_more_pieces_than_one_composition_takes(
    store: GcsJsonStore, gcs: GcsEndpoint, gcs_bucket: str
) -> None:
    upload = store.upload("large")
    for number in range(70):
        upload.put(number, number * 100, memoryview(bytes([number]) * 100))
    assert list(store.list("", recursive=True)) == []
    assert upload.complete().size == 7000
    wanted = b"".join(bytes([number]) * 100 for number in range(70))
    assert get_gcs_object(gcs, gcs_bucket, "large") == wanted
    assert [entry.key for entry in store.list("", recursive=True)] == ["large"]
    assert store.sweep("", older_than_s=-10) == []


def test_pieces_of_a_long_key_have_short_names(store: GcsJsonStore) -> None:
    key = "a/" + "d" * 1000 + "/" + "x" * 21
    upload = store.upload(key)
    upload.put(0, 0, memoryview(b"x"))
    upload.complete()
    assert store.stat(key).size == 1


def test_a_hole_in_an_upload_is_refused(store: GcsJsonStore) -> None:
    upload = store.upload("hole")
    upload.put(0, 0, memoryview(b"12"))
    upload.put(1, 3, memoryview(b"45"))
    with pytest.raises(InvalidArgument, match="starts at byte 3"):
        upload.complete()
    upload.abort()


def test_names_that_are_hidden() -> None:
    hidden = f".wstore-{'0' * 32}.tmp"
    assert gcs_upload.is_hidden(f"a/{hidden}/00001")
    assert gcs_upload.is_hidden(f"{hidden}/")
    assert not gcs_upload.is_hidden(f"a/{hidden}")
    assert not gcs_upload.is_hidden("a/.wstore-1.tmp/x")


def test_keys_that_cannot_be(store: GcsJsonStore) -> None:
    for key in ("x" * 1025, "\ud800", ""):
        with pytest.raises(InvalidPath):
            store.write(key, memoryview(b""))
    with pytest.raises(NotFound):
        store.stat("")


def test_a_missing_bucket(gcs: GcsEndpoint) -> None:
    config = GcsJsonConfig.from_environment(gcs.environment())
    store = GcsJsonStore("no-such-bucket", config)
    calls: list[Callable[[], object]] = [
        lambda: store.stat("k"),
        lambda: store.write("k", memoryview(b"x")),
        lambda: list(store.list("", recursive=True)),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    store.close()


def test_nobody_listens() -> None:
    config = GcsJsonConfig.from_environment({"STORAGE_EMULATOR_HOST": "127.0.0.1:1"})
    store = GcsJsonStore("bucket", config)
    with pytest.raises(ConnectionFailed, match="gs://bucket/k") as caught:
        store.read("k", 0, 1)
    assert caught.value.retryable
    store.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, CredentialsMissing),
        (403, AccessDenied),
        (404, NotFound),
        (408, Unavailable),
        (429, Unavailable),
        (503, Unavailable),
        (413, InvalidArgument),
        (301, StoreError),
    ],
)
def test_what_a_status_means(status: int, kind: type[WStoreError]) -> None:
    said = b'{"error": {"message": "said\\u0007 so"}}'
    error = failure(Reply(status, {"retry-after": "3"}, said), "gs://b/k")
    assert type(error) is kind
    assert "said" in str(error)
    assert "\x07" not in str(error)
    assert error.retry_after_s == (3.0 if kind is Unavailable else None)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {"content-range": "bytes 0-3/9"}),
        (206, {"content-range": "bytes 1-5/9"}),
        (206, {}),
        (200, {}),
        (206, {"content-range": "bytes 0-4/9", "content-encoding": "gzip"}),
        (206, {"content-range": "bytes 0-4/9", "x-goog-generation": ""}),
    ],
)
def test_replies_that_are_not_what_was_asked(status: int, headers: dict[str, str]) -> None:
    length = 4 if status == 200 else 5
    with pytest.raises(StoreError):
        extent(Reply(status, _HEADERS | headers), offset=0, length=length, url="gs://b/k")


def test_a_right_reply() -> None:
    reply = Reply(206, _HEADERS | {"content-range": "bytes 4-8/9"})
    count, info = extent(reply, offset=4, length=99, url="gs://b/k")
    assert (count, info.size, info.tag) == (5, 9, "17")


def test_no_secret_in_an_error() -> None:
    error = no_credentials(ValueError("token ya29.secret"), "gs://b")
    assert "secret" not in str(error)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(error)


def test_a_damaged_upload_is_noticed(store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wstore.stores.fsspec.gcs_writing._crc32c", lambda data: "AAAAAA==")
    with pytest.raises(IntegrityError) as caught:
        store.write("k", memoryview(b"hello"))
    assert caught.value.retryable


def test_a_forked_child_connects_by_itself(
    store: GcsJsonStore, gcs: GcsEndpoint, gcs_bucket: str
) -> None:
    put_gcs_object(gcs, gcs_bucket, "shared", b"bytes")
    assert bytes(store.read("shared", 0, 9).data) == b"bytes"
    pid = os.fork()
    if not pid:
        try:
            store.write("child", memoryview(bytes(store.read("shared", 0, 9).data)))
        finally:
            os._exit(0)
    deadline = time.monotonic() + 60
    while os.waitpid(pid, os.WNOHANG)[0] != pid:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.02)
    assert get_gcs_object(gcs, gcs_bucket, "child") == b"bytes"
    assert bytes(store.read("shared", 0, 9).data) == b"bytes"


def test_a_root_and_a_checkpoint(gcs_bucket: str) -> None:
    url = f"gs://{gcs_bucket}/run"
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((300, 1000)).astype(np.float32) for i in range(3)}
    with CheckpointWriter(url) as writer:
        writer.write(0, weights)
        weights["w1"] += 1
        report = writer.write(1, weights)
    reader = CheckpointReader(url)
    assert weights_digest(reader.load()) == report.digest
    root = Root.open(StoragePath(url))
    assert not root.single_publisher
    assert root.latest().number == 3  # the publisher's own record, and two of weights
    StoragePath(url).store.close()


def test_features_are_pinned_to_the_contract(store: GcsJsonStore) -> None:
    facts = store.capabilities
    assert facts.create_if_absent
    assert facts.if_match
    assert facts.overwrite_interval_s == 1.0
    assert repr(store) == f"GcsJsonStore('{store.url}')"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(store)
