"""The command line: as a program where processes matter (pipes, signals), else in this process."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from wstore import StoragePath, cli, cli_program
from wstore.cli_output import Bar, human_size, printable

if TYPE_CHECKING:
    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint

PROGRAM = str(Path(sys.executable).with_name("wstore"))


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Run:
    """Runs one command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Outcome:
        code = cli.main([str(argument) for argument in arguments])
        return Outcome(code, *self._capsys.readouterr())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with files at two depths, one of them with an odd name."""
    root = tmp_path / "tree"
    for name, data in {"a": b"aaa", "sub/b c%20#+é": b"bb", "sub/deep/d": b"d"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def program(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)


# Listing and describing


def test_ls_shows_entries_in_order_with_sizes(run: Run, tree: Path) -> None:
    found = run("ls", tree)
    assert found.code == 0
    assert [line.split()[-1] for line in found.out.splitlines()] == ["a", "sub/"]
    assert found.out.splitlines()[0].split()[:2] == ["3", "B"]


def test_ls_recursive_as_json_names_every_object(run: Run, tree: Path) -> None:
    lines = run("ls", "-r", "--json", tree).lines
    assert [(StoragePath(str(line["url"])).name, line["size"]) for line in lines] == [
        ("a", 3),
        ("b c%20#+é", 2),
        ("d", 1),
    ]
    assert all(datetime.fromisoformat(str(line["modified"])).tzinfo == UTC for line in lines)


def test_ls_of_one_object_and_of_an_empty_directory(run: Run, tree: Path, tmp_path: Path) -> None:
    assert run("ls", tree / "a").out.split()[-1] == "a"
    (tmp_path / "empty").mkdir()
    assert run("ls", tmp_path / "empty") == (0, "", "")


def test_ls_escapes_control_characters(run: Run, tmp_path: Path) -> None:
    (tmp_path / "evil\x1b[31m\n").write_bytes(b"")
    assert run("ls", tmp_path).out.rstrip("\n").endswith(r"evil\x1b[31m\n")


def test_stat_as_json_has_what_the_path_says(run: Run, tree: Path) -> None:
    (line,) = run("stat", "--json", tree / "a").lines
    info = StoragePath(tree / "a").stat()
    assert line == {
        "url": StoragePath(tree / "a").url,
        "size": 3,
        "modified": info.modified.isoformat(),
        "tag": info.tag,
    }
    assert "3 bytes (3 B)" in run("stat", tree / "a").out


# Bytes


def test_cat_writes_exact_bytes_of_all(run: Run, tmp_path: Path) -> None:
    parts = [bytes(range(256)) * 50_000, b"\r\n\x00end"]
    for number, data in enumerate(parts):
        (tmp_path / str(number)).write_bytes(data)
    done = program("cat", tmp_path / "0", tmp_path / "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"".join(parts), b"")
    assert run("cat", "--offset", "3", "--length", "2", tmp_path / "1").out == "en"


def test_cat_as_json(run: Run, tree: Path) -> None:
    (line,) = run("cat", "--json", "--offset", "1", tree / "a").lines
    assert base64.b64decode(str(line["base64"])) == b"aa"


def test_cp_file_into_directory_and_to_a_name(run: Run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    assert run("cp", tree / "a", tmp_path / "into") == (0, "", "")
    assert run("cp", tree / "a", tmp_path / "new" / "name").code == 0
    assert run("cp", tree / "a", f"{tmp_path}/later/").code == 0
    for name in ("into/a", "new/name", "later/a"):
        assert (tmp_path / name).read_bytes() == b"aaa"


def test_cp_recursive_keeps_names_and_can_be_repeated(run: Run, tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    for _ in range(2):
        found = run("cp", "-r", tree, target)
        assert (found.code, found.out) == (0, "tree: 3 copied, 6 B\n")
    assert _content(target) == _content(tree)


def test_cp_reads_stdin(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "piped").write_bytes(data)
    with (tmp_path / "piped").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run("cp", "-", tmp_path / "object").code == 0
    assert (tmp_path / "object").read_bytes() == data


def test_cp_recursive_refuses_to_copy_into_itself(run: Run, tree: Path) -> None:
    found = run("cp", "-r", tree, tree / "sub" / "again")
    assert found.code == 2
    assert "lies inside what is copied" in found.err


def test_cp_recursive_refuses_to_write_one_file_twice(run: Run, tmp_path: Path) -> None:
    for name in ("a/b", "a//b"):
        StoragePath(f"memory://twins/t/{name}").write_bytes(name.encode())
    done = run("cp", "-r", "memory://twins/t", str(tmp_path / "out"))
    assert done.code == 2
    assert "two objects" in done.err
    assert not (tmp_path / "out").exists()


def test_rm_recursive_takes_an_object_that_is_also_a_prefix(run: Run) -> None:
    for name in ("both", "both/x", "both2"):
        StoragePath(f"memory://rm-both/{name}").write_bytes(b"")
    assert run("rm", "-r", "memory://rm-both/both").code == 0
    left = [path.name for path in StoragePath("memory://rm-both").iterdir()]
    assert left == ["both2"]


def test_cp_between_local_and_s3_and_back(
    run: Run,
    tree: Path,
    tmp_path: Path,
    moto: S3Endpoint,
    bucket: MakeBucket,
    s3_environment: UseEndpoint,
) -> None:
    s3_environment(moto)
    url = f"s3://{bucket(moto)}/run 1"
    large = os.urandom(9_000_000)
    (tree / "large").write_bytes(large)
    assert run("cp", "-r", tree, url).code == 0
    lines = run("ls", "-r", "--json", url).lines
    assert [line["url"] for line in lines] == [
        f"{url}/{name}" for name in ("a", "large", "sub/b c%20#+é", "sub/deep/d")
    ]
    assert run("cp", "-r", url, f"{url}-2").code == 0
    copied = run("cp", "-r", "--json", f"{url}-2", tmp_path / "back")
    assert sorted(str(line["size"]) for line in copied.lines) == ["1", "2", "3", "9000000"]
    assert _content(tmp_path / "back") == _content(tree)
    assert run("rm", "-r", "--json", url).lines == [{"url": url, "removed": 4}]
    assert run("ls", url).code == 3
    assert run("ls", f"{url}-2").code == 0


# Removing and waiting


def test_rm_object_and_tree(run: Run, tree: Path) -> None:
    assert run("rm", tree / "a") == (0, "", "")
    refused = run("rm", tree / "sub")
    assert refused.code == 2
    assert "add -r" in refused.err
    assert run("rm", "-r", "--json", tree / "sub").lines[0]["removed"] == 2
    assert list(tree.iterdir()) == []


def test_cp_of_a_directory_names_the_option(run: Run, tree: Path, tmp_path: Path) -> None:
    refused = run("cp", tree, tmp_path / "copy")
    assert refused.code == 2
    assert "add -r" in refused.err
    assert not (tmp_path / "copy").exists()


def test_rm_of_nothing_is_an_error_unless_forced(run: Run, tmp_path: Path) -> None:
    assert run("rm", tmp_path / "none").code == 3
    assert run("rm", "-f", tmp_path / "none") == (0, "", "")
    assert run("rm", "-rf", tmp_path / "none").code == 0


def test_rm_of_a_whole_bucket_needs_yes(run: Run) -> None:
    path = StoragePath("memory://rm-test/object")
    path.write_bytes(b"x")
    found = run("rm", "-r", "memory://rm-test")
    assert (found.code, path.exists()) == (2, True)
    assert "--yes" in found.err
    assert run("rm", "-r", "--yes", "memory://rm-test").code == 0
    assert not path.exists()


def test_wait_returns_once_the_object_is_there(run: Run, tmp_path: Path) -> None:
    path = StoragePath(tmp_path / "object")
    writer = threading.Timer(0.3, path.write_bytes, [b"12345"])
    writer.start()
    (line,) = run("wait", "--timeout", "60", "--json", tmp_path / "object").lines
    writer.join()
    assert line["size"] == 5


def test_wait_times_out_with_its_own_code(run: Run, tmp_path: Path) -> None:
    found = run("wait", "--timeout", "0", tmp_path / "never")
    assert (found.code, found.out, found.err.count("\n")) == (4, "", 1)


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["stat", "/no/such/file"], 3, "/no/such/file"),
        (["ls", "/no/such/directory"], 3, "/no/such/directory"),
        (["cp", "/no/such/file", "/tmp/x"], 3, "/no/such/file"),
        (["stat", "/etc"], 1, "directory"),
        (["cat", "nowhere://x/y"], 2, "nowhere"),
        (["stat", "s3:///key"], 2, "s3"),
        (["ls", "--no-such-option", "/"], 2, "--no-such-option"),
        (["stat"], 2, "URL"),
        (["no-such-command"], 2, "no-such-command"),
        (["wait", "--timeout", "-1", "/x"], 2, "--timeout"),
        (["cp", "/dev/null", "-"], 2, "`wstore cat` writes"),
        (["cp", "-", "-"], 2, "`wstore cat` writes"),
    ],
)
def test_error_is_one_line_on_stderr(run: Run, arguments: list[str], code: int, says: str) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (code, "")
    assert found.err.startswith("wstore: ")
    assert says in found.err
    assert found.err.count("\n") == 1


def test_debug_shows_the_traceback_before_the_line(run: Run) -> None:
    found = run("--debug", "stat", "/no/such/file")
    assert (found.code, found.out) == (3, "")
    assert found.err.startswith("Traceback")
    assert "wstore.errors.NotFound: file:///no/such/file" in found.err
    assert found.err.splitlines()[-1].startswith("wstore: file:///no/such/file")


@pytest.mark.long
def test_cp_reads_a_pipe(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    command = [PROGRAM, "cp", "-", str(tmp_path / "object")]
    subprocess.run(command, input=data, timeout=60, check=True)
    assert (tmp_path / "object").read_bytes() == data


def test_errors_of_a_refused_login_hold_no_secret(
    run: Run, seaweed: S3Endpoint, s3_environment: UseEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_environment(seaweed)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    found = run("ls", "s3://some-bucket/x")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert "not-the-secret" not in found.err
    assert "some-bucket" in found.err


def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(bytes(30_000_000))
    with subprocess.Popen(
        [PROGRAM, "cat", str(tmp_path / "object")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_interrupt_is_quiet(tmp_path: Path) -> None:
    url = str(tmp_path / "never")
    code = (
        "import os, signal, threading, sys; from wstore.cli import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a background job ignores it
        "threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start();"
        f"sys.exit(main(['wait', {url!r}]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# Help, version, commands of other packages


def test_version_and_help_name_everything(run: Run) -> None:
    assert run("--version").out == f"wstore {metadata.version('wstore')}\n"
    found = run("--help")
    assert found.code == 0
    for name in [*cli_program.BUILT_IN, "demo", "inspect", "verify", "gc"]:
        assert f" {name} " in found.out


def test_no_arguments_show_the_help(run: Run) -> None:
    found = run()
    assert found.code == 2
    assert "Usage: wstore" in found.out + found.err


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution with one good command and two that cannot be loaded."""
    package = tmp_path / "site"
    info = package / "stranger-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[wstore.commands]\n"
        "greet = wstore_test_stranger:greet\n"
        "broken = wstore_test_stranger:not_there\n"
        "absent = wstore_test_no_such_module:f\n"
        "ls = wstore_test_stranger:greet\n"
        "verify = wstore_test_stranger:greet\n"
    )
    (package / "wstore_test_stranger.py").write_text(
        'def greet(name: str) -> None:\n    """Say hello."""\n    print("hello", name)\n'
    )
    monkeypatch.syspath_prepend(package)
    return package


