"""What the command line says of closed and full streams, of Ctrl-C, and of what it leaves out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wstore import cli, cli_paths

if TYPE_CHECKING:
    import pytest

    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Exit code and standard error."""
    code = cli.main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err


def test_an_offset_that_no_file_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_bytes(b"x")
    code, err = run(capsys, "cat", "--offset", str(10**23), tmp_path / "f")
    assert (code, "--offset" in err) == (2, True)
    assert run(capsys, "cat", "--offset", str(2**63 - 1), tmp_path / "f") == (0, "")


def test_closed_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        code, err = run(capsys, "cp", "-", tmp_path / "copy")
        assert (code, err) == (2, "wstore: standard input is closed\n")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        code = cli.main(["ls", str(tmp_path)])
    assert (code, capsys.readouterr().err) == (2, "wstore: standard output is closed\n")


def test_a_full_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    full = os.fdopen(os.dup(descriptor), "w")
    monkeypatch.setattr(sys, "stdout", full)
    code = cli.main(["ls", str(tmp_path)])
    os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    full.close()
    os.close(descriptor)
    assert code == 1
    assert "standard output" in capsys.readouterr().err


def test_an_interrupt_while_the_program_loads_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("wstore"), "ls", "."],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")


def test_cp_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_bytes(b"x")
    (tree / "a link").symlink_to("sub/file")
    assert run(capsys, "cp", "-r", tree, tmp_path / "copy") == (0, "")
    (tree / "sub" / "to a directory").symlink_to(tree)
    (tree / "sub" / "dangling").symlink_to("nothing")
    (tree / "loop").symlink_to("loop")
    os.mkfifo(tree / "pipe")
    code, err = run(capsys, "cp", "-r", tree, tmp_path / "copy")
    assert (code, err.count("\n")) == (0, 1)
    assert "4 left out" in err
    assert f"first {tree / 'loop'}" in err
    assert sorted(os.listdir(tmp_path / "copy")) == ["a link", "sub"]


def test_a_wait_in_a_missing_bucket_says_so(
    capsys: pytest.CaptureFixture[str],
    moto: S3Endpoint,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3_environment(moto)
    monkeypatch.setattr(cli_paths, "LOOK_S", 60.0)
    for words in (
        ["wait", "s3://no-such-bucket-at-all/x"],
        ["watch", "s3://no-such-bucket-at-all", "*"],
    ):
        code, err = run(capsys, *words, "--timeout", "0.1")
        assert (code, "no bucket" in err.partition("\n")[0]) == (4, True)
    code, err = run(capsys, "wait", f"s3://{bucket(moto)}/x", "--timeout", "0.1")
    assert (code, "no bucket" in err) == (4, False)
