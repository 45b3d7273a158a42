"""Google Cloud Storage's JSON API over gcsfs: configuration, pinning, composing, errors, forks, paths."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.children import wait_for
from wstore import StoragePath
from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    IntegrityError,
    InvalidArgument,
    InvalidPath,
    NotFound,
    ObjectChanged,
    StoreError,
    Unavailable,
    WStoreError,
)
from wstore.stores.base import Expect, MiB
from wstore.stores.fsspec import gcs_calls, gcs_upload, scheme_of
from wstore.stores.fsspec.gcs_replies import failure
from wstore.stores.fsspec.gcs_session import Request, Session
from wstore.stores.fsspec.gcs_store import GcsJsonStore
from wstore.stores.gcs import GcsConfig
from wstore.stores.gcs.dialect import GCS
from wstore.stores.s3.environment import Secret
from wstore.stores.s3.replies import Reply, extent
from wstore.stores.wrap import Retry
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FaultServer
from wstore.testing.gcs_requests import GcsEndpoint, get_gcs_object, put_gcs_object
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore.stores.base import ObjectInfo

_HEADERS = {
    "x-goog-generation": "17",
    "last-modified": "Mon, 30 Nov 2026 14:34:16 GMT",
    "content-length": "5",
}


@pytest.fixture
def store(gcs_bucket: str) -> Iterator[GcsJsonStore]:
    made = GcsJsonStore(gcs_bucket, GcsConfig.from_environment())
    yield made
    made.close()


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
    config = GcsConfig.from_environment(gcs.environment())
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
    config = GcsConfig.from_environment({"STORAGE_EMULATOR_HOST": "127.0.0.1:1"})
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
        (206, {"content-range": "bytes 0-4/9", "x-goog-stored-content-encoding": "gzip"}),
        (206, {"content-range": "bytes 0-4/9", "x-goog-generation": ""}),
    ],
)
def test_replies_that_are_not_what_was_asked(status: int, headers: dict[str, str]) -> None:
    length = 4 if status == 200 else 5
    with pytest.raises(StoreError):
        extent(status, _HEADERS | headers, offset=0, length=length, url="gs://b/k", dialect=GCS)


def test_a_right_reply() -> None:
    headers = _HEADERS | {"content-range": "bytes 4-8/9"}
    found = extent(206, headers, offset=4, length=99, url="gs://b/k", dialect=GCS)
    assert (found.length, found.info.size, found.info.tag) == (5, 9, "17")


def test_a_damaged_upload_is_noticed(store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wstore.stores.fsspec.gcs_writing._crc32c", lambda data: "AAAAAA==")
    with pytest.raises(IntegrityError) as caught:
        store.write("k", memoryview(b"hello"))
    assert caught.value.retryable


def test_a_damaged_create_is_never_taken_for_a_success(
    store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat would meet the damaged object, find its own stamp on it, and be content."""
    monkeypatch.setattr("wstore.stores.fsspec.gcs_writing._crc32c", lambda data: "AAAAAA==")
    with pytest.raises(IntegrityError) as caught:
        Retry(store).write("k", memoryview(b"hello"), expect=Expect.ABSENT)
    assert not caught.value.retryable


@dataclass
class Interposed:
    """Requests of one method, answered by `answer` (given how many came before) where it has one."""

    method: str
    answer: Callable[[int], Reply | None]
    seen: list[Request] = field(default_factory=list)

    def put_before(self, store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch) -> None:
        honest: Callable[..., object] = Session._exchange

        def exchange(session: Session, request: Request, url: str, receive: object) -> object:
            if request.method != self.method:
                return honest(session, request, url, receive)
            self.seen.append(request)
            return self.answer(len(self.seen) - 1) or honest(session, request, url, receive)

        monkeypatch.setattr(Session, "_exchange", exchange)


