"""The bare Google store against a stub that misbehaves: one attempt each, never a wrong byte.

Reads are tried over all three clients: `plain` (http), `bulk` (https), and `wire` (https, a key that
obstore cannot carry).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from wstore.errors import (
    AlreadyExists,
    ConnectionFailed,
    IntegrityError,
    InvalidPath,
    NotFound,
    ObjectChanged,
    OutcomeUnknown,
    PreconditionFailed,
    StoreError,
    Unavailable,
    WStoreError,
)
from wstore.stores.base import Expect
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.gcs.store import GcsStore
from wstore.stores.probing import creates_exclusively
from wstore.stores.s3 import S3Config, S3Store
from wstore.stores.s3.environment import Secret
from wstore.stores.wrap import Retry, RetryPolicy
from wstore.testing.certificates import TlsIdentity, make_identity
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fake_messages import Reply
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import (
    Cut,
    FlipUpload,
    Honest,
    IgnoredConditions,
    LostAnswer,
    Replaced,
    ShortBody,
    Status,
    WrongRange,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.testing.faults import Exchange, Fault

SIZE = 700_000
DATA = random.Random(8).randbytes(SIZE)
TOKEN = "very-token"


@dataclass(frozen=True, slots=True)
class Client:
    """One of the three clients: a key that it reads on its server."""

    name: str
    server: FaultServer
    store: GcsStore
    key: str


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    return make_identity(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "bulk", "wire"])
def client(request: pytest.FixtureRequest, identity: TlsIdentity) -> Iterator[Client]:
    name, key = request.param, "odd//key" if request.param == "wire" else "object"
    tls = None if name == "plain" else identity.context
    with FaultServer(service=FakeGcs(token=TOKEN), tls=tls) as server:
        server.put(key, DATA)
        store = GcsStore(
            server.bucket,
            GcsConfig(
                endpoint=server.url,
                token=Secret(TOKEN),
                ca_bundle=str(identity.ca_bundle),
                billing_project="project",
            ),
        )
        yield Client(name, server, store, key)
        store.close()


@pytest.fixture
def service() -> FakeGcs:
    return FakeGcs(token=TOKEN)


@pytest.fixture
def server(service: FakeGcs) -> Iterator[FaultServer]:
    with FaultServer(service=service) as server:
        server.put("object", DATA)
        yield server


@pytest.fixture
def store(server: FaultServer) -> GcsStore:
    return GcsStore(server.bucket, GcsConfig(endpoint=server.url, token=Secret(TOKEN)))


def test_each_client_reads_what_is_its_own(client: Client) -> None:
    """obstore alone asks for no encoding: so the server can tell who reads. All show the same token."""
    read = client.store.read(client.key, 5, 10)
    assert bytes(read.data) == DATA[5:15]
    assert read.info == client.store.stat(client.key)
    assert read.info.tag.isdecimal()
    (entry,) = client.server.requests("GET", client.key)
    assert ("accept-encoding" not in entry.request.headers) == (client.name == "bulk")
    assert entry.request.headers["authorization"] == f"Bearer {TOKEN}"
    assert entry.request.headers["x-goog-user-project"] == "project"


@pytest.mark.parametrize(
    "fault", [Cut(0.6), Cut(0.6, reset=True), ShortBody(0.6), Status(429, "SlowDown")], ids=str
)
def test_a_fault_that_passes_costs_no_byte(client: Client, fault: Fault) -> None:
    client.server.script(fault, key=client.key, method="GET", times=2)
    tag = client.store.stat(client.key).tag
    buffer = bytearray(SIZE)
    retry = Retry(client.store, sleep=lambda _: None)
    retry.read(client.key, 0, SIZE, buffer=memoryview(buffer), tag=tag)
    assert bytes(buffer) == DATA
    assert len(client.server.requests("GET", client.key)) == 3


def test_a_pinned_read_is_of_its_generation(client: Client) -> None:
    tag = client.store.stat(client.key).tag
    assert bytes(client.store.read(client.key, 0, 9, tag=tag).data) == DATA[:9]
    client.server.script(Replaced(b"other" * 1000), key=client.key, method="GET")
    with pytest.raises(ObjectChanged):
        client.store.read(client.key, 0, 1000, tag=tag)
    sent = client.server.requests("GET", client.key)[-1].request.headers
    assert (sent.get("x-goog-if-generation-match") == tag) == (client.name != "bulk")


def test_equal_bytes_are_another_generation(client: Client) -> None:
    tag = client.store.stat(client.key).tag
    client.server.put(client.key, DATA)
    with pytest.raises(ObjectChanged):
        client.store.read(client.key, 0, 10, tag=tag)


@pytest.mark.parametrize("tag", ["0", "tag", '"etag"'])
def test_a_tag_that_is_no_generation_is_no_content(client: Client, tag: str) -> None:
    """Least of all "0", which as a condition means that there is no object."""
    with pytest.raises(ObjectChanged):
        client.store.read(client.key, 0, 10, tag=tag)
    for key in (client.key, "new"):
        with pytest.raises(PreconditionFailed):
            client.store.write(key, memoryview(b"x"), expect=tag)
    assert client.server.get(client.key) == DATA
    assert client.server.get("new") is None


def test_another_range_than_asked_is_an_error(client: Client) -> None:
    client.server.script(WrongRange(), key=client.key, method="GET", times=FOREVER)
    with pytest.raises(StoreError) as caught:
        client.store.read(client.key, 100, 1000)
    assert not caught.value.retryable


def test_a_missing_object_and_bucket(client: Client) -> None:
    with pytest.raises(NotFound):
        client.store.read("absent", 0, 1)
    with pytest.raises(NotFound):
        client.store.delete("absent")
    config = GcsConfig(endpoint=client.server.url, anonymous=True)
    if client.name == "plain":
        client.server.script(Status(404, "NoSuchBucket"), key=client.key)
        with pytest.raises(NotFound, match="no bucket"):
            GcsStore(client.server.bucket, config).read(client.key, 0, 1)


def test_slow_down_says_when_to_come_back(server: FaultServer, store: GcsStore) -> None:
    pauses: list[float] = []
    server.script(Status(429, "rateLimitExceeded", retry_after_s=3), key="new", times=2)
    retry = Retry(store, RetryPolicy(), sleep=pauses.append, uniform=lambda low, high: low)
    retry.write("new", memoryview(b"x"), expect=Expect.ABSENT)
    assert pauses == [3.0, 3.0]
    assert server.get("new") == b"x"


def test_a_key_is_overwritten_at_most_once_a_second() -> None:
    service = FakeGcs(overwrite_interval_s=0.3)
    with FaultServer(service=service) as server:
        store = GcsStore(server.bucket, GcsConfig(endpoint=server.url, anonymous=True))
        store.write("head", memoryview(b"1"))
        with pytest.raises(Unavailable, match="SlowDown"):
            store.write("head", memoryview(b"2"))
        store.write("other", memoryview(b"2"))
        Retry(store).write("head", memoryview(b"3"))
        assert server.get("head") == b"3"


def test_a_create_whose_answer_was_lost_is_settled(server: FaultServer, store: GcsStore) -> None:
    server.script(LostAnswer(), key="new", method="PUT")
    with pytest.raises(ConnectionFailed):
        store.write("new", memoryview(b"x"), expect=Expect.ABSENT, write_id="mine")
    with pytest.raises(AlreadyExists):
        store.write("new", memoryview(b"x"), expect=Expect.ABSENT, write_id="mine")
    assert store.wrote("new", "mine")
    assert not store.wrote("new", "other")
    assert not store.wrote("absent", "mine")
    server.script(LostAnswer(), key="newer", method="PUT")
    info = Retry(store).write("newer", memoryview(b"x"), expect=Expect.ABSENT)
    assert info == store.stat("newer")


def test_a_body_that_was_damaged_on_its_way_is_refused(
    server: FaultServer, store: GcsStore
) -> None:
    server.script(FlipUpload(10), key="new", method="PUT", times=2)
    with pytest.raises(IntegrityError) as caught:
        store.write("new", memoryview(DATA))
    assert caught.value.retryable
    upload = store.upload("new")
    with pytest.raises(IntegrityError):
        upload.put(0, 0, memoryview(DATA))
    upload.put(0, 0, memoryview(DATA))
    upload.complete()
    assert server.get("new") == DATA


def test_new_objects_are_not_served_from_caches(server: FaultServer, store: GcsStore) -> None:
    """Google's caches keep what the public may read for an hour unless the object says otherwise."""
    store.write("one", memoryview(b"x"))
    upload = store.upload("many")
    upload.put(0, 0, memoryview(b"x"))
    upload.complete()
    store.copy("one", "copied")
    created = [
        *server.requests("PUT", "one"),
        server.requests("POST", "many")[0],
        *server.requests("PUT", "copied"),
    ]
    assert [e.request.headers["cache-control"] for e in created] == ["no-cache"] * 3


