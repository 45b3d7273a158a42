"""rm and cp on whole trees: what they say they did, what they refuse, and how far they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath, cli, cli_output

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "local"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoragePath]:
    base = StoragePath("memory://cli-trees/base" if request.param == "memory" else tmp_path)
    for name in ("a", "dir/b", "dir/c/d"):
        (base / name).write_bytes(b"x")
    yield base
    if request.param == "memory":
        base.remove_tree(missing_ok=True)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    return (code, *capsys.readouterr())


def test_rm_says_how_many_it_removed(base: StoragePath, capsys: pytest.CaptureFixture[str]) -> None:
    def removed(*options: str) -> object:
        code, out, _ = run(capsys, "rm", "--json", *options)
        return json.loads(out)["removed"] if code == 0 else code

    assert removed("-f", f"{base.url}/none") == 0
    assert removed("-f", "-r", f"{base.url}/none") == 0
    assert removed(f"{base.url}/none") == 3
    assert removed("-f", f"{base.url}/dir") == 2  # a directory needs -r
    assert removed("-f", f"{base.url}/a") == 1
    assert removed("-r", f"{base.url}/dir") == 2
    assert not (base / "dir").exists()


def test_rm_counts_an_object_that_is_a_prefix_too(capsys: pytest.CaptureFixture[str]) -> None:
    base = StoragePath("memory://cli-both/base")
    for name in ("a", "a/b"):
        (base / name).write_bytes(b"")
    code, out, _ = run(capsys, "rm", "--json", "-r", f"{base.url}/a")
    assert (code, json.loads(out)["removed"]) == (0, 2)


@pytest.mark.parametrize("inside", ["copy", "dir", ""])
def test_no_place_is_copied_into_itself(
    inside: str, base: StoragePath, capsys: pytest.CaptureFixture[str]
) -> None:
    root = StoragePath(base.location.anchor) if base.scheme == "memory" else base
    before = sorted(path.url for path in base.rglob("*"))
    for source, target in ((root, root / inside), (base / "dir", base / "dir" / inside)):
        code, _, err = run(capsys, "cp", "-r", source.url, target.url)
        assert (code, "lies inside what is copied" in err) == (2, True)
    assert sorted(path.url for path in base.rglob("*")) == before
    assert run(capsys, "cp", "-r", (base / "dir").url, (base / "dir2").url)[0] == 0


def test_rm_shows_how_far_it_is_on_a_terminal(
    base: StoragePath, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_output, "SHOW_AFTER_S", 0.0)
    assert run(capsys, "rm", "-r", f"{base.url}/dir/c")[2] == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, this is a terminal
    code, _, err = run(capsys, "rm", "-r", f"{base.url}/dir")
    assert (code, "removing dir" in err, "1/?" in err) == (0, True, True)


def test_remove_tree_tells_its_progress(base: StoragePath) -> None:
    told: list[tuple[int, int | None]] = []
    assert (base / "dir").remove_tree(progress=lambda *now: told.append(now)) == 2
    assert told == [(1, None), (2, None)]
