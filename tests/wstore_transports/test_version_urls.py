"""URL@N on the command line: what is a version's number, and what belongs to a host or a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore import StoragePath, cli, cli_output
from wstore.errors import InvalidArgument, InvalidPath
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter
from wstore_transports.commands.urls import split_version
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNT = "account.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("url", "place", "number"),
    [
        ("s3://bucket/run@12", "s3://bucket/run", 12),
        ("s3://bucket@3", "s3://bucket", 3),
        ("s3://bucket/@3", "s3://bucket", 3),
        ("gs://bucket/run@3", "gs://bucket/run", 3),
        ("memory://bucket@3", "memory://bucket", 3),
        ("/data/run@3", "/data/run", 3),
        ("/data/run@3/", "/data/run@3", None),
        ("/data/me@host/run", "/data/me@host/run", None),
        (f"abfs://container@{ACCOUNT}", f"abfs://container@{ACCOUNT}", None),
        (f"abfs://container@{ACCOUNT}@3", f"abfs://container@{ACCOUNT}", 3),
        (f"abfs://container@{ACCOUNT}/run", f"abfs://container@{ACCOUNT}/run", None),
        (f"abfs://container@{ACCOUNT}/run@3", f"abfs://container@{ACCOUNT}/run", 3),
        ("sftp://me@host", "sftp://me@host", None),
        ("sftp://me@10.0.0.7", "sftp://me@10.0.0.7", None),
        ("sftp://me@host:22", "sftp://me@host:22", None),
        ("sftp://me@host@3", "sftp://me@host", 3),
        ("sftp://me@host/run", "sftp://me@host/run", None),
        ("sftp://me@host/run@3", "sftp://me@host/run", 3),
    ],
)
def test_what_is_a_version(url: str, place: str, number: int | None) -> None:
    assert split_version(url, None) == (StoragePath(place), number)


def test_a_name_with_an_at_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"w": np.ones(3, np.float32)}
    for name in ("run@best", "run@3"):
        with CheckpointWriter(str(tmp_path / name)) as writer:
            writer.write(1, weights)
    data = next((tmp_path / "run@best").rglob("*.safetensors")).read_bytes()
    for base in (StoragePath(tmp_path), StoragePath("memory://version-urls")):
        file = base / "model@v2.safetensors"
        file.write_bytes(data)
        for command in ("inspect", "verify"):
            assert cli.main([command, file.url]) == 0
        assert cli.main(["inspect", (base / "model@v3.safetensors").url]) == 2
        said = capsys.readouterr().err
        assert "nothing has this name, and 'v3.safetensors' is not a version number" in said
    number = CheckpointReader(str(tmp_path / "run@best")).latest().number
    for name in ("run@best", f"run@best@{number}", "run@3/", f"run@3@{number}"):
        assert cli.main(["verify", "--json", f"{tmp_path}/{name}"]) == 0
        assert json.loads(capsys.readouterr().out)["tensors"] == 1


@pytest.mark.parametrize("url", ["s3://key:secret@bucket", "sftp://me:secret@host/run@x"])
def test_no_secret_is_repeated(url: str) -> None:
    with pytest.raises((InvalidPath, InvalidArgument)) as caught:
        split_version(url, None)
    assert "secret" not in str(caught.value)


def test_gc_shows_how_far_it_is_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_output, "SHOW_AFTER_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, this is a terminal
    Root.create(StoragePath(tmp_path), lease_s=0.1)
    with CheckpointWriter(str(tmp_path)) as writer:
        for step in (1, 2):
            writer.write(step, {"w": np.full(3, step, np.float32)})
    assert cli.main(["gc", "--yes", "--keep", "1", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "waiting for readers (seconds)" in said
    assert "deleting" in said
