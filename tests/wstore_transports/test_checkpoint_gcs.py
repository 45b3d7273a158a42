"""Checkpoints through Google's XML API, with its limits: pieces of 5 MiB, one overwrite a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.testing.fake_gcs import FakeGcs
from wstore.testing.fault_server import FaultServer
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    service = FakeGcs(token="a-token", min_piece=5 << 20, overwrite_interval_s=1.0)
    with FaultServer(service=service) as server:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.setenv("WSTORE_GCS_ENDPOINT", server.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "a-token")
        yield server


def test_versions_on_gcs(server: FaultServer) -> None:
    root = f"gs://{server.bucket}/run"
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((500, 1000)).astype(np.float32) for i in range(3)}
    with CheckpointWriter(root) as writer:
        writer.write(0, weights)
        weights["w1"] += 1
        report = writer.write(1, weights)
    reader = CheckpointReader(root)
    assert weights_digest(reader.load()) == report.digest
    refused = {(e.request.method, e.request.key) for e in server.requests() if e.status == 429}
    assert refused == set(), "hints and counters keep the pace that the store asks for"
