"""inspect, verify, diff, pull, gc and mirror on a root that holds a chain of deltas."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors

from tests.wstore_transports.chains import Trainer
from wstore.cli import main
from wstore.errors import IntegrityError, UnsupportedOperation
from wstore.path import StoragePath
from wstore_codecs import tensors
from wstore_transports.checkpoint import CheckpointReader, CheckpointWriter, weights_digest
from wstore_transports.delta import Subscriber
from wstore_transports.delta.pointer import Handshake
from wstore_transports.delta.pulling import pull
from wstore_transports.examining import proving
from wstore_transports.examining.difference import compare
from wstore_transports.versions import Root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], dict[int, str]]:
    """A root with six versions, an anchor in the middle; their numbers, and their digests."""
    place = tmp_path_factory.mktemp("chain") / "root"
    trainer = Trainer(StoragePath(place), anchor_every=3, lease_s=0.1)
    for _ in range(6):
        trainer.publish()
        trainer.settle()
    trainer.publisher.end()
    trainer.publisher.close()
    return place, sorted(trainer.digests), trainer.digests


@pytest.fixture
def root(made: tuple[Path, list[int], dict[int, str]], tmp_path: Path) -> Path:
    """A copy of that root, to be changed."""
    shutil.copytree(made[0], tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def numbers(made: tuple[Path, list[int], dict[int, str]]) -> list[int]:
    return made[1]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command line."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """What a command line that succeeds says in JSON."""
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def damage(path: Path, at: int = -1) -> None:
    """Change one byte of an object."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def objects(root: Path, number: int) -> list[Path]:
    """The objects that a version's own manifest lists."""
    manifest = Root.open(StoragePath(root)).version(number).manifest()
    return [root / ref.name for ref in manifest.objects]


def test_inspect_shows_density_over_time(
    root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = told(capsys, "inspect", root)["versions"]
    assert [row["version"] for row in rows] == numbers
    assert [row["kind"] for row in rows] == ["full", *["delta"] * 5]
    assert sum(row["anchor"] for row in rows) >= 2
    assert all(0 < row["changed_blocks"] < row["blocks"] for row in rows[1:])
    assert all(row["ratio"] > 50 for row in rows[1:])
    code, out, _ = run(capsys, "inspect", root)
    assert (code, len(out.splitlines())) == (0, 7)
    assert "anchor" in out


def test_inspect_a_delta(
    root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "inspect", f"{root}@{numbers[2]}")
    a, b = found["tensors"]["a"], found["tensors"]["b"]
    assert (a["changed"], a["density"]) == (34, 34 / 90000)
    assert a["bytes"] == 180000
    assert 0 < a["stored_bytes"] < 1000
    assert (b["changed"], b["changed_blocks"]) == (0, 0)
    assert found["tensors"]["tied"]["tied_to"] == "a"
    assert found["changed"] == 34
    code, out, _ = run(capsys, "inspect", f"{root}@{numbers[2]}")
    assert code == 0
    assert "34 elements changed" in out
    assert "unchanged" in out
    full = told(capsys, "inspect", f"{root}@{numbers[0]}")
    assert full["version"]["kind"] == "full"
    assert "changed" not in full["tensors"]["a"]


def test_inspect_a_part(root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    part = objects(root, numbers[2])[0]
    found = told(capsys, "inspect", part)["frames"]
    assert [(row["members"][0]["tensor"], row["changed"]) for row in found] == [("a", 34)]
    assert found[0]["base"] != found[0]["result"]
    frame = part.with_name("one.frame")
    start = found[0]["offset"]
    frame.write_bytes(part.read_bytes()[start : start + found[0]["bytes"]])
    alone = told(capsys, "inspect", frame)["frames"]
    assert alone[0]["body_hash"] == found[0]["body_hash"]
    code, out, _ = run(capsys, "inspect", part)
    assert code == 0
    assert "1 frame" in out
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-3])
    code, _, err = run(capsys, "inspect", part)
    assert code == 1
    assert part.name in err


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_verify_looks_at_what_a_delta_builds_on(
    root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str], deep: list[str]
) -> None:
    url = f"{root}@{numbers[-1]}"
    before = told(capsys, "verify", url, *deep)
    assert before["ok"]
    assert before["objects"] >= 3
    damage(objects(root, numbers[0])[0])  # before the anchor: it is not needed
    assert told(capsys, "verify", url, *deep)["ok"]
    path = objects(root, numbers[-2])[0]
    damage(path, 20)
    code, _, err = run(capsys, "verify", url, *deep)
    assert code == 1
    assert str(path) in err
    path.unlink()
    code, _, err = run(capsys, "verify", url, *deep)
    assert code == 1
    assert f"{path}: is missing" in err


