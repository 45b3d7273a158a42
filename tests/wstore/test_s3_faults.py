"""The bare S3 store against a server that misbehaves: one attempt each, never a wrong byte."""

from __future__ import annotations

import dataclasses
import os
import random
import traceback
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
)

if TYPE_CHECKING:
    from wstore.stores.base import Read

SIZE = 1_500_000
DATA = random.Random(7).randbytes(SIZE)


@pytest.fixture
def store(fault_server: FaultServer) -> S3Store:
    environment = fault_server.endpoint.environment() | {"WSTORE_IDLE_TIMEOUT": "1"}
    fault_server.put("object", DATA)
    fault_server.put("odd//key", DATA)
    return S3Store(fault_server.bucket, S3Config.from_environment(environment))


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
            part: Read = error.read
            assert part.data.obj is buffer, "what came lies in the caller's buffer"
            at += part.data.nbytes
        except WStoreError as error:
            if not error.retryable:
                raise
    raise AssertionError(f"not whole after {attempts} attempts")


@pytest.mark.parametrize("key", ["object", "odd//key"], ids=["bulk", "wire"])
@pytest.mark.parametrize(
    "fault",
    [
        Cut(0.6), Cut(0.6, reset=True), ShortBody(0.6), LyingLength(-5), Hang(after=200_000), Hang(),
        Status(503, "SlowDown"), Status(500), Status(429), Status(408, "RequestTimeout"),
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_that_passes_costs_one_attempt_and_no_byte(
    fault_server: FaultServer, store: S3Store, fault: Fault, key: str
) -> None:
    fault_server.script(fault, key=key, method="GET", times=2)
    data, attempts = read_to_the_end(store, key, 3)
    assert data == DATA
    assert attempts == 3


@pytest.mark.parametrize("key", ["object", "odd//key"], ids=["bulk", "wire"])
@pytest.mark.parametrize("fault", [WrongRange(), IgnoredRange()], ids=str)
def test_another_range_than_asked_is_an_error(
    fault_server: FaultServer, store: S3Store, fault: Fault, key: str
) -> None:
    fault_server.script(fault, key=key, method="GET", times=FOREVER)
    with pytest.raises(StoreError):
        store.read(key, 100, 1000)


@pytest.mark.parametrize("key", ["object", "odd//key"], ids=["bulk", "wire"])
def test_an_object_replaced_meanwhile(fault_server: FaultServer, store: S3Store, key: str) -> None:
    tag = store.stat(key).tag
    fault_server.script(Replaced(b"other" * 1000), key=key, method="GET")
    with pytest.raises(ObjectChanged):
        store.read(key, 0, 1000, tag=tag)


def test_the_first_cut_of_a_large_body_keeps_what_came(
    fault_server: FaultServer, store: S3Store
) -> None:
    fault_server.script(Cut(0.6), key="object", method="GET", times=2)
    read_to_the_end(store, "object", 3)
    first, second, third = fault_server.requests("GET", "object")
    starts = [
        int(str(e.request.headers["range"])[6:].split("-")[0]) for e in (first, second, third)
    ]
    assert starts[0] == 0
    assert starts[1] > SIZE * 0.3
    assert starts[2] == pytest.approx(starts[1] + (SIZE - starts[1]) * 0.6, abs=2)


def test_the_repeat_tells_when_to_come_back(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(Status(503, "SlowDown", retry_after_s=7), key="object", times=2)
    with pytest.raises(Unavailable):
        store.read("object", 0, 10)
    with pytest.raises(Unavailable, match="SlowDown") as caught:
        store.read("object", 0, 10)
    assert caught.value.retry_after_s == 7
    assert bytes(store.read("object", 0, 10).data) == DATA[:10]


def test_silence_is_a_timeout(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(Hang(), key="object", times=3)
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            store.read("object", 0, 10)
    with pytest.raises(StoreTimeout):
        store.write("object", memoryview(b"x"))


def test_refusals_are_definite_and_in_words(fault_server: FaultServer, store: S3Store) -> None:
    fault_server.script(Status(403, "SignatureDoesNotMatch"), key="object", times=4)
    for call in (lambda: store.read("object", 0, 10), lambda: store.stat("object")):
        with pytest.raises(AccessDenied, match="secret key"):
            call()
    fault_server.script(WrongRegion("eu-west-1"), key="object", times=4)
    for call in (lambda: store.read("object", 0, 10), lambda: store.stat("object")):
        with pytest.raises(StoreError, match="AWS_REGION=eu-west-1") as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert fault_server.endpoint.secret_key not in text


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


def test_a_forked_child_reads_over_the_wire(fault_server: FaultServer, store: S3Store) -> None:
    assert bytes(store.read("object", 0, 10).data) == DATA[:10]
    child = os.fork()
    if child == 0:
        good = bytes(store.read("object", 10, 10).data) == DATA[10:20]
        os._exit(0 if good and store.stat("object").size == SIZE else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(store.read("object", 20, 10).data) == DATA[20:30]


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
