"""The demo, run for real: processes, publishing, comparison, and no process left behind."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore.cli import main
from wstore.path import StoragePath
from wstore_transports.demo.events import Loaded, Published
from wstore_transports.demo.results import Results
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


def children() -> set[int]:
    """Pids of this process's living children."""
    listed = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in listed for pid in file.read_text().split()}


@pytest.mark.long
def test_train_publish_follow_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = children()
    url = str(tmp_path / "root")
    code = main(["demo", "--url", url, "--versions", "2", "--steps", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert found["ok"]
    assert len(found["versions"]) == 2
    for row in found["versions"]:
        assert row["loss_equal"]
        assert row["digest_equal"]
        assert row["loss"] > 0
        assert len(row["until_engine_s"]) == 2
    assert found["versions"][0]["digest"] != found["versions"][1]["digest"]
    assert children() <= before


@pytest.mark.long
@pytest.mark.parametrize("runs", [1, 2])
def test_a_real_file_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: int
) -> None:
    with resources.as_file(resources.files("fracast")) as package:
        model = next(package.rglob("model.safetensors"))
        words = ["--url", str(tmp_path / "root"), "--model", str(model), "--versions", "2"]
        for _ in range(runs):
            code = main(["demo", *words, "--engines", "1"])
            out = capsys.readouterr().out
            assert code == 0
            assert "2 versions" in out
            assert "equal in all 2 processes" in out


@pytest.mark.long
def test_trainer_and_engines_on_two_hosts(
    shared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with resources.as_file(resources.files("fracast")) as package:
        model = next(package.rglob("model.safetensors"))
        words = ["--url", str(shared[0] / "root"), "--engine-url", str(shared[1] / "root")]
        words += ["--model", str(model), "--versions", "2", "--engines", "1", "--json"]
        code = main(["demo", *words])
        found = json.loads(capsys.readouterr().out)
        assert code == 0, found
        assert [row["digest_equal"] for row in found["versions"]] == [True, True]
    assert main(["demo", "--engine-url", str(shared[1])]) != 0
    assert "--engine-url goes with --url" in capsys.readouterr().err


@pytest.mark.long
def test_on_a_server_of_the_users(
    seaweed: S3Endpoint,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    s3_environment(seaweed)
    url = f"s3://{bucket(seaweed)}/demo"
    with resources.as_file(resources.files("fracast")) as package:
        model = next(package.rglob("model.safetensors"))
        words = ["--url", url, "--model", str(model), "--versions", "1", "--engines", "1"]
        assert main(["demo", *words]) == 0
    assert f"1 version under {url}: equal in all 2 processes" in capsys.readouterr().out
    assert len(Root.open(StoragePath(url)).versions()) == 1


@pytest.mark.parametrize(
    ("server", "scheme"), [("s3", "s3"), pytest.param("gcs", "gs", marks=pytest.mark.long)]
)
def test_on_a_server_of_its_own(
    server: str, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = children()
    with resources.as_file(resources.files("fracast")) as package:
        model = next(package.rglob("model.safetensors"))
        words = ["--server", server, "--model", str(model), "--versions", "1", "--engines", "1"]
        code = main(["demo", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert found["url"].startswith(f"{scheme}://")
    assert [row["digest_equal"] for row in found["versions"]] == [True]
    assert children() <= before


@pytest.mark.long
def test_a_process_that_fails_ends_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = children()
    words = ["--url", str(tmp_path / "root"), "--model", str(tmp_path / "absent.safetensors")]
    code = main(["demo", *words])
    err = capsys.readouterr().err
    assert code == 1
    assert "trainer" in err
    assert "absent.safetensors" in err
    assert children() <= before


def test_differences_are_problems() -> None:
    results = Results(engines=2, versions=2)
    results.loaded(0, Loaded(3, 2.0, 0.5, "aa", 1.0))
    results.published(Published(3, 10, 100, 50, 1.0, 1.5, "aa", 1.0))
    (row,) = results.rows
    assert row.publish_s == 0.5
    assert row.until(0) == 1.0
    assert row.until(1) is None
    assert results.problems() == [
        "1 of 2 versions were published",
        "version 3: 1 of 2 engines had it",
    ]
    results.loaded(1, Loaded(3, 2.0, 0.5, "bb", 1.5))
    assert "an engine's weights differ" in results.problems()[1]
    assert "an engine's loss differs" in results.problems()[2]
