"""Checkpoints on a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstore.testing.s3_requests import S3Endpoint


def test_versions_on_s3(
    seaweed: S3Endpoint,
    bucket: Callable[[S3Endpoint], str],
    s3_environment: Callable[[S3Endpoint], None],
    tmp_path: Path,
) -> None:
    s3_environment(seaweed)
    root = f"s3://{bucket(seaweed)}/run"
    random = np.random.default_rng(3)
    weights = {f"w{i}": random.standard_normal((1500, 1000)).astype(np.float32) for i in range(3)}
    with CheckpointWriter(root) as writer:
        writer.write(0, weights)
        weights["w1"] += 1
        report = writer.write(1, weights)
    reader = CheckpointReader(root)
    assert weights_digest(reader.load()) == report.digest
    out = {name: np.zeros_like(array) for name, array in weights.items()}
    reader.load(out=out, budget=8 << 20)
    assert weights_digest(out) == report.digest
    local = reader.download(None, tmp_path / "local")
    assert weights_digest(CheckpointReader(str(local)).load()) == report.digest
