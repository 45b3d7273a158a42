"""A root, checkpoints and the demo on the stores that are neither S3 nor a disk."""

from __future__ import annotations

import json
import os
import uuid
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.wstore.sftp_server import PASSWORD, sftp_server
from tests.wstore_transports.delta.models import equal, model, train
from wstore import StoragePath
from wstore.cli import main
from wstore.testing.azurite import create_container
from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FaultServer
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.delta import Publisher, Subscriber

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wstore.testing.azurite import AzureEndpoint


@pytest.fixture
def azure(azurite: AzureEndpoint, monkeypatch: pytest.MonkeyPatch) -> StoragePath:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    for name, value in azurite.environment().items():
        monkeypatch.setenv(name, value)
    name = f"roots-{uuid.uuid4().hex[:8]}"
    create_container(azurite, name)
    return StoragePath(f"az://{name}/run")


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[StoragePath]:
    with sftp_server() as root:
        path = StoragePath(f"sftp://{root}/{str(tmp_path)[1:]}/run")
        yield path
        path.store.close()


@pytest.fixture
def emulated(gcs_bucket: str) -> Iterator[StoragePath]:
    path = StoragePath(f"gs://{gcs_bucket}/run")
    yield path
    path.store.close()


@pytest.fixture
def xml(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoragePath]:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    service = FakeGcs(token="stub-token", min_piece=5 << 20)
    with FaultServer(service=service) as server:
        monkeypatch.setenv("WSTORE_GCS_ENDPOINT", server.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "stub-token")
        path = StoragePath(f"gs://{server.bucket}/run")
        yield path
        path.store.close()


@pytest.fixture(
    params=[
        pytest.param("azure", marks=pytest.mark.long),
        pytest.param("sftp", marks=pytest.mark.long),
        "emulated",
    ]
)
def root(request: pytest.FixtureRequest) -> StoragePath:
    found: StoragePath = request.getfixturevalue(request.param)
    return found


def test_versions_are_written_and_read(root: StoragePath) -> None:
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((300, 1000)).astype(np.float32) for i in range(3)}
    digests = []
    with CheckpointWriter(root) as writer:
        for step in range(2):
            weights[f"w{step}"] += 1
            digests.append(writer.write(step, weights).digest)
    reader = CheckpointReader(root)
    assert [version.step for version in reader.versions()] == [0, 1]
    assert [weights_digest(reader.load(version)) for version in reader.versions()] == digests
    target = {"w1": np.zeros((300, 1000), np.float32)}
    reader.load(names=["w1"], out=target)
    assert (target["w1"] == weights["w1"]).all()


def test_deltas_are_followed(root: StoragePath) -> None:
    """Whole weights, deltas, an anchor, an engine that follows and one that joins late."""
    weights = model()
    with Publisher(root, anchor_every=2, keep=3) as publisher, Subscriber(root) as engine:
        publisher.publish(0, weights)
        publisher.flush()
        held = engine.load()
        for step in range(1, 5):
            train(weights, step)
            publisher.publish(step, weights)
            report = engine.sync(held, timeout=60)
            assert (report.step, report.digest) == (step, weights_digest(weights))
            assert equal(held, weights)
        publisher.flush()
        with Subscriber(root) as late:
            assert equal(late.load(), weights)


@pytest.mark.long
@pytest.mark.parametrize("name", ["azure", "sftp", "xml"])
def test_the_demo(
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root: StoragePath = request.getfixturevalue(name)
    monkeypatch.setenv("FSSPEC_SFTP_PASSWORD", PASSWORD)  # to the trainer and the engine
    with resources.as_file(resources.files("fracast")) as package:
        model = next(package.rglob("model.safetensors"))
        words = ["--url", root.url, "--model", str(model), "--versions", "2", "--engines", "1"]
        code = main(["demo", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert [row["digest_equal"] for row in found["versions"]] == [True, True]