def test_plugin_is_a_command(run: Run, plugins: Path) -> None:
    assert plugins.is_dir()
    assert run("greet", "world") == (0, "hello world\n", "")


def test_broken_plugin_is_named_and_breaks_nothing_else(run: Run, plugins: Path) -> None:
    found = run("broken")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert "'broken' cannot be loaded" in found.err
    found = run("--help")
    assert found.code == 0
    assert "'absent' cannot be loaded" in found.err
    assert "Say hello." in found.out
    assert run("ls", plugins).code == 0


def test_command_that_two_packages_provide_is_refused(run: Run, plugins: Path) -> None:
    assert plugins.is_dir()
    found = run("verify", "x")
    assert found.code == 1
    assert "more than one package" in found.err


# Formats


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10_235, "10.0 KiB"),
        (999 * 1024, "999 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (123 << 20, "123 MiB"),
        (5 << 40, "5.00 TiB"),
        (9999 << 50, "9999 PiB"),
    ],
)
def test_human_size(size: int, text: str) -> None:
    assert human_size(size) == text


def test_printable_keeps_unicode_and_escapes_control() -> None:
    assert printable("é ñ %") == "é ñ %"
    assert printable("a\tb\x1b\udc80") == r"a\tb\x1b\udc80"


def test_bar_shows_on_a_terminal_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wstore.cli_output.SHOW_AFTER_S", 0.0)
    with Bar("label", total=10) as bar:
        bar.advance(5)
    assert capfd.readouterr() == ("", "")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Bar("label", total=10) as bar:
            bar.advance(5)
        assert b"label" in screen.read(4096)


def _content(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
