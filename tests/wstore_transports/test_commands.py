"""inspect, verify and gc, as the command line runs them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wstore.cli import main
from wstore.path import StoragePath
from wstore.stores.base import Capabilities
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap.base import Wrapper
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with three versions of which the last shares a file with the second."""
    place = tmp_path / "root"
    Root.create(StoragePath(place), lease_s=0.1)
    weights = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(1000, np.int8)}
    with CheckpointWriter(str(place), max_file_bytes=100) as writer:
        writer.write(10, weights)
        writer.write(20, {**weights, "a": weights["a"] + 1})
        writer.write(30, {**weights, "a": weights["a"] + 2})
    return place


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command line."""
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_inspect_a_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", str(root))
    assert code == 0
    assert "3 versions" in out
    code, out, _ = run(capsys, "inspect", str(root), "--json")
    versions = json.loads(out)["versions"]
    assert [version["step"] for version in versions] == [10, 20, 30]


def test_inspect_a_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = CheckpointReader(str(root)).versions()[1].number
    code, out, _ = run(capsys, "inspect", f"{root}@{number}", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["version"]["step"] == 20
    assert found["tensors"]["a"]["dtype"] == "F64"
    assert found["tensors"]["a"]["shape"] == [2, 3]
    code, out, _ = run(capsys, "inspect", f"{root}@{number}")
    assert "[2, 3]" in out
    code, _, err = run(capsys, "inspect", f"{root}@99")
    assert code == 3
    assert "99" in err
    code, _, err = run(capsys, "inspect", f"{root}@x")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_inspect_a_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(iter(sorted(root.rglob("*.safetensors"))))
    code, out, _ = run(capsys, "inspect", str(file))
    assert code == 0
    assert "1 tensor," in out


def test_inspect_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "verify", "gc"):
        code, _, err = run(capsys, command, str(tmp_path / "absent"))
        assert code == 3
        assert "absent" in err
        assert len(err.splitlines()) == 1
    (tmp_path / "empty").write_bytes(b"")
    code, _, err = run(capsys, "verify", str(tmp_path / "empty"))
    assert (code, "nothing here" in err) == (1, False)
    Root.create(StoragePath(tmp_path / "new"))
    assert run(capsys, "verify", str(tmp_path / "new"))[0] == 3


@pytest.mark.parametrize("command", ["inspect", "verify", "gc"])
def test_a_damaged_marker_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (root / "wstore.json").chmod(0o644)
    (root / "wstore.json").write_bytes(b'{"format":1,')
    code, _, err = run(capsys, command, str(root))
    assert (code, "the root's marker is damaged" in err) == (1, True)


class Plain(Wrapper):
    """A store that cannot create if absent."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=False, if_match=False)


def test_gc_is_refused_where_nothing_keeps_a_publisher_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StoragePath("memory://gc/root", store=Plain(MemoryStore("gc")))
    monkeypatch.setattr("wstore_transports.commands.collecting.opened", lambda *_: place)
    monkeypatch.setattr("wstore_transports.commands.collecting.STILL_S", 3.0)
    root = Root.create(place, lease_s=0.1)
    session = root.begin_session("run", interval_s=0.5)
    assert run(capsys, "gc", "it")[2] == ""  # it only shows
    log = root.log.refresh().number
    code, _, err = run(capsys, "gc", "it", "--yes")
    assert (code, "memory://gc/root: a publisher lives here" in err) == (2, True)
    assert root.log.refresh().number == log
    session.close()  # it gives no sign of life any more
    code, _, err = run(capsys, "gc", "it", "--yes")
    assert (code, "for a sign of life" in err) == (0, True)
    (place / f"sessions/{session.epoch:012d}.json").remove()  # no sign of life either
    assert run(capsys, "gc", "it", "--yes")[0] == 0
    session = root.begin_session("run", interval_s=0.5)
    session.end()
    code, _, err = run(capsys, "gc", "it", "--yes")
    assert (code, "sign of life" in err) == (0, False)
    session.close()


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_verify(root: Path, capsys: pytest.CaptureFixture[str], deep: list[str]) -> None:
    code, out, _ = run(capsys, "verify", str(root), *deep)
    assert code == 0
    assert "intact" in out
    newest = CheckpointReader(str(root)).latest()
    file = root / newest.manifest().objects[0].name
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    code, out, err = run(capsys, "verify", str(root), "--json", *deep)
    assert code == 1
    assert file.name in err
    assert json.loads(out)["ok"] is False
    file.unlink()
    code, out, err = run(capsys, "verify", str(root), *deep)
    assert code == 1
    assert f"{file.name}: is missing" in err


def test_gc_shows_first_and_deletes_when_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(root.rglob("*"))
    code, out, _ = run(capsys, "gc", str(root), "--keep", "1")
    assert code == 0
    assert out.count("goes") == 2
    assert "nothing was deleted" in out
    assert sorted(root.rglob("*")) == before
    code, out, _ = run(capsys, "gc", str(root), "--keep", "1", "--yes", "--json")
    assert code == 0
    done = json.loads(out)
    assert done["deleted"] is True
    assert done["objects"]
    assert not any((root / going["name"]).exists() for going in done["objects"])
    assert [version.step for version in CheckpointReader(str(root)).versions()] == [30]
    assert run(capsys, "verify", str(root), "--deep")[0] == 0


def test_gc_says_when_a_starting_reader_stopped_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CheckpointWriter(str(root)).close()
    with Root.open(StoragePath(root)).begin_session("other") as session:
        (session.open_attempt(1).directory / "r00000.x").write_bytes(b"left over")
    Root.open(StoragePath(root)).begin_session("next").close()
    before = sorted(root.rglob("data/**/*"))
    with Root.open(StoragePath(root)).lease("joiner", interval_s=0.01):
        code, out, err = run(capsys, "gc", str(root), "--keep", "1", "--yes", "--json")
    assert code == 1
    assert "joiner" in err
    assert json.loads(out)["deleted"] is False
    assert sorted(root.rglob("data/**/*")) == before


def test_gc_refuses_what_is_no_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("mine")
    code, _, err = run(capsys, "gc", str(tmp_path), "--yes")
    assert code != 0
    assert "wstore.json" in err
    assert (tmp_path / "x").exists()


def test_commands_take_a_client(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("inspect", "verify", "gc"):
        code, _, err = run(capsys, name, "--client", "nobody", "memory://commands/root")
        assert (code, "unknown client 'nobody'" in err) == (2, True)
        assert run(capsys, name, "--client", "obstore", str(root))[0] == 0  # local: one client


@pytest.mark.parametrize("command", ["inspect", "verify", "gc", "demo --url"])
def test_urls_are_completed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("_WSTORE_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"wstore {command} {tmp_path}/ro")
    try:
        out, err = run(capsys)[1:]
    finally:
        logging.disable(logging.NOTSET)  # a program that completes ends at once, and says nothing
    assert f"{tmp_path}/root/" in out, err
