"""Failing S3 runs of every kind: no error, log line, repr, traceback or pickle holds a secret."""

from __future__ import annotations

import contextlib
import logging
import pickle
import traceback
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath
from wstore.errors import CredentialsMissing, WStoreError
from wstore.stores import registry
from wstore.stores.wrap.retry import Retry, RetryPolicy
from wstore.testing.certificates import make_identity
from wstore.testing.fault_server import FOREVER, FaultServer
from wstore.testing.faults import Cut, Status, WrongRegion
from wstore.testing.guarding import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wstore.testing.faults import Fault

SECRET, TOKEN = "the-very-secret-key", "the-very-secret-session-token"
LARGE = 3 << 20


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "access-key-id",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "WSTORE_CONNECT_TIMEOUT": "5",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything that any logger says."""
    with contextlib.ExitStack() as stack:
        for name in ("", *logging.root.manager.loggerDict):
            stack.enter_context(caplog.at_level(logging.DEBUG, logger=name or None))
        yield caplog


def seen(error: WStoreError) -> str:
    """Whatever a user, a log or another process may get to see of an error."""
    thawed = pickle.loads(pickle.dumps(error))
    return "\n".join(
        [
            str(error),
            repr(error),
            repr(vars(error)),
            "".join(traceback.format_exception(error)),
            pickle.dumps(error).decode("latin-1"),
            str(thawed),
        ]
    )


def fail_in_every_way(path: StoragePath) -> list[str]:
    """What each kind of call shows when it fails, on a path whose server refuses everything."""
    store = Retry(registry.bare_store(path.location), RetryPolicy(deadline_s=0.0))
    path = StoragePath(path, store=store)
    calls: list[Callable[[], object]] = [
        path.stat,
        path.exists,
        path.read_bytes,
        lambda: path.read_into(bytearray(LARGE)),
        lambda: path.write_file(b"x"),
        lambda: path.write_file(b"x", if_absent=True),
        lambda: path.write_file(bytes(12 << 20), piece_size=5 << 20),
        lambda: list(path.parent.iterdir()),
        path.remove,
        lambda: path.copy(path.with_name("copy")),
        path.sweep,
    ]
    shown = [repr(path), repr(store), repr(store.inner), repr(vars(registry._registry))]
    errors: list[WStoreError] = []
    for call in calls:
        try:
            call()
        except WStoreError as error:
            errors.append(error)
    assert len(errors) >= len(calls) - 2, errors
    assert all(error.url.startswith(f"s3://{path.root}") for error in errors), errors
    return shown + [seen(error) for error in errors]


def expect_no_secret(shown: list[str], logs: pytest.LogCaptureFixture) -> None:
    lines = [record.getMessage() + repr(record.args) for record in logs.records]
    for text in (*shown, *lines, logs.text):
        assert SECRET not in text
        assert TOKEN not in text


@pytest.mark.parametrize(
    "fault",
    [
        Status(403, "SignatureDoesNotMatch"),
        Status(400, "ExpiredToken"),
        Status(503, "SlowDown"),
        Status(307, "TemporaryRedirect"),
        WrongRegion("eu-west-1"),
        Cut(0.0, reset=True),
    ],
    ids=["wrong key", "expired token", "overload", "redirect", "region", "reset"],
)
@pytest.mark.usefixtures("secrets")
def test_a_server_that_refuses(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, logs: pytest.LogCaptureFixture
) -> None:
    with FaultServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint.url)
        server.script(fault, times=FOREVER)
        shown = fail_in_every_way(StoragePath(f"s3://{server.bucket}/directory/object"))
        assert server.requests()
    expect_no_secret(shown, logs)


@pytest.mark.usefixtures("secrets")
def test_a_wrong_endpoint(monkeypatch: pytest.MonkeyPatch, logs: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    expect_no_secret(fail_in_every_way(StoragePath("s3://bucket/directory/object")), logs)


@pytest.mark.usefixtures("secrets")
def test_a_certificate_that_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: pytest.LogCaptureFixture
) -> None:
    with FaultServer(tls=make_identity(tmp_path).context) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint.url)
        shown = fail_in_every_way(StoragePath(f"s3://{server.bucket}/directory/object"))
        assert not server.requests()
    expect_no_secret(shown, logs)


def test_paths_and_their_pickles_hold_none(secrets: None) -> None:
    path = StoragePath("s3://bucket/object")
    _ = path.store
    for text in (repr(path), pickle.dumps(path).decode("latin-1"), repr(path.store.url)):
        assert SECRET not in text
        assert TOKEN not in text


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_missing_credentials_name_the_url(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://127.0.0.1:1")
    path = StoragePath("s3://bucket/some/object")
    for call in (path.stat, path.read_bytes, lambda: path.write_file(b"x")):
        with pytest.raises(CredentialsMissing, match="s3://bucket/some/object"):
            call()
