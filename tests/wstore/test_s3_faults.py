"""The bare S3 store against a server that misbehaves: one attempt each, never a wrong byte.

Reads are tried over all three clients: `plain` (http), `bulk` (https), and `wire` (https, a key that
obstore cannot carry).
"""

from __future__ import annotations

import dataclasses
import os
import random
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from wstore.errors import (
    AccessDenied,
    AlreadyExists,
    BodyCut,
    ConnectionFailed,
    IntegrityError,
    NotFound,
    ObjectChanged,
    OutcomeUnknown,
    StoreError,
    StoreTimeout,
    Unavailable,
    WStoreError,
)
from wstore.stores.base import Expect
from wstore.stores.s3 import S3Config, S3Store
from wstore.stores.s3.maintenance import copy_object
from wstore.stores.s3.wire import Wire
from wstore.testing.certificates import TlsIdentity, make_identity
from wstore.testing.fake_messages import Reply
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import (
    Cut,
    ErrorInside200,
    Fault,
    Hang,
    Honest,
    IgnoredRange,
    LostAnswer,
    LyingLength,
    Replaced,
    ResetWhileSending,
    ShortBody,
    Status,
    WrongRange,
    WrongRegion,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstore.testing.faults import Exchange


SIZE = 1_500_000
DATA = random.Random(7).randbytes(SIZE)


@dataclass(frozen=True, slots=True)
class Client:
    """One of the three clients: a key that it reads on its server."""

    name: str
    server: FaultServer
    config: S3Config
    key: str

    def store(self, *, idle_timeout_s: float = 20.0) -> S3Store:
        config = dataclasses.replace(self.config, idle_timeout_s=idle_timeout_s)
        return S3Store(self.server.bucket, config)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    return make_identity(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "bulk", "wire"])
def client(request: pytest.FixtureRequest, identity: TlsIdentity) -> Iterator[Client]:
    key = "odd//key" if request.param == "wire" else "object"
    with FaultServer(tls=None if request.param == "plain" else identity.context) as server:
        server.put(key, DATA)
        environment = server.endpoint.environment() | {"AWS_CA_BUNDLE": str(identity.ca_bundle)}
        yield Client(request.param, server, S3Config.from_environment(environment), key)


@pytest.fixture
def store(fault_server: FaultServer) -> S3Store:
    fault_server.put("object", DATA)
    return S3Store(
        fault_server.bucket, S3Config.from_environment(fault_server.endpoint.environment())
    )


def read_to_the_end(store: S3Store, key: str, attempts: int) -> tuple[bytes, int]:
    """What a retry wrapper does: resume where a cut body stopped, else repeat."""
    tag = store.stat(key).tag
    buffer = bytearray(SIZE)
    at = 0
    for attempt in range(1, attempts + 1):
        view = memoryview(buffer)[at:]
        try:
            at += store.read(key, at, SIZE - at, buffer=view, tag=tag).data.nbytes
            return bytes(buffer), attempt
        except BodyCut as error:
            part = error.read
            assert part is not None
            assert part.data.obj is buffer, "what came lies in the caller's buffer"
            at += part.data.nbytes
        except WStoreError as error:
            if not error.retryable:
                raise
    raise AssertionError(f"not whole after {attempts} attempts")


def test_each_client_reads_what_is_its_own(client: Client) -> None:
    """obstore alone asks for no encoding: so the server can tell who reads."""
    store = client.store()
    assert bytes(store.read(client.key, 5, 10).data) == DATA[5:15]
    (entry,) = client.server.requests("GET", client.key)
    assert ("accept-encoding" not in entry.request.headers) == (client.name == "bulk")


