"""Google's part of the environment as a value: endpoints, emulators, credentials, and no secret leaks."""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath
from wstore.errors import InvalidArgument, InvalidPath
from wstore.stores import registry
from wstore.stores.gcs import GcsConfig, GcsStore, open_gcs, scheme_of
from wstore.stores.gcs.config import ENDPOINT, emulator_url
from wstore.stores.gcs.credentials import Tokens
from wstore.stores.s3.config import Target
from wstore.stores.s3.environment import Secret
from wstore.urls import parse

if TYPE_CHECKING:
    from pathlib import Path

KEY = '{"type": "service_account", "private_key": "very-secret"}'


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of Google's or an emulator's is set."""
    for name in ("STORAGE_EMULATOR_HOST", "WSTORE_GCS_ENDPOINT", "GOOGLE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_defaults_without_any_variable() -> None:
    config = GcsConfig.from_environment({})
    assert config == GcsConfig(default_credentials=(None, None))
    assert config.target("any.bucket") == Target("https", "storage.googleapis.com", True)
    assert config.request_headers() == {}


def test_all_variables(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    config = GcsConfig.from_environment(
        {
            "WSTORE_GCS_ENDPOINT": "https://Storage-private.p.googleapis.com/",
            "STORAGE_EMULATOR_HOST": "ignored:1",
            "GOOGLE_BEARER_TOKEN": " very-token\n",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": "other",
            "GOOGLE_SERVICE_ACCOUNT_KEY": KEY,
            "GOOGLE_APPLICATION_CREDENTIALS": "/adc.json",
            "CLOUDSDK_CONFIG": "/gcloud",
            "GOOGLE_CLOUD_QUOTA_PROJECT": "project",
            "GOOGLE_SKIP_SIGNATURE": "true",
            "WSTORE_GCS_CA_BUNDLE": str(tmp_path / "ca.pem"),
            "WSTORE_GCS_CHECKSUM": "off",
            "WSTORE_CONNECT_TIMEOUT": "1.5",
            "WSTORE_IDLE_TIMEOUT": "7",
        }
    )
    assert config == GcsConfig(
        endpoint="https://storage-private.p.googleapis.com",
        token=Secret("very-token"),
        key=Secret(KEY),
        default_credentials=("/adc.json", "/gcloud"),
        anonymous=True,
        billing_project="project",
        ca_bundle=str(tmp_path / "ca.pem"),
        connect_timeout_s=1.5,
        idle_timeout_s=7.0,
        checksum=False,
    )
    assert config.request_headers() == {"x-goog-user-project": "project"}


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("localhost:4443", "http://localhost:4443"),
        ("http://127.0.0.1:4443", "http://127.0.0.1:4443"),
        ("https://emulator:4443/", "https://emulator:4443"),
        ("default", None),
        ("", None),
    ],
)
def test_an_emulator_with_and_without_a_scheme(value: str, url: str | None) -> None:
    environment = {"STORAGE_EMULATOR_HOST": value}
    assert emulator_url(environment) == url
    config = GcsConfig.from_environment(environment)
    assert config.endpoint == (url or ENDPOINT)
    assert config.anonymous == config.emulator == (url is not None)
    given = GcsConfig.from_environment(environment | {"GOOGLE_BEARER_TOKEN": "t"})
    assert not given.anonymous


@pytest.mark.parametrize(
    "variables",
    [
        {"WSTORE_GCS_ENDPOINT": "storage.example"},
        {"WSTORE_GCS_ENDPOINT": "https://h/path"},
        {"WSTORE_GCS_ENDPOINT": "https://user:very-secret@h"},
        {"STORAGE_EMULATOR_HOST": "very-secret@h:1"},
        {"STORAGE_EMULATOR_HOST": "ftp://h"},
        {"GOOGLE_SERVICE_ACCOUNT": "/no/such/key.json"},
        {"GOOGLE_SERVICE_ACCOUNT_PATH": "/no/such/key.json"},
        {"GOOGLE_SERVICE_ACCOUNT": __file__, "GOOGLE_SERVICE_ACCOUNT_KEY": "very-secret"},
        {"WSTORE_GCS_CA_BUNDLE": "/no/such/file.pem"},
        {"WSTORE_GCS_CHECKSUM": "md5"},
        {"WSTORE_IDLE_TIMEOUT": "soon"},
    ],
)
def test_a_senseless_variable_is_named_and_nothing_secret_is(variables: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        GcsConfig.from_environment(variables)
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))


def test_no_token_goes_to_another_machine_in_the_clear() -> None:
    with pytest.raises(InvalidArgument, match="GOOGLE_SKIP_SIGNATURE"):
        GcsConfig.from_environment(
            {"WSTORE_GCS_ENDPOINT": "http://storage.example", "GOOGLE_BEARER_TOKEN": "very-token"}
        )
    GcsConfig(endpoint="http://storage.example", anonymous=True)
    GcsConfig(endpoint="http://127.0.0.1:9", token=Secret("t"))


def test_secrets_are_in_no_repr_and_no_pickle(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GOOGLE_BEARER_TOKEN", "very-token")
    clean.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", KEY)
    store, config = open_gcs("bucket"), GcsConfig.from_environment()
    assert hash(config) == hash(GcsConfig.from_environment())
    for thing in (store, config, Tokens(config), Secret("very-token")):
        assert "very-" not in repr(thing)
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(thing)


@pytest.mark.parametrize("bucket", ["", "a", "a/b", "-ab", "a b", "é12"])
def test_no_such_bucket_name(bucket: str) -> None:
    with pytest.raises(InvalidPath):
        GcsStore(bucket, GcsConfig())


def test_the_environment_chooses_the_client(clean: pytest.MonkeyPatch) -> None:
    """The XML API, gcsfs while an emulator is named, and each time the same store for the same values."""
    clean.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    location = parse("gs://bucket-of-many/key")
    xml = registry.bare_store(location)
    assert isinstance(xml, GcsStore)
    assert xml.url == "gs://bucket-of-many"
    clean.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    emulated = registry.bare_store(location)
    assert not isinstance(emulated, GcsStore)
    assert emulated.url == "gs://bucket-of-many"
    clean.setenv("WSTORE_GCS_ENDPOINT", "http://127.0.0.1:2")
    assert isinstance(registry.bare_store(location), GcsStore), "an endpoint wins over an emulator"
    clean.delenv("WSTORE_GCS_ENDPOINT")
    assert registry.bare_store(location) is emulated
    clean.delenv("STORAGE_EMULATOR_HOST")
    assert registry.bare_store(location) is xml
    assert scheme_of("gs").remote


def test_a_path_says_what_the_service_limits(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    facts = StoragePath("gs://bucket/key").store.capabilities
    assert facts.overwrite_interval_s == 1.0
    assert facts.create_if_absent
    assert facts.if_match
    assert facts.pieces.max_object == 5 << 40
    assert facts.pieces.max_pieces * facts.pieces.max_piece >= facts.pieces.max_object
