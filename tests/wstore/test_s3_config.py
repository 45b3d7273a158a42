"""The environment as a value: endpoints, hosts, credentials, and that no secret leaks from it."""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import TYPE_CHECKING

import botocore.session
import pytest
from botocore.credentials import ReadOnlyCredentials

from wstore.errors import CredentialsMissing, InvalidArgument, InvalidPath
from wstore.stores.s3 import S3Config, S3Store, open_s3
from wstore.stores.s3.config import Target
from wstore.stores.s3.credentials import Provider
from wstore.stores.s3.sigv4 import Credentials

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"AWS_ACCESS_KEY_ID": "AKIAxyz", "AWS_SECRET_ACCESS_KEY": "very-secret"}


def test_defaults_without_any_variable() -> None:
    assert S3Config.from_environment({}) == S3Config()


def test_all_variables() -> None:
    config = S3Config.from_environment(
        KEY
        | {
            "AWS_SESSION_TOKEN": "very-token",
            "AWS_ENDPOINT_URL": "http://other:1",
            "AWS_ENDPOINT_URL_S3": "http://LocalHost:9000/",
            "AWS_REGION": "eu-west-1",
            "AWS_DEFAULT_REGION": "us-west-2",
            "AWS_PROFILE": "dev",
            "AWS_NO_SIGN_REQUEST": "true",
            "WSTORE_CONNECT_TIMEOUT": "1.5",
            "WSTORE_IDLE_TIMEOUT": "7",
            "WSTORE_S3_CHECKSUM": "off",
            "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
            "AWS_SSE_KMS_KEY_ID": "key",
            "AWS_REQUEST_PAYER": "requester",
        }
    )
    assert config == S3Config(
        endpoint="http://localhost:9000",
        region="eu-west-1",
        credentials=Credentials("AKIAxyz", "very-secret", "very-token"),
        profile="dev",
        anonymous=True,
        connect_timeout_s=1.5,
        idle_timeout_s=7.0,
        checksum=False,
        encryption="aws:kms",
        kms_key="key",
        requester_pays=True,
    )


@pytest.mark.parametrize(
    ("bucket", "config", "target"),
    [
        ("b-1", S3Config(region="eu-west-1"), Target("https", "b-1.s3.eu-west-1.amazonaws.com", False)),
        ("b.c", S3Config(region="eu-west-1"), Target("https", "s3.eu-west-1.amazonaws.com", True)),
        ("b_c", S3Config(), Target("https", "s3.us-east-1.amazonaws.com", True)),
        ("b-1", S3Config(region="cn-north-1"), Target("https", "b-1.s3.cn-north-1.amazonaws.com.cn", False)),
        ("b-1", S3Config(endpoint="http://h:9000"), Target("http", "h:9000", True)),
    ],
)  # fmt: skip
def test_where_requests_go(bucket: str, config: S3Config, target: Target) -> None:
    assert config.target(bucket) == target


def test_googles_interoperability_mode() -> None:
    """HMAC keys of a bucket on Google Cloud Storage: region "auto", the bucket in the path, over TLS."""
    config = S3Config.from_environment(
        KEY | {"AWS_ENDPOINT_URL": "https://storage.googleapis.com", "AWS_REGION": "auto"}
    )
    assert config.region == "auto"
    assert config.target("b-1") == Target("https", "storage.googleapis.com", True)


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_ENDPOINT_URL": "localhost:9000"},
        {"AWS_ENDPOINT_URL": "ftp://host"},
        {"AWS_ENDPOINT_URL": "http://"},
        {"AWS_ENDPOINT_URL": "http://h:port"},
        {"AWS_ENDPOINT_URL": "http://h/path"},
        {"AWS_ENDPOINT_URL": "http://h?x=very-secret"},
        {"AWS_ENDPOINT_URL": "http://user:very-secret@h"},
        {"AWS_REGION": "eu west"},
        {"AWS_REGION": "evil.example/"},
        {"AWS_ACCESS_KEY_ID": "AKIA"},
        {"AWS_SECRET_ACCESS_KEY": "very-secret"},
        {"WSTORE_IDLE_TIMEOUT": "0"},
        {"WSTORE_IDLE_TIMEOUT": "soon"},
        {"WSTORE_CONNECT_TIMEOUT": "nan"},
        {"WSTORE_S3_CHECKSUM": "md5"},
        {"AWS_CA_BUNDLE": "/no/such/file.pem"},
    ],
)
def test_a_senseless_variable_is_named_and_nothing_secret_is(variables: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        S3Config.from_environment(variables)
    assert "very-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("bucket", ["", "a", "a/b", "-ab", "a b", "x" * 300, "é12", "..."])
def test_no_such_bucket_name(bucket: str) -> None:
    with pytest.raises(InvalidPath):
        S3Store(bucket, S3Config())


def test_secrets_are_in_no_repr_and_no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    store, config = open_s3("bucket"), S3Config.from_environment()
    assert hash(config) == hash(S3Config.from_environment())
    for thing in (store, config, Provider(config)):
        assert "secret" not in repr(thing)
        assert "AKIA" not in repr(thing)
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(thing)


def test_a_profile_is_read_through_botocore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[dev]\naws_access_key_id = AKIAdev\naws_secret_access_key = from-file\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert Provider(S3Config(profile="dev")).get() == Credentials("AKIAdev", "from-file")
    with pytest.raises(CredentialsMissing, match="nobody"):
        Provider(S3Config(profile="nobody")).get()


def test_no_credentials_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsMissing, match="AWS_ACCESS_KEY_ID"):
        Provider(S3Config()).get()
    assert Provider(S3Config(anonymous=True)).get() is None


def test_without_botocore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(CredentialsMissing, match=r"wstore\[s3\]"):
        Provider(S3Config()).get()


def test_a_key_that_expires_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that renews its key (an instance role) is asked each time; obstore is told to ask."""
    keys = iter(["first", "second"])

    class Source:
        def get_frozen_credentials(self) -> ReadOnlyCredentials:
            return ReadOnlyCredentials(next(keys), "secret", "token")

    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda session: Source())
    provider = Provider(S3Config())
    assert provider.get() == Credentials("first", "secret", "token")
    renewed = provider.for_obstore()
    assert renewed["access_key_id"] == "second"
    assert renewed["expires_at"] is not None
