"""Lustre: recognised by the mount's type, large files striped by `lfs`, whose trouble stops no write."""

from __future__ import annotations

import logging
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from wstore.stores import mounts, posix_striping
from wstore.stores.base import GiB, MiB, capabilities_at
from wstore.stores.posix_store import PosixStore
from wstore.stores.posix_striping import STRIPE_BYTES, Stripes, stripes_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (256 * MiB + 1, 2),
        (GiB, 4),
        (GiB + 1, 5),
        (8 * GiB, 32),
        (1 << 50, 32),
    ],
)
def test_more_servers_for_larger_files(size: int, count: int) -> None:
    assert stripes_for(size) == Stripes(count, 16 * MiB)
    assert STRIPE_BYTES % (64 << 10) == 0, "what lfs demands of a stripe"


@pytest.mark.parametrize("size", [None, 0, 1, 256 * MiB])
def test_small_files_and_unknown_sizes_keep_the_default(size: int | None) -> None:
    assert stripes_for(size) is None


@dataclass(frozen=True)
class Lustre:
    """A directory whose mount claims to be Lustre, with a recording stand-in for `lfs`."""

    directory: Path
    calls: Path

    def lfs(self, ending: str) -> None:
        """Install the tool: it records its words, then does what `ending` says."""
        tool = self.calls.parent / "bin" / "lfs"
        tool.parent.mkdir(exist_ok=True)
        record = f'printf "%s\\n" "$*" >> {shlex.quote(str(self.calls))}'
        tool.write_text(f"#!/bin/sh\n{record}\nfor file; do :; done\n{ending}\n")
        tool.chmod(0o755)

    def recorded(self) -> list[list[str]]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.split(" ") for line in lines]


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lustre:
    place = Lustre(tmp_path / "fs", tmp_path / "calls")
    place.directory.mkdir()
    device = os.stat(place.directory).st_dev
    table = tmp_path / "mountinfo"
    numbers = f"{os.major(device)}:{os.minor(device)}"
    table.write_text(f"41 27 {numbers} / {tmp_path} rw - lustre 10.0.0.1@tcp:/fs rw\n")
    monkeypatch.setattr(mounts, "_MOUNTINFO", str(table))
    monkeypatch.setattr(mounts, "_known", {})
    monkeypatch.setattr(posix_striping, "BYTES_PER_SERVER", MiB)
    monkeypatch.setattr(posix_striping, "_tool", posix_striping._Tool())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return place


def write(place: Lustre, name: str, size: int) -> None:
    data = os.urandom(size)
    PosixStore(str(place.directory)).write(name, memoryview(data))
    assert (place.directory / name).read_bytes() == data
    assert [n for n in os.listdir(place.directory) if n.endswith(".tmp")] == []


def test_large_files_get_their_layout_before_the_first_byte(lustre: Lustre) -> None:
    # The real tool refuses a file that has content, and makes it with its own mode.
    lustre.lfs('[ -e "$file" ] && exit 1; umask 077; : > "$file"')
    old = os.umask(0o027)
    try:
        write(lustre, "large", 3 * MiB + 1)
        write(lustre, "small", MiB)
    finally:
        os.umask(old)
    ((*words, path),) = lustre.recorded()
    assert words == ["setstripe", "-c", "4", "-S", str(16 * MiB)]
    assert os.path.dirname(path) == str(lustre.directory)
    assert (lustre.directory / "large").stat().st_mode & 0o777 == 0o640


def test_uploads_and_replacements_are_striped_too(lustre: Lustre) -> None:
    lustre.lfs(': > "$file"')
    (lustre.directory / "x").write_bytes(b"old")
    (lustre.directory / "x").chmod(0o604)
    upload = PosixStore(str(lustre.directory)).upload("x", size=2 * MiB)
    upload.put(0, 0, memoryview(bytes(2 * MiB)))
    upload.complete()
    assert [words[:3] for words in lustre.recorded()] == [["setstripe", "-c", "2"]]
    assert (lustre.directory / "x").stat().st_mode & 0o777 == 0o604
    assert (lustre.directory / "x").stat().st_size == 2 * MiB


def test_requests_are_of_whole_stripes(lustre: Lustre, tmp_path: Path) -> None:
    assert PosixStore(str(lustre.directory)).capabilities.request_bytes == STRIPE_BYTES
    store = PosixStore()
    assert capabilities_at(store, f"{lustre.directory}/not/yet"[1:]).create_if_absent
    assert capabilities_at(store, "proc/self").request_bytes == 8 * MiB


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("echo 'error: not a Lustre file system' >&2; exit 22", "status 22: error: not a Lustre"),
        ("exec sleep 100", "no answer"),
    ],
)
def test_a_failing_or_slow_tool_stops_no_write(
    lustre: Lustre,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ending: str,
    said: str,
) -> None:
    monkeypatch.setattr(posix_striping, "_PATIENCE_S", 0.5)
    caplog.set_level(logging.DEBUG, logger="wstore")
    lustre.lfs(ending)
    for number in range(2):
        write(lustre, f"large{number}", 2 * MiB)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1, "said once"
    assert said in warnings[0].getMessage()
    # A tool that hung is not asked again: each write would wait for it.
    assert len(lustre.recorded()) == (1 if "sleep" in ending else 2)


def test_without_the_tool_files_keep_the_default(
    lustre: Lustre, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(lustre.directory))
    caplog.set_level(logging.DEBUG, logger="wstore")
    write(lustre, "large", 2 * MiB)
    assert "no `lfs` on PATH" in caplog.text
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


def test_elsewhere_it_is_one_debug_line(
    lustre: Lustre, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lustre.lfs("exit 1")
    monkeypatch.setattr(mounts, "_MOUNTINFO", "/dev/null")
    posix_striping.note_ignored.cache_clear()
    caplog.set_level(logging.DEBUG, logger="wstore")
    write(lustre, "large", 2 * MiB)
    write(lustre, "larger", 3 * MiB)
    assert lustre.recorded() == []
    assert caplog.text.count("not striped") == 1
