"""Access tokens: found, renewed before they expire and once when refused, and never shown."""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsMissing,
    InvalidArgument,
    MissingPackage,
    Unavailable,
    WStoreError,
)
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.gcs.credentials import Tokens, _translated
from wstore.stores.gcs.store import GcsStore
from wstore.stores.s3.environment import Secret
from wstore.stores.wrap import Retry
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@pytest.fixture
def service() -> FakeGcs:
    return FakeGcs(token="nobody-has-this")


@pytest.fixture
def server(service: FakeGcs) -> Iterator[FaultServer]:
    with FaultServer(service=service) as server:
        server.put("object", b"0123456789")
        yield server


@pytest.fixture
def account(server: FaultServer, private_key: str) -> str:
    """A service account whose tokens the stub gives."""
    return json.dumps(
        {
            "type": "service_account",
            "client_email": "trainer@project.iam.gserviceaccount.com",
            "private_key": private_key,
            "private_key_id": "1",
            "token_uri": f"{server.url}/oauth-token",
        }
    )


@pytest.fixture
def config(server: FaultServer, account: str) -> GcsConfig:
    return GcsConfig(endpoint=server.url, key=Secret(account))


def test_one_token_serves_many_requests(
    config: GcsConfig, service: FakeGcs, server: FaultServer
) -> None:
    store = GcsStore(server.bucket, config)
    for _ in range(3):
        assert bytes(store.read("object", 2, 3).data) == b"234"
    store.write("other", memoryview(b"x"))
    assert service.grants == 1


def test_a_key_file_and_default_credentials(
    server: FaultServer, account: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "account.json"
    file.write_text(account)
    assert Tokens(GcsConfig(endpoint=server.url, key_file=str(file))).get() == "granted-1"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT", raising=False)
    found = GcsConfig.from_environment()
    assert found.default_credentials[0] == str(file)
    assert Tokens(found).get() == "granted-2"


def test_a_token_is_renewed_before_it_expires(
    config: GcsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(config)
    assert tokens.get() == tokens.get() == "granted-1"
    soon = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(minutes=2)
    monkeypatch.setattr(tokens._source.get(), "expiry", soon)
    renewed = tokens.for_obstore()
    assert renewed["token"] == "granted-2"
    assert renewed["expires_at"] is not None


def test_threads_that_come_first_share_one_token(config: GcsConfig, service: FakeGcs) -> None:
    tokens, found = Tokens(config), list[str | None]()
    threads = [threading.Thread(target=lambda: found.append(tokens.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["granted-1"] * 8


def test_a_forked_child_finds_its_own_token(config: GcsConfig, service: FakeGcs) -> None:
    """Also while a thread of the parent holds the lock for ever, as one that renews would."""
    tokens = Tokens(config)
    assert tokens.get() == "granted-1"
    with tokens._lock.get(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of a fork beside threads: the server's
        child = os.fork()
        if child == 0:
            os._exit(0 if tokens.get() == "granted-2" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert tokens.get() == "granted-1"


def test_a_refused_token_is_renewed_once(
    config: GcsConfig, service: FakeGcs, server: FaultServer
) -> None:
    store = GcsStore(server.bucket, config)
    assert store.stat("object").size == 10
    service.revoke()
    with pytest.raises(Unavailable, match="token"):
        store.read("object", 0, 1)
    assert bytes(store.read("object", 0, 1).data) == b"0"
    assert service.grants == 2


def test_a_renewal_costs_a_retry_and_nothing_else(
    config: GcsConfig, service: FakeGcs, server: FaultServer
) -> None:
    store = Retry(GcsStore(server.bucket, config))
    store.write("other", memoryview(b"x"))
    service.revoke()
    assert store.stat("other").size == 1
    assert bytes(store.read("object", 0, 1).data) == b"0"
    assert service.grants == 2


def test_a_new_token_that_is_refused_too_is_access_denied(
    config: GcsConfig, service: FakeGcs, server: FaultServer
) -> None:
    store = GcsStore(server.bucket, config)
    store.stat("object")
    service.revoke(for_good=True)
    with pytest.raises(AccessDenied, match="AuthenticationRequired") as caught:
        Retry(store).write("object", memoryview(b"x"))
    assert not caught.value.retryable
    assert service.grants == 2
    assert "granted" not in "".join(traceback.format_exception(caught.value))


def test_a_fixed_token_that_is_refused_is_access_denied(server: FaultServer) -> None:
    store = GcsStore(server.bucket, GcsConfig(endpoint=server.url, token=Secret("very-token")))
    for call in (lambda: store.stat("object"), lambda: store.read("object", 0, 1)):
        with pytest.raises(AccessDenied, match="AuthenticationRequired") as caught:
            call()
        assert "very-token" not in "".join(traceback.format_exception(caught.value))


def test_anonymous_requests_show_nothing(server: FaultServer, service: FakeGcs) -> None:
    service.token = None
    store = GcsStore(server.bucket, GcsConfig(endpoint=server.url, anonymous=True))
    assert store.stat("object").size == 10
    assert all("authorization" not in entry.request.headers for entry in server.requests())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Status(400, "invalid_grant"), CredentialsMissing), (None, ConnectionFailed)],
    ids=["refused", "away"],
)
def test_who_gives_tokens_refuses_or_is_away(
    server: FaultServer,
    config: GcsConfig,
    account: str,
    private_key: str,
    fault: Status | None,
    kind: type[WStoreError],
) -> None:
    if fault is None:
        account = account.replace(server.url, "http://127.0.0.1:9")
        config = GcsConfig(endpoint=server.url, key=Secret(account))
    else:
        server.script(fault, method="POST", times=FOREVER)
    with pytest.raises(kind) as caught:
        Tokens(config).get()
    text = "".join(traceback.format_exception(caught.value))
    assert private_key.splitlines()[1] not in text


@pytest.mark.parametrize("text", ["no json, very-secret", '{"private_key": "very-secret"}', "[]"])
def test_a_key_that_is_none_is_not_repeated(text: str) -> None:
    with pytest.raises(InvalidArgument, match="GOOGLE_SERVICE_ACCOUNT_KEY") as caught:
        Tokens(GcsConfig(key=Secret(text))).get()
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))


def test_no_credentials_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(CredentialsMissing, match="gcloud auth"):
        Tokens(GcsConfig()).get()


@pytest.mark.parametrize("kind", ["RefreshError", "TransportError", "DefaultCredentialsError"])
def test_what_google_auth_says_is_not_repeated(kind: str) -> None:
    """Neither as text, nor by the chain of exceptions."""
    kinds = pytest.importorskip("google.auth.exceptions")

    def ask() -> None:
        raise getattr(kinds, kind)("the answer held very-secret")

    with pytest.raises(WStoreError, match=kind) as caught:
        _translated(ask)
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_without_google_auth_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(MissingPackage, match=r"wstore\[gcs\]"):
        Tokens(GcsConfig()).get()
    assert Tokens(GcsConfig(token=Secret("t"))).get() == "t"