@pytest.mark.parametrize(
    "fault",
    [
        Cut(0.6), Cut(0.6, reset=True), ShortBody(0.6), LyingLength(-5), Status(503, "SlowDown"),
        Status(500), Status(429), Status(408, "RequestTimeout"),
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_that_passes_costs_one_attempt_and_no_byte(client: Client, fault: Fault) -> None:
    client.server.script(fault, key=client.key, method="GET", times=2)
    data, attempts = read_to_the_end(client.store(), client.key, 3)
    assert data == DATA
    assert attempts == 3


@pytest.mark.parametrize("fault", [Hang(after=200_000), Hang()], ids=str)
def test_a_silence_that_passes_costs_one_attempt_and_no_byte(client: Client, fault: Fault) -> None:
    client.server.script(fault, key=client.key, method="GET", times=2)
    data, attempts = read_to_the_end(client.store(idle_timeout_s=0.3), client.key, 3)
    assert data == DATA
    assert attempts == 3


@pytest.mark.parametrize("fault", [WrongRange(), IgnoredRange()], ids=str)
def test_another_range_than_asked_is_an_error(client: Client, fault: Fault) -> None:
    client.server.script(fault, key=client.key, method="GET", times=FOREVER)
    with pytest.raises(StoreError) as caught:
        client.store().read(client.key, 100, 1000)
    assert not caught.value.retryable


def test_an_object_replaced_meanwhile(client: Client) -> None:
    store = client.store()
    tag = store.stat(client.key).tag
    client.server.script(Replaced(b"other" * 1000), key=client.key, method="GET")
    with pytest.raises(ObjectChanged):
        store.read(client.key, 0, 1000, tag=tag)


def test_the_first_cut_of_a_large_body_keeps_what_came(client: Client) -> None:
    client.server.script(Cut(0.6), key=client.key, method="GET", times=2)
    read_to_the_end(client.store(), client.key, 3)
    starts = [
        int(entry.request.range.removeprefix("bytes=").split("-")[0])
        for entry in client.server.requests("GET", client.key)
    ]
    assert len(starts) == 3
    assert starts[0] == 0
    assert starts[1] > SIZE * 0.3
    assert starts[2] == pytest.approx(starts[1] + (SIZE - starts[1]) * 0.6, abs=2)


def test_a_refusal_for_now_says_when_to_come_back(client: Client) -> None:
    """obstore loses the reply's headers; there the repeat tells."""
    store = client.store()
    client.server.script(Status(503, "SlowDown", retry_after_s=7), key=client.key, times=2)
    with pytest.raises(Unavailable) as first:
        store.read(client.key, 0, 10)
    with pytest.raises(Unavailable, match="SlowDown") as second:
        store.read(client.key, 0, 10)
    assert first.value.retry_after_s == (None if client.name == "bulk" else 7)
    assert second.value.retry_after_s == 7
    assert bytes(store.read(client.key, 0, 10).data) == DATA[:10]


def test_silence_is_a_timeout(client: Client) -> None:
    client.server.script(Hang(), key=client.key, times=3)
    store = client.store(idle_timeout_s=0.3)
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            store.read(client.key, 0, 10)
    with pytest.raises(StoreTimeout):
        store.write(client.key, memoryview(b"x"))


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Status(403, "SignatureDoesNotMatch"), AccessDenied, "secret key"),
        (WrongRegion("eu-west-1"), StoreError, "AWS_REGION=eu-west-1"),
    ],
    ids=["secret", "region"],
)
def test_refusals_are_definite_and_in_words(
    client: Client, fault: Fault, kind: type[WStoreError], words: str
) -> None:
    """One request says what is wrong; after obstore, which loses the words, and after HEAD, which has
    none, a second one does."""
    client.server.script(fault, key=client.key, times=FOREVER)
    store = client.store()
    reads = ["GET", "GET"] if client.name == "bulk" else ["GET"]
    for call, methods in (
        (lambda: store.read(client.key, 0, 10), reads),
        (lambda: store.stat(client.key), ["HEAD", "GET"]),
    ):
        before = len(client.server.requests())
        with pytest.raises(kind, match=words) as caught:
            call()
        assert not caught.value.retryable
        assert [e.request.method for e in client.server.requests()[before:]] == methods
        text = "".join(traceback.format_exception(caught.value))
        assert client.server.endpoint.secret_key not in text