def test_deep_verification_replays(
    root: Path, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = Root.open(StoragePath(root)).version(numbers[-1])
    assert not proving.verify_version(version, deep=True).problems
    monkeypatch.setattr(proving, "BATCH_BYTES", 1)
    assert not proving.verify_version(version, deep=True).problems
    load = Subscriber.load

    def wrong(self: Subscriber, number: int, names: list[str]) -> dict[str, Any]:
        found = load(self, number, names)
        for name, array in found.items():
            tensors.bit_view(array, name=name).reshape(-1)[:1] ^= 1
        return found

    monkeypatch.setattr(Subscriber, "load", wrong)
    assert not proving.verify_version(version, deep=False).problems
    problems = proving.verify_version(version, deep=True).problems
    assert len(problems) == 2  # the empty tensor has no byte to be wrong
    assert "'a'" in problems[0]


def test_diff(root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    near = told(capsys, "diff", f"{root}@{numbers[2]}", f"{root}@{numbers[3]}")
    assert near["tensors"]["a"]["changed"] == 34
    assert near["tensors"]["a"]["what"] == "changed"
    assert near["tensors"]["b"]["what"] == "same"
    far = told(capsys, "diff", f"{root}@{numbers[0]}", f"{root}@{numbers[-1]}")
    assert (far["tensors"]["a"]["changed"], far["tensors"]["a"]["max_step"]) == (5 * 34, 1)
    assert far["changed_tensors"] == 1
    code, out, _ = run(capsys, "diff", f"{root}@{numbers[3]}", f"{root}@{numbers[2]}")
    assert code == 0
    assert "34 elements" in out
    assert "1 of them differ" in out


def test_diff_of_two_places(
    root: Path, numbers: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = Subscriber(str(root)).load(numbers[-1])
    del weights["tied"], weights["b"]
    weights["new"] = np.zeros(3)
    with CheckpointWriter(str(tmp_path / "other")) as writer:
        writer.write(0, weights)
    found = told(capsys, "diff", root, tmp_path / "other")["tensors"]
    whats = {name: row["what"] for name, row in found.items()}
    assert whats == {"a": "same", "c": "same", "new": "added", "b": "removed"}
    CheckpointReader(str(tmp_path / "other")).download(None, tmp_path / "plain")
    found = told(capsys, "diff", f"{root}@{numbers[-2]}", tmp_path / "plain")["tensors"]
    assert found["a"]["changed"] == 34
    assert run(capsys, "diff", root, tmp_path / "absent")[0] == 3


def test_the_greatest_step_between_numbers() -> None:
    one = np.array([1.0, -0.0, np.inf, 3.0], np.float32)
    two = np.array([np.nextafter(np.float32(1), np.float32(2)), 0.0, np.inf, 3.0], np.float32)
    assert compare(one, two, name="x") == (2, 1)
    most = np.finfo(np.float32).max
    far = compare(np.array([-most], np.float32), np.array([most], np.float32), name="x")
    assert far == (1, 2 * 0x7F7FFFFF + 1)
    assert compare(np.array([-1, 5], np.int8), np.array([1, 5], np.int8), name="x") == (1, 2)


@pytest.mark.parametrize("which", [0, -1])
def test_pull(
    root: Path,
    numbers: list[int],
    made: tuple[Path, list[int], dict[int, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    which: int,
) -> None:
    number = numbers[which]
    found = told(capsys, "pull", root, "--version", number, "-o", tmp_path / "out")
    assert found["version"] == number
    assert found["digest"] == made[2][number]
    got = CheckpointReader(str(tmp_path / "out")).load()
    assert weights_digest(got) == made[2][number]
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert file.metadata()["tied"] == "a"
        assert set(file.keys()) == {"a", "b", "c"}
    code, _, err = run(capsys, "pull", root, "-o", tmp_path / "out")
    assert code == 1
    assert "not an empty directory" in err
    assert run(capsys, "pull", f"{root}@1", "--version", 2, "-o", tmp_path / "x")[0] == 2


def test_pull_in_several_files(root: Path, numbers: list[int], tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    report = pull(
        str(root),
        tmp_path / "out",
        version=numbers[-1],
        max_file_bytes=1000,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert report.deltas
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert (
        weights_digest({**CheckpointReader(str(tmp_path / "out")).load()}) == report.version.digest
    )
    assert seen[-1][0] == seen[-1][1]


def test_pull_of_damaged_deltas_leaves_nothing(
    root: Path, numbers: list[int], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    path = objects(root, numbers[-1])[0]
    damage(path, 20)
    with pytest.raises(IntegrityError) as caught:
        pull(str(root), tmp_path / "here" / "out")
    assert path.name in str(caught.value)
    assert list((tmp_path / "here").iterdir()) == []


def test_pull_of_whole_weights_and_plain_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CheckpointWriter(str(tmp_path / "root")) as writer:
        writer.write(0, {"a": np.arange(5.0)}, files={"config.json": b"{}"})
    assert told(capsys, "pull", tmp_path / "root", "-o", tmp_path / "one")["deltas"] == 0
    assert told(capsys, "pull", tmp_path / "one", "-o", tmp_path / "two")["version"] is None
    assert (tmp_path / "one" / "config.json").read_bytes() == b"{}"
    got = CheckpointReader(str(tmp_path / "two")).load()
    assert weights_digest(got) == weights_digest({"a": np.arange(5.0)})


def test_a_checkpoint_reader_reads_anchors_and_says_what_reads_the_rest(
    root: Path, numbers: list[int], made: tuple[Path, list[int], dict[int, str]]
) -> None:
    reader = CheckpointReader(str(root))
    rows = Root.open(StoragePath(root)).versions()
    anchored = [row.number for row in rows if row.kind == "delta" and row.anchor()]
    assert anchored
    assert weights_digest(reader.load(anchored[0])) == made[2][anchored[0]]
    bare = next(row.number for row in rows if row.anchor() is None)
    with pytest.raises(UnsupportedOperation, match=r"Subscriber.*wstore pull"):
        reader.load(bare)
    mirrors = CheckpointReader([str(root), str(root.with_name("absent"))])
    assert weights_digest(mirrors.load(anchored[0])) == made[2][anchored[0]]
    with pytest.raises(UnsupportedOperation):
        mirrors.load(bare)


def test_commands_follow_a_pointer(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "handshake"
    found = Root.open(StoragePath(root))
    Handshake(StoragePath(place), found.path.url, found, "main")
    assert len(told(capsys, "inspect", place)["versions"]) == 6
    assert told(capsys, "verify", place)["ok"]
    assert told(capsys, "gc", place)["deleted"] is False
    assert told(capsys, "pull", place, "-o", tmp_path / "out")["deltas"]
    assert told(capsys, "mirror", place, tmp_path / "copy")["versions"] == 6
    shutil.rmtree(root)
    code, _, err = run(capsys, "verify", place)
    assert (code, "leads astray" in err) == (1, True)


def test_gc_keeps_chains_whole(
    root: Path, numbers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = told(capsys, "gc", root, "--keep", 2)
    stays = [row["version"] for row in plan["versions"] if row["stays"]]
    anchors = [row.number for row in Root.open(StoragePath(root)).versions() if row.anchor()]
    below = max(number for number in anchors if number <= numbers[-2])
    assert stays == [number for number in numbers if number >= below]
    done = told(capsys, "gc", root, "--keep", 2, "--yes")
    assert done["deleted"]
    assert [row["version"] for row in told(capsys, "inspect", root)["versions"]] == stays
    for number in stays:
        assert told(capsys, "verify", f"{root}@{number}", "--deep")["ok"]


def test_mirror(
    root: Path, numbers: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "copy"
    report = told(capsys, "mirror", root, to)
    assert (report["versions"], report["latest"], report["ended"]) == (6, numbers[-1], True)
    code, out, _ = run(capsys, "mirror", root, to, "--follow")
    assert (code, out) == (0, "")  # it has ended, and all is there
    code, out, _ = run(capsys, "mirror", root, to, "--no-variants")
    assert code == 0
    assert "0 objects" in out
    assert told(capsys, "verify", to, "--deep")["ok"]
    code, _, err = run(capsys, "gc", to, "--yes")
    assert code == 1
    assert "mirror.json" in err
    assert run(capsys, "mirror", tmp_path / "absent", tmp_path / "x")[0] == 3


@pytest.mark.long
def test_following_until_interrupted(tmp_path: Path) -> None:
    trainer = Trainer(StoragePath(tmp_path / "root"))
    trainer.publish()
    words = [sys.executable, "-m", "wstore.cli", "mirror", "--follow", "--json"]
    words += [str(tmp_path / "root"), str(tmp_path / "copy")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        newest = trainer.publish()
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        watchdog.cancel()
    assert process.returncode == 0, err
    assert (first["versions"], second["latest"]) == (1, newest)
    trainer.publisher.close()