@pytest.mark.parametrize("fault", [LostAnswer(), Status(503, "ServiceUnavailable")], ids=str)
def test_completing_again_after_a_failure_publishes_once(
    server: FaultServer, store: GcsStore, fault: Fault
) -> None:
    upload = store.upload("new")
    upload.put(1, 400_000, memoryview(DATA)[400_000:])
    upload.put(0, 0, memoryview(DATA)[:400_000])
    server.script(fault, key="new", method="POST")
    with pytest.raises((Unavailable, ConnectionFailed)):
        upload.complete()
    info = upload.complete()
    assert (info.size, info.tag) == (SIZE, store.stat("new").tag)
    assert server.get("new") == DATA


def test_a_completion_that_names_no_generation_is_looked_up(service: FakeGcs) -> None:
    class Silent:
        """The honest answer without the headers that say which generation came of it."""

        def play(self, exchange: Exchange) -> None:
            exchange.receive()
            reply = exchange.handle()
            send(exchange, Reply(reply.status, {}, reply.body))

    with FaultServer(service=service) as server:
        store = GcsStore(server.bucket, GcsConfig(endpoint=server.url, token=Secret(TOKEN)))
        upload = store.upload("new")
        upload.put(0, 0, memoryview(b"data"))
        server.script(Silent(), key="new", method="POST")
        assert upload.complete() == store.stat("new")
        upload = store.upload("new")
        upload.put(0, 0, memoryview(b"more"))
        server.script(Silent(), key="new", method="POST")
        server.script(Replaced(b"theirs"), key="new", method="HEAD")
        with pytest.raises(OutcomeUnknown):
            upload.complete()
        upload = store.upload("newest")
        upload.put(0, 0, memoryview(b"last"))
        server.script(Silent(), key="newest", method="POST")
        server.script(Status(503, "ServiceUnavailable"), key="newest", method="HEAD")
        with pytest.raises(Unavailable):
            upload.complete()
        assert upload.complete() == store.stat("newest")