@pytest.mark.parametrize("key", ["object", "odd//key"], ids=["bulk", "wire"])
def test_a_certificate_that_is_not_trusted(identity: TlsIdentity, key: str) -> None:
    with FaultServer(tls=identity.context) as server:
        server.put(key, DATA)
        config = S3Config.from_environment(server.endpoint.environment())
        store = S3Store(server.bucket, config)
        for call in (lambda: store.read(key, 0, 10), lambda: store.stat(key)):
            with pytest.raises(StoreError, match="AWS_CA_BUNDLE") as caught:
                call()
            assert not caught.value.retryable
        assert server.requests() == []


def test_a_create_whose_answer_was_lost_can_be_settled(
    fault_server: FaultServer, store: S3Store
) -> None:
    fault_server.script(LostAnswer(), key="new", method="PUT")
    with pytest.raises(ConnectionFailed):
        store.write("new", memoryview(b"x"), expect=Expect.ABSENT, write_id="mine")
    with pytest.raises(AlreadyExists):
        store.write("new", memoryview(b"x"), expect=Expect.ABSENT, write_id="mine")
    assert store.wrote("new", "mine")
    assert not store.wrote("new", "other")
    assert not store.wrote("absent", "mine")


def test_a_conflict_between_creators_is_worth_repeating(
    fault_server: FaultServer, store: S3Store
) -> None:
    fault_server.script(Status(409, "ConditionalRequestConflict"), key="new", method="PUT")
    with pytest.raises(Unavailable):
        store.write("new", memoryview(b"x"), expect=Expect.ABSENT)
    store.write("new", memoryview(b"x"), expect=Expect.ABSENT)


