"""Tests, benchmarks and the demo reach the server that they started, whatever the user's environment says."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wstore import StoragePath
from wstore.stores.gcs.config import GcsConfig
from wstore.stores.s3.config import S3Config
from wstore.testing.environments import pointed_at
from wstore.testing.gcs_requests import GcsEndpoint, get_gcs_object
from wstore.testing.s3_requests import S3Endpoint
from wstore_transports.demo.run import _own_gcs

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OURS = "http://127.0.0.1:9"
USERS = {
    "AWS_ENDPOINT_URL_S3": "https://users.invalid",
    "AWS_PROFILE": "user",
    "AWS_SESSION_TOKEN": "users",
    "CLOUDSDK_AUTH_ACCESS_TOKEN": "users",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/user/key.json",
    "GOOGLE_CLOUD_QUOTA_PROJECT": "user",
    "STORAGE_EMULATOR_HOST": "users.invalid",
    "WSTORE_GCS_ENDPOINT": "https://users.invalid",
    "HOME": "/home/user",
}


def test_nothing_of_the_users_leads_elsewhere() -> None:
    gcs = GcsEndpoint(OURS)
    config = GcsConfig.from_environment(gcs.applied_to(USERS))
    assert config == GcsConfig.from_environment(gcs.environment())
    assert config.emulator
    s3 = S3Endpoint(OURS, "key", "secret")
    environment = s3.applied_to(USERS)
    assert S3Config.from_environment(environment) == S3Config.from_environment(s3.environment())
    assert environment["HOME"] == "/home/user"
    assert environment["WSTORE_GCS_ENDPOINT"] == USERS["WSTORE_GCS_ENDPOINT"]


def test_this_process_is_pointed_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSTORE_GCS_ENDPOINT", USERS["WSTORE_GCS_ENDPOINT"])
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", USERS["STORAGE_EMULATOR_HOST"])
    before = dict(os.environ)
    with pointed_at(GcsEndpoint(OURS)):
        assert "WSTORE_GCS_ENDPOINT" not in os.environ
        assert os.environ["STORAGE_EMULATOR_HOST"] == OURS
    assert dict(os.environ) == before


def test_the_demos_own_emulator_is_the_one_that_is_used(tmp_path: Path) -> None:
    with ExitStack() as stack:
        _, environment = _own_gcs(tmp_path, stack, USERS)
        config = GcsConfig.from_environment(environment)
    assert config == GcsConfig.from_environment(
        {"STORAGE_EMULATOR_HOST": environment["STORAGE_EMULATOR_HOST"]}
    )


def test_the_tests_own_emulator_is_the_one_that_is_used(
    gcs: GcsEndpoint, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WSTORE_GCS_ENDPOINT", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.setenv(name, USERS[name])
    bucket: str = request.getfixturevalue("gcs_bucket")
    path = StoragePath(f"gs://{bucket}/k")
    path.write_bytes(b"here")
    path.store.close()
    assert get_gcs_object(gcs, bucket, "k") == b"here"
