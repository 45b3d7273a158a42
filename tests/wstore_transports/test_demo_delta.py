"""The demo with deltas: the live weights of each engine follow the trainer's, bit by bit."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from wstore.cli import main
from wstore.path import StoragePath
from wstore_transports.demo.display import table, tensor_table
from wstore_transports.demo.events import Loaded, Published, TensorChange
from wstore_transports.demo.results import Results
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table


@pytest.fixture
def model() -> Iterator[str]:
    """A small real model."""
    with resources.as_file(resources.files("fracast")) as package:
        yield str(next(package.rglob("model.safetensors")))


def told(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    """What a demo that succeeded said with `--json`."""
    out, err = capsys.readouterr()
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def cells(table: Table, column: int) -> list[object]:
    return list(table.columns[column].cells)


def delta(version: int, started: float) -> Published:
    changes = [TensorChange("a", 100, 10, 200, 20), TensorChange("b", 300, 0, 600, 0)]
    return Published(
        version, version, 20, 20, started, started + 1, "aa", 1.0, "delta", started + 0.5, changes
    )


def test_an_engine_may_pass_over_a_version_but_not_the_last() -> None:
    results = Results(1, 3, "delta")
    for version in (2, 3, 5):
        results.published(delta(version, float(version)))
    results.loaded(0, Loaded(2, 4.0, 0.5, "aa", 1.0, 0.25))
    assert results.problems() == [
        "version 3: 0 of 1 engines had it",
        "version 5: 0 of 1 engines had it",
    ]
    assert cells(table(results), 9) == ["2.00", "...", "..."]
    results.loaded(0, Loaded(5, 7.0, 0.5, "aa", 1.0, 0.25))
    assert results.problems() == []
    assert cells(table(results), 9) == ["2.00", "skipped", "2.00"]
    assert cells(table(results), 3) == ["2.5%"] * 3
    assert cells(table(results), 5) == ["40.0x"] * 3
    assert cells(table(results), 6) == ["0.50"] * 3
    assert cells(table(results), 8) == ["0.250", "-", "0.250"]
    first, second = results.tensors()
    assert (first.name, first.elements, first.density, first.nbytes) == ("a", 100, 0.1, 60)
    assert (second.density, second.ratio) == (0.0, 0.0)
    assert cells(tensor_table(results), 4) == ["10.0x", "0.0x"]


@pytest.mark.long
def test_a_file_by_deltas(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "root")
    words = ["--url", url, "--model", model, "--versions", "3", "--engines", "1", "--json"]
    found = told(capsys, main(["demo", *words]))
    assert found["mode"] == "delta"
    first, *deltas = found["versions"]
    assert [row["kind"] for row in found["versions"]] == ["full", "delta", "delta"]
    assert first["density"] == 1.0
    for row in deltas:
        assert 0 < row["density"] <= 1
        assert row["ratio"] > 1
        assert row["bytes"] >= sum(one["bytes"] for one in row["tensors"]) > 0
    last = deltas[-1]
    assert last["digest_equal"]
    assert last["until_engine_s"][0] > last["pause_s"] > 0
    kinds = [version.kind for version in Root.open(StoragePath(url)).versions()]
    assert kinds == ["full", "delta", "delta"]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["delta", "checkpoint"])
def test_a_model_that_is_trained(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", str(tmp_path / "root"), "--mode", mode, "--versions", "3", "--json"]
    found = told(capsys, main(["demo", *words]))
    assert all(row["loss_equal"] and row["digest_equal"] for row in found["versions"])
    losses = [row["loss"] for row in found["versions"]]
    assert losses == sorted(losses, reverse=True)
    last = found["versions"][-1]
    assert last["kind"] == ("delta" if mode == "delta" else "full")
    assert (last["density"] is not None) == (mode == "delta")


@pytest.mark.long
def test_an_engine_that_joins_behind_an_earlier_run(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", str(tmp_path / "root"), "--model", model, "--engines", "1", "--tensors"]
    for _ in range(2):
        assert main(["demo", *words, "--versions", "2"]) == 0
        out = capsys.readouterr().out
        assert "all deltas by tensor" in out
        assert "equal in all 2 processes" in out


@pytest.mark.long
@pytest.mark.parametrize("mode", ["delta", "checkpoint"])
def test_deltas_on_a_server(mode: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--server", "s3", "--mode", mode, "--model", model, "--versions", "3", "--json"]
    found = told(capsys, main(["demo", *words]))
    assert found["url"].startswith("s3://")
    assert all(row["digest_equal"] for row in found["versions"])


@pytest.mark.long
def test_deltas_between_two_hosts(
    shared: tuple[Path, Path], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", str(shared[0] / "root"), "--engine-url", str(shared[1] / "root")]
    found = told(capsys, main(["demo", *words, "--model", model, "--versions", "3", "--json"]))
    assert all(row["digest_equal"] for row in found["versions"])