def test_a_copy_pins_its_source(server: FaultServer, store: GcsStore) -> None:
    assert store.copy("object", "copy").tag == store.stat("copy").tag
    assert server.get("copy") == DATA
    server.script(Honest(), key="object", method="HEAD")
    server.script(Replaced(b"else"), key="object", method="HEAD")
    server.script(Status(412, "PreconditionFailed"), key="copy", method="PUT")
    with pytest.raises(ObjectChanged, match="copied"):
        store.copy("object", "copy")
    with pytest.raises(NotFound) as missing:
        store.copy("absent", "copy")
    assert missing.value.url.endswith("/absent")


def test_a_line_break_in_a_key_is_refused(store: GcsStore) -> None:
    with pytest.raises(InvalidPath):
        store.write("a\nb", memoryview(b"x"))


def test_a_redirect_and_a_refusal_are_in_googles_words(
    server: FaultServer, store: GcsStore
) -> None:
    server.script(Status(307, "TemporaryRedirect"), key="object", times=2)
    with pytest.raises(StoreError, match="endpoint") as caught:
        store.read("object", 0, 1)
    assert "AWS" not in str(caught.value)
    closed = GcsStore("bucket", GcsConfig(endpoint="http://127.0.0.1:9", anonymous=True))
    for call in (lambda: closed.stat("k"), lambda: closed.read("k", 0, 1)):
        with pytest.raises(ConnectionFailed, match="WSTORE_GCS_ENDPOINT"):
            call()


def test_an_s3_server_is_recognised_as_none_of_googles(fault_server: FaultServer) -> None:
    fault_server.put("object", DATA)
    store = GcsStore("bucket", GcsConfig(endpoint=fault_server.url, anonymous=True))
    calls = (
        lambda: store.stat("object"),
        lambda: store.read("object", 0, 1),
        lambda: store.write("new", memoryview(b"x")),
    )
    for call in calls:
        with pytest.raises(StoreError, match="is this Google Cloud Storage"):
            call()


def test_a_server_that_ignores_conditions_is_found_out(
    server: FaultServer, store: GcsStore, fault_server: FaultServer
) -> None:
    """On both services; and the probe leaves nothing behind, whatever it finds."""
    s3 = S3Store("bucket", S3Config.from_environment(fault_server.endpoint.environment()))
    for one, there in ((store, server), (s3, fault_server)):
        assert creates_exclusively(one, "root/")
        there.script(IgnoredConditions(), method="PUT", times=FOREVER)
        assert not creates_exclusively(one, "root/")
        assert [entry.key for entry in one.list("root/", recursive=True)] == []


def test_a_probe_that_is_not_allowed_is_no_finding(server: FaultServer, store: GcsStore) -> None:
    server.script(Status(403, "AccessDenied"), method="PUT")
    with pytest.raises(WStoreError, match="may not"):
        creates_exclusively(store, "")
    server.script(Status(403, "AccessDenied"), method="DELETE")
    assert creates_exclusively(store, "")