def test_a_broken_upload_of_a_body_is_retryable(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(ResetWhileSending(after=1000), key="new", method="PUT")
    with pytest.raises(ConnectionFailed):
        store.write("new", memoryview(DATA))
    assert fault_server.get("new") is None
    store.write("new", memoryview(DATA))
    assert fault_server.get("new") == DATA


@pytest.mark.parametrize("fault", [ErrorInside200(), LostAnswer(), Status(500)], ids=str)
def test_completing_again_after_a_failure_publishes_once(
    fault_server: FaultServer, store: S3Store, fault: Fault
) -> None:
    upload = store.upload("new")
    upload.put(1, 1_000_000, memoryview(DATA)[1_000_000:])
    upload.put(0, 0, memoryview(DATA)[:1_000_000])
    fault_server.script(fault, key="new", method="POST")
    with pytest.raises((Unavailable, ConnectionFailed)):
        upload.complete()
    info = upload.complete()
    assert (info.size, info.tag) == (SIZE, store.stat("new").tag)
    assert fault_server.get("new") == DATA


def test_a_completion_whose_answer_is_no_document_is_settled(
    fault_server: FaultServer, store: S3Store
) -> None:
    """Something between answers for the service, once after it published and once instead of it."""
    for reached in (True, False):
        upload = store.upload("new")
        upload.put(0, 0, memoryview(b"data"))
        fault_server.script(Portal(reached), key="new", method="POST")
        if reached:
            assert upload.complete() == store.stat("new")
            continue
        with pytest.raises(IntegrityError) as caught:
            upload.complete()
        assert caught.value.url == "s3://bucket/new"
        assert upload.complete().tag == store.stat("new").tag


def test_a_portals_page_is_no_listing(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(Portal(), key="", method="GET")
    with pytest.raises(IntegrityError, match="is this S3") as caught:
        list(store.list("prefix/", recursive=True))
    assert caught.value.url == "s3://bucket/prefix/"


def test_the_same_page_for_ever_is_an_error(fault_server: FaultServer, store: S3Store) -> None:
    page = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    )
    fault_server.script(Portal(page=page), key="", method="GET", times=3)
    with pytest.raises(StoreError, match="same page"):
        list(store.list("", recursive=True))


@dataclass(frozen=True, slots=True)
class Portal:
    """Something between answers 200 with a page of its own; the service is `reached` before or not."""

    reached: bool = False
    page: bytes = b"<html><body>Please log in<br></body></html>"

    def play(self, exchange: Exchange) -> None:
        exchange.receive()
        if self.reached:
            exchange.handle()
        send(exchange, Reply(200, {}, self.page))


def test_a_completion_that_somebody_else_aborted_is_unknown(
    fault_server: FaultServer, store: S3Store
) -> None:
    upload = store.upload("new")
    upload.put(0, 0, memoryview(b"data"))
    assert store.sweep("", older_than_s=-3600) != []
    with pytest.raises(OutcomeUnknown):
        upload.complete()
    assert fault_server.get("new") is None


def test_a_failed_piece_forbids_completion_until_it_is_repeated(
    fault_server: FaultServer, store: S3Store
) -> None:
    upload = store.upload("new")
    upload.put(0, 0, memoryview(b"first"))
    fault_server.script(Status(403, "AccessDenied"), key="new", piece=2)
    with pytest.raises(AccessDenied):
        upload.put(1, 5, memoryview(b"second"))
    with pytest.raises(StoreError, match="piece 2"):
        upload.complete()
    upload.put(1, 5, memoryview(b"second"))
    upload.complete()
    assert fault_server.get("new") == b"firstsecond"


def test_a_missing_piece_forbids_completion(fault_server: FaultServer, store: S3Store) -> None:
    upload = store.upload("new")
    upload.put(0, 0, memoryview(b"first"))
    upload.put(2, 10, memoryview(b"third"))
    with pytest.raises(StoreError, match="piece 2"):
        upload.complete()
    upload.abort()
    upload.abort()
    assert store.sweep("", older_than_s=-3600) == []


def test_a_copy_pins_its_source(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(Honest(), key="object", method="HEAD")
    fault_server.script(Status(412, "PreconditionFailed"), key="copy", method="PUT")
    with pytest.raises(ObjectChanged, match="copied") as caught:
        store.copy("object", "copy")
    assert caught.value.url.endswith("/object")
    with pytest.raises(NotFound) as missing:
        store.copy("absent", "copy")
    assert missing.value.url.endswith("/absent")


def test_a_copy_in_pieces_leaves_no_debris_when_it_fails(
    fault_server: FaultServer, store: S3Store
) -> None:
    wire = wire_of(fault_server)
    fault_server.script(Status(403, "AccessDenied"), key="copy", piece=2)
    with pytest.raises(AccessDenied):
        copy_object(wire, "object", "copy", limit=1, piece=1_000_000)
    assert store.sweep("", older_than_s=-3600) == []
    assert fault_server.get("copy") is None
    copy_object(wire, "object", "copy", limit=1, piece=1_000_000)
    assert fault_server.get("copy") == DATA


def wire_of(server: FaultServer) -> Wire:
    from wstore.stores.s3.credentials import Provider

    config = S3Config.from_environment(server.endpoint.environment())
    return Wire(server.bucket, config, Provider(config))


def test_a_forked_child_reads(client: Client) -> None:
    """Also where obstore, which hangs in a child, has been used before."""
    store, key = client.store(), client.key
    assert bytes(store.read(key, 0, 10).data) == DATA[:10]
    with warnings.catch_warnings():
        # From 3.12 on Python warns of every fork beside threads: here the server's.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            good = bytes(store.read(key, 10, 10).data) == DATA[10:20]
            status = 0 if good and store.stat(key).size == SIZE else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(store.read(key, 20, 10).data) == DATA[20:30]
    by_obstore = ["accept-encoding" not in e.request.headers for e in client.server.requests("GET")]
    assert by_obstore == ([True, False, True] if client.name == "bulk" else [False] * 3)


def test_a_corrupted_answer_is_no_xml_and_no_success(
    fault_server: FaultServer, store: S3Store
) -> None:
    fault_server.script(ShortBody(0.5), key="", method="GET")
    with pytest.raises((IntegrityError, ConnectionFailed)):
        list(store.list("", recursive=True))


def test_wrong_endpoint_is_said(store: S3Store) -> None:
    closed = S3Config.from_environment(
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_SKIP_SIGNATURE": "1"}
    )
    gone = dataclasses.replace(closed, endpoint="http://no-such-host.invalid")
    with pytest.raises(ConnectionFailed, match="refused"):
        S3Store("bucket", closed).stat("k")
    with pytest.raises((StoreError, ConnectionFailed), match="host name"):
        S3Store("bucket", gone).stat("k")