def test_an_abort_that_failed_is_repeated(
    store: GcsJsonStore, gcs: GcsEndpoint, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.upload("k")
    upload.put(0, 0, memoryview(b"piece"))
    busy = Interposed("DELETE", lambda before: Reply(503, {}) if not before else None)
    busy.put_before(store, monkeypatch)
    with pytest.raises(Unavailable):
        upload.abort()
    upload.abort()
    assert store.sweep("", older_than_s=-10) == []
    upload.abort()
    assert len(busy.seen) == 2


def test_what_was_composed_too_short_is_not_published(
    store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(session: Session, key: str, sources: list[str], url: str) -> ObjectInfo:
        return gcs_calls.compose(session, key, sources[:-1], url)

    monkeypatch.setattr(gcs_upload, "compose", forgetful)
    upload = store.upload("k")
    upload.put(0, 0, memoryview(b"12"))
    upload.put(1, 2, memoryview(b"345"))
    with pytest.raises(IntegrityError, match="nothing was published"):
        upload.complete()
    upload.abort()
    with pytest.raises(NotFound):
        store.stat("k")


def test_a_pinned_read_never_names_an_old_generation(
    store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that keeps old generations would serve one; a condition is about the present object."""
    old = store.write("k", memoryview(b"old")).tag
    asked = Interposed("GET", lambda before: None)
    asked.put_before(store, monkeypatch)
    assert bytes(store.read("k", 0, 3, tag=old).data) == b"old"
    store.write("k", memoryview(b"new"))
    with pytest.raises(ObjectChanged):
        store.read("k", 0, 3, tag=old)
    pinned = [dict(r.query) for r in asked.seen if ("alt", "media") in r.query]
    assert [(q.get("ifGenerationMatch"), q.get("generation")) for q in pinned] == [(old, None)] * 2


def test_the_same_page_for_ever_is_an_error(
    store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = Interposed("GET", lambda before: Reply(200, {}, b'{"nextPageToken": "t"}'))
    same.put_before(store, monkeypatch)
    with pytest.raises(StoreError, match="same page"):
        list(store.list("", recursive=True))
    assert len(same.seen) == 2


def test_a_copy_that_stands_still_ends(
    store: GcsJsonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of a copy may stay the same; what it has copied may not."""
    store.write("k", memoryview(b"data"))
    done = ["1", "2", "2"]
    still = Interposed(
        "POST",
        lambda before: Reply(
            200, {}, f'{{"rewriteToken": "t", "totalBytesRewritten": "{done[before]}"}}'.encode()
        ),
    )
    still.put_before(store, monkeypatch)
    with pytest.raises(Unavailable, match="byte 2"):
        store.copy("k", "l")
    assert len(still.seen) == 3


def test_endpoint_and_identity_are_the_xml_clients() -> None:
    """The stub speaks XML only; what matters is what it is asked, and with which token."""
    with FaultServer(service=FakeGcs(token="very-token")) as server:
        environment = {
            "WSTORE_GCS_ENDPOINT": server.url,
            "STORAGE_EMULATOR_HOST": "127.0.0.1:1",
            "GOOGLE_BEARER_TOKEN": "very-token",
            "GOOGLE_CLOUD_QUOTA_PROJECT": "payer",
        }
        store = GcsJsonStore("bucket", GcsConfig.from_environment(environment))
        with pytest.raises(WStoreError):
            store.stat("k")
        store.close()
        (entry,) = server.log
        assert entry.request.headers["authorization"] == "Bearer very-token"
        assert entry.request.headers["x-goog-user-project"] == "payer"


def test_a_bundle_without_certificates_is_named() -> None:
    with pytest.raises(InvalidArgument, match="WSTORE_GCS_CA_BUNDLE"):
        GcsJsonStore("bucket", GcsConfig(token=Secret("t"), ca_bundle=__file__))


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
    wait_for(pid)
    assert get_gcs_object(gcs, gcs_bucket, "child") == b"bytes"
    assert bytes(store.read("shared", 0, 9).data) == b"bytes"


@pytest.mark.long
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
