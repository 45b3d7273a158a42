"""The command line over every kind of URL: watch, other clients, regions, missing buckets, completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath, cli, cli_completion
from wstore.cli_completion import command_typed, complete_url, join_colons
from wstore.cli_output import counted
from wstore.testing.faults import Hang

if TYPE_CHECKING:
    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.fault_server import FaultServer
    from wstore.testing.s3_requests import S3Endpoint

PROGRAM = str(Path(sys.executable).with_name("wstore"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    return (code, *capsys.readouterr())


# watch


def test_watch_prints_each_name_once_as_it_appears(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1" / "done").write_bytes(b"")
    command = [PROGRAM, "watch", str(tmp_path), "step_*/done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{tmp_path}/step_1/done\n"
        StoragePath(tmp_path / "step_2" / "done").write_bytes(b"")
        assert process.stdout.readline() == f"{tmp_path}/step_2/done\n"
        process.terminate()


def test_watch_ends_with_its_code_when_nothing_new_comes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    StoragePath("memory://watched/a").write_bytes(b"")
    code, out, err = run(capsys, "watch", "--timeout", "0.05", "--json", "memory://watched", "*")
    assert (code, out) == (4, '{"url": "memory://watched/a"}\n')
    assert "did not appear" in err


# Every kind of URL


def test_commands_take_regions_and_clients(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "aliases.toml"
    config.write_text(f'[regions]\nhere = {{test = "{tmp_path}/data"}}\n')
    monkeypatch.setenv("WSTORE_CONFIG", str(config))
    monkeypatch.setenv("WSTORE_REGION", "test")
    (tmp_path / "file").write_bytes(b"12345")
    assert run(capsys, "cp", tmp_path / "file", "region://here/copy")[0] == 0
    assert (tmp_path / "data" / "copy").read_bytes() == b"12345"
    assert run(capsys, "ls", "region://here")[1].split()[-1] == "copy"
    assert run(capsys, "ls", "region://there")[0] == 2

    assert run(capsys, "cp", "--client", "obstore", "region://here/copy", "memory://cli/x")[0] == 0
    assert StoragePath("memory://cli/x", client="obstore").read_bytes() == b"12345"
    assert not StoragePath("memory://cli/x").exists()
    for command in (["stat"], ["cat"], ["ls"], ["wait", "--timeout", "5"], ["rm"]):
        assert run(capsys, *command, "--client", "obstore", "memory://cli/x")[0] == 0
    code, _, err = run(capsys, "ls", "--client", "nobody", "memory://cli")
    assert (code, "unknown client 'nobody'" in err) == (2, True)


def test_commands_read_over_http(
    capsys: pytest.CaptureFixture[str], fault_server: FaultServer, tmp_path: Path
) -> None:
    fault_server.put("file", b"over http")
    url = f"{fault_server.endpoint.url}/{fault_server.bucket}"
    assert run(capsys, "cat", "--json", f"{url}/file")[0] == 0
    assert run(capsys, "ls", f"{url}/file")[1].split()[-1] == "file"
    assert run(capsys, "cp", f"{url}/file", tmp_path / "copy")[0] == 0
    assert (tmp_path / "copy").read_bytes() == b"over http"
    code, _, err = run(capsys, "ls", f"{url}/none")
    assert (code, "no listing" in err) == (2, True)
    StoragePath(url).store.close()


def test_ls_of_a_missing_bucket_says_that_the_bucket_is_missing(
    capsys: pytest.CaptureFixture[str],
    moto: S3Endpoint,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
) -> None:
    s3_environment(moto)
    code, _, err = run(capsys, "ls", "s3://no-such-bucket-at-all/x")
    assert (code, "there is no bucket" in err) == (3, True)
    code, _, err = run(capsys, "ls", f"s3://{bucket(moto)}/x")
    assert (code, "no object here" in err) == (3, True)


def test_counted() -> None:
    assert [counted(n, "object") for n in (0, 1, 2)] == ["0 objects", "1 object", "2 objects"]


# Completion


def test_local_names_are_completed(tmp_path: Path) -> None:
    for name in ("step_1", "step_2", "other", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_file").write_bytes(b"")
    found = complete_url(f"{tmp_path}/step")
    assert found == [f"{tmp_path}/{name}" for name in ("step_1/", "step_2/", "step_file")]
    assert len(complete_url(f"{tmp_path}/")) == 4
    assert complete_url(f"{tmp_path}/.h") == [f"{tmp_path}/.hidden/"]
    (tmp_path / "a b").write_bytes(b"")
    assert complete_url(f"file://{tmp_path}/a") == [f"file://{tmp_path}/a%20b"]


def test_keys_of_a_bucket_are_completed(
    moto: S3Endpoint, bucket: MakeBucket, s3_environment: UseEndpoint
) -> None:
    s3_environment(moto)
    url = f"s3://{bucket(moto)}"
    for name in ("run1/head.json", "run1/data/x", "run2/x", "rubbish"):
        (StoragePath(url) / name).write_bytes(b"")
    assert complete_url(f"{url}/run") == [f"{url}/run1/", f"{url}/run2/"]
    assert complete_url(f"{url}/") == [f"{url}/{name}" for name in ("rubbish", "run1/", "run2/")]
    assert complete_url(f"{url}/run1/d") == [f"{url}/run1/data/"]


@pytest.mark.parametrize(
    "typed",
    ["s3://buck", "s3:", "s3://", "nowhere://x/y", "region://none/x", "/no/such/folder/", "s3:/x"],
)
def test_what_cannot_be_completed_is_nothing(typed: str) -> None:
    assert complete_url(typed) == []


def test_a_store_that_hangs_does_not_hold_the_shell(
    fault_server: FaultServer, s3_environment: UseEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_completion, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("WSTORE_IDLE_TIMEOUT", "5")
    s3_environment(fault_server.endpoint)
    fault_server.script(Hang(None), times=100)
    assert complete_url(f"s3://{fault_server.bucket}/x") == []


@pytest.mark.parametrize(
    ("words", "cursor", "joined", "at", "left_out"),
    [
        ("wstore ls s3 : //b/x", 4, "wstore ls s3://b/x", 2, "s3:"),
        ("wstore cp s3 : //b/x ./y", 5, "wstore cp s3://b/x ./y", 3, ""),
        ("wstore ls ./x", 2, "wstore ls ./x", 2, ""),
        ("wstore ls ", 2, "wstore ls", 2, ""),
    ],
)
def test_bash_takes_urls_apart_and_gets_them_back(
    words: str, cursor: int, joined: str, at: int, left_out: str
) -> None:
    line = {"_WSTORE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(cursor)}
    assert join_colons(line) == left_out
    assert (line["COMP_WORDS"], line["COMP_CWORD"]) == (joined, str(at))


def test_the_command_is_known_once_it_is_typed() -> None:
    assert command_typed(["ls"], {"COMP_WORDS": "wstore --debug ls x"}) == "ls"
    assert command_typed(["ls"], {"_TYPER_COMPLETE_ARGS": "wstore l"}) is None
    assert command_typed(["ls"], {}) is None


@pytest.mark.long
def test_the_program_answers_a_shell(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"")

    def ask(words: str, at: int) -> list[str]:
        line = {"_WSTORE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run(
            [PROGRAM], env=os.environ | line, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert {"ls", "watch", "demo", "verify"} <= set(ask("wstore ", 1))
    assert ask(f"wstore cat file : //{tmp_path}/w", 4) == [f"//{tmp_path}/weights"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_for_bash_can_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, out, _ = run(capsys, "--show-completion=bash")
    assert (code, "_WSTORE_COMPLETE" in out) == (0, True)
