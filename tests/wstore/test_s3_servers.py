"""What only S3 has, on real servers: checksums, credentials, copies in pieces, sweeping, odd buckets."""

from __future__ import annotations

import base64
import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from wstore.errors import AccessDenied, IntegrityError, IsADirectory, NotFound, StoreError
from wstore.stores.base import MiB
from wstore.stores.s3 import S3Config, S3Store
from wstore.stores.s3.credentials import Provider
from wstore.stores.s3.maintenance import copy_object
from wstore.stores.s3.sigv4 import Credentials
from wstore.stores.s3.wire import Request, Wire
from wstore.testing.s3_requests import put_object

if TYPE_CHECKING:
    from tests.conftest import MakeBucket
    from wstore.testing.fault_server import FaultServer
    from wstore.testing.s3_requests import S3Endpoint

PIECE = 5 * MiB
DATA = random.Random(11).randbytes(2 * PIECE + 7)


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.long), "seaweed"])
def endpoint(request: pytest.FixtureRequest) -> S3Endpoint:
    found: S3Endpoint = request.getfixturevalue(request.param)
    return found


def config_of(endpoint: S3Endpoint) -> S3Config:
    return S3Config.from_environment(endpoint.environment())


def test_a_body_damaged_on_its_way_is_refused(seaweed: S3Endpoint, bucket: MakeBucket) -> None:
    config = config_of(seaweed)
    wire = Wire(bucket(seaweed), config, Provider(config))
    wrong = {"x-amz-checksum-crc32c": base64.b64encode(b"oops").decode()}
    with pytest.raises(IntegrityError) as caught:
        wire.call(Request("PUT", "key", headers=wrong, body=memoryview(b"data"), bulk=True))
    assert caught.value.retryable
    with pytest.raises(NotFound):
        wire.call(Request("HEAD", "key"))


def test_wrong_credentials_are_told_apart(seaweed: S3Endpoint, bucket: MakeBucket) -> None:
    name, config = bucket(seaweed), config_of(seaweed)
    S3Store(name, config).write("key", memoryview(b"data"))
    wrong_secret = Credentials(seaweed.access_key, "wrong-secret")
    for credentials, words in (
        (wrong_secret, "secret key does not fit"),
        (Credentials("AKIANOBODY", "wrong-secret"), "does not know this access key"),
    ):
        store = S3Store(name, dataclasses.replace(config, credentials=credentials))
        for call in (
            lambda store=store: store.stat("key"),
            lambda store=store: store.read("key", 0, 1),
            lambda store=store: store.write("key", memoryview(b"x")),
            lambda store=store: list(store.list("", recursive=True)),
        ):
            with pytest.raises(AccessDenied, match=words) as caught:
                call()
            assert "wrong-secret" not in str(caught.value)


def test_a_copy_in_pieces(endpoint: S3Endpoint, bucket: MakeBucket) -> None:
    name, config = bucket(endpoint), config_of(endpoint)
    store = S3Store(name, config)
    store.write("a source", memoryview(DATA))
    wire = Wire(name, config, Provider(config))
    info = copy_object(wire, "a source", "a copy", limit=PIECE, piece=PIECE)
    assert (info.size, info.tag) == (len(DATA), store.stat("a copy").tag)
    assert bytes(store.read("a copy", 0, len(DATA), tag=info.tag).data) == DATA


def test_an_upload_without_checksums(endpoint: S3Endpoint, bucket: MakeBucket) -> None:
    config = dataclasses.replace(config_of(endpoint), checksum=False)
    store = S3Store(bucket(endpoint), config)
    store.write("small", memoryview(b"data"))
    upload = store.upload("large")
    upload.put(1, PIECE, memoryview(DATA)[PIECE:])
    upload.put(0, 0, memoryview(DATA)[:PIECE])
    info = upload.complete()
    assert bytes(store.read("large", 0, len(DATA), tag=info.tag).data) == DATA


def test_sweeping_goes_by_prefix_and_by_the_services_clock(
    seaweed: S3Endpoint, bucket: MakeBucket
) -> None:
    store = S3Store(bucket(seaweed), config_of(seaweed))
    for key in ("run/a b", "run/c", "other/d"):
        store.upload(key)
    assert store.sweep("run/", older_than_s=3600) == []
    gone = store.sweep("run/", older_than_s=-3600)
    assert sorted(line.partition(" (")[0] for line in gone) == ["run/a b", "run/c"]
    assert [line[:7] for line in store.sweep("", older_than_s=-3600)] == ["other/d"]


def test_one_odd_key_does_not_spoil_a_listing(moto: S3Endpoint, bucket: MakeBucket) -> None:
    name = bucket(moto)
    keys = ["../x", "./x", "//", "/lead", "a//b", "a/../b", "a/b", "d/", "d/.", "\x01"]
    for key in keys:
        put_object(moto, name, key, key.encode())
    store = S3Store(name, config_of(moto))
    found = [entry.key for entry in store.list("", recursive=True)]
    assert found == sorted(keys, key=str.encode)
    for key in keys:
        assert bytes(store.read(key, 0, 100).data) == key.encode()
        assert store.stat(key).size == len(key)


def test_a_missing_bucket_is_named(endpoint: S3Endpoint) -> None:
    store = S3Store("no-such-bucket", config_of(endpoint))
    for call in (
        lambda: store.stat("key"),
        lambda: store.read("key", 0, 1),
        lambda: store.write("key", memoryview(b"")),
        lambda: store.upload("key"),
        lambda: list(store.list("", recursive=True)),
        lambda: store.sweep("", older_than_s=0),
    ):
        with pytest.raises(NotFound, match="no-such-bucket"):
            call()


def test_encryption_and_payer_headers_are_sent(fault_server: FaultServer) -> None:
    extra = {
        "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
        "AWS_SSE_KMS_KEY_ID": "my-key",
        "AWS_REQUEST_PAYER": "requester",
        "AWS_SESSION_TOKEN": "token",
    }
    config = S3Config.from_environment(fault_server.endpoint.environment() | extra)
    store = S3Store(fault_server.bucket, config)
    store.write("key", memoryview(b"data"))
    store.upload("key").abort()
    store.copy("key", "copy")
    store.read("key", 0, 1)
    for entry in fault_server.requests():
        headers = entry.request.headers
        assert headers["x-amz-request-payer"] == "requester"
        assert headers["x-amz-security-token"] == "token"
        if entry.request.method in {"PUT", "POST"}:
            assert headers["x-amz-server-side-encryption"] == "aws:kms"
            assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "my-key"


def test_an_object_copied_onto_itself_stays(endpoint: S3Endpoint, bucket: MakeBucket) -> None:
    store = S3Store(bucket(endpoint), config_of(endpoint))
    info = store.write("key", memoryview(b"data"))
    assert store.copy("key", "key").tag == info.tag
    assert bytes(store.read("key", 0, 4).data) == b"data"


def test_the_root_of_a_bucket_is_no_object(endpoint: S3Endpoint, bucket: MakeBucket) -> None:
    store = S3Store(bucket(endpoint), config_of(endpoint))
    for call in (lambda: store.stat(""), lambda: store.read("", 0, 1)):
        with pytest.raises(IsADirectory, match="root of a bucket"):
            call()


def test_a_plain_endpoint_that_is_asked_for_tls(moto: S3Endpoint) -> None:
    config = config_of(dataclasses.replace(moto, url=moto.url.replace("http:", "https:")))
    with pytest.raises(StoreError, match=r"without TLS.*AWS_ENDPOINT_URL") as caught:
        S3Store("any-bucket", config).stat("key")
    assert not caught.value.retryable
