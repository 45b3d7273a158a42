"""Files as objects: modes, changes under a reader, full disks, uploads, killed writers."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.wstore.posix_keys import content, listed, write
from wstore import errors
from wstore.stores.base import Expect
from wstore.stores.posix_store import PosixStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is refused (root is needed): {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


# Modes


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_new_files_follow_the_umask(store: PosixStore, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(store, "new", b"x")
        write(store, "created", b"x", Expect.ABSENT)
        store.upload("uploaded").complete()
        os.chmod(tmp_path / "new", 0o400)
        store.copy("new", "copied")
    finally:
        os.umask(before)
    for name in ("created", "uploaded", "copied"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask


def test_overwriting_keeps_the_mode(store: PosixStore, tmp_path: Path) -> None:
    write(store, "f", b"old")
    for mode in (0o600, 0o640, 0o755, 0o444):
        (tmp_path / "f").chmod(mode)
        write(store, "f", b"new")
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


# Tags and changes


def test_every_replacement_has_a_new_tag(store: PosixStore) -> None:
    tags = {store.write("f", memoryview(b"%04d" % number)).tag for number in range(60)}
    assert len(tags) == 60


def test_change_in_place_is_seen(store: PosixStore, tmp_path: Path) -> None:
    write(store, "f", b"0123456789")
    tag = store.stat("f").tag
    with (tmp_path / "f").open("r+b") as file:
        file.write(b"X")
    with pytest.raises(errors.ObjectChanged):
        store.read("f", 0, 4, tag=tag)


def test_truncation_under_a_read_is_seen(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "f", bytes(1000))
    tag = store.stat("f").tag
    real = os.preadv

    def truncating(fd: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(tmp_path / "f", 10)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", truncating)
    with pytest.raises(errors.ObjectChanged):
        store.read("f", 0, 1000, buffer=memoryview(bytearray(1000)), tag=tag)


def test_a_file_that_changes_for_ever_is_not_read(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "f", bytes(1000))
    real = os.preadv

    def growing(fd: int, buffers: list[memoryview], offset: int) -> int:
        with (tmp_path / "f").open("ab") as file:
            file.write(b"more")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", growing)
    with pytest.raises(errors.Unavailable, match="changes faster"):
        store.read("f", 0, 1000, buffer=memoryview(bytearray(1000)))


def test_short_reads_are_continued(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(250))
    write(store, "f", data)
    preadv, pread = os.preadv, os.pread
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7]], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 7), at))
    buffer = bytearray(300)
    assert bytes(store.read("f", 0, 300, buffer=memoryview(buffer)).data) == data
    assert content(store, "f") == data


def test_files_do_not_stay_open(store: PosixStore) -> None:
    write(store, "f", b"x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        store.read("f", 0, 1)
        with pytest.raises(errors.ObjectChanged):
            store.read("f", 0, 1, tag="other")
        upload = store.upload("g")
        upload.put(0, 5, memoryview(b"x"))
        with pytest.raises(errors.InvalidArgument):
            upload.complete()
        upload.abort()
    assert len(os.listdir("/proc/self/fd")) == before


# A full or read-only disk


def test_full_disk_keeps_the_old_and_leaves_nothing(small_disk: Path) -> None:
    store = PosixStore(str(small_disk))
    old, big = os.urandom(1 << 20), memoryview(bytes(3 << 20))
    write(store, "f", old)
    for expect in Expect:
        with pytest.raises(errors.NoSpace, match="no space"):
            store.write("f" if expect is Expect.ANY else "g", big, expect=expect)
    with pytest.raises(errors.NoSpace):
        store.upload("f", size=len(big))
    upload = store.upload("f")
    with pytest.raises(errors.NoSpace):
        upload.put(0, 0, big)
    upload.abort()
    write(store, "h", bytes(900_000))
    with pytest.raises(errors.NoSpace):
        store.copy("f", "g")
    assert sorted(os.listdir(small_disk)) == ["f", "h"]
    assert content(store, "f") == old


def test_read_only_file_system(small_disk: Path) -> None:
    store = PosixStore(str(small_disk))
    write(store, "f", b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (
        lambda: write(store, "f", b"new"),
        lambda: write(store, "g", b"new", Expect.ABSENT),
        lambda: store.upload("g"),
        lambda: store.delete("f"),
        lambda: store.mkdir("d", parents=True, exist_ok=True),
    ):
        with pytest.raises(errors.AccessDenied, match="read-only"):
            call()
    assert content(store, "f") == b"old"


# Uploads


def test_pieces_from_many_threads(store: PosixStore) -> None:
    data = os.urandom(64 * 4096)
    upload = store.upload("f", size=10 << 20)  # a hint may be wrong
    threads = [
        threading.Thread(
            target=upload.put, args=(n, n * 4096, memoryview(data)[n * 4096 : (n + 1) * 4096])
        )
        for n in reversed(range(64))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed(store) == []
    info = upload.complete()
    assert upload.complete() == info == store.stat("f")
    assert content(store, "f") == data
    with pytest.raises(errors.InvalidArgument):
        upload.put(0, 0, memoryview(b"x"))
    upload.abort()
    assert content(store, "f") == data


def test_a_hole_is_not_published(store: PosixStore, tmp_path: Path) -> None:
    write(store, "f", b"old")
    upload = store.upload("f")
    upload.put(0, 0, memoryview(b"aa"))
    upload.put(2, 4, memoryview(b"cc"))
    with pytest.raises(errors.InvalidArgument, match="piece 2"):
        upload.complete()
    upload.abort()
    upload.abort()
    assert content(store, "f") == b"old"
    assert os.listdir(tmp_path) == ["f"]


# Killed writers


_KILLED_WRITER = """
import sys
from wstore.stores.posix_store import PosixStore
upload = PosixStore(sys.argv[1]).upload("d/f", size=1 << 20)
upload.put(0, 0, memoryview(b"half"))
print("half", flush=True)
sys.stdin.read()
"""


def test_killed_writer_leaves_the_old_file_and_hidden_debris(
    store: PosixStore, tmp_path: Path
) -> None:
    write(store, "d/f", b"old")
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED_WRITER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.send_signal(signal.SIGKILL)
    assert content(store, "d/f") == b"old"
    assert listed(store) == ["d/f"]
    assert len(os.listdir(tmp_path / "d")) == 2
    assert store.sweep("", older_than_s=3600) == []
    (removed,) = store.sweep("", older_than_s=0)
    assert removed.startswith("d/.wstore-")
    assert os.listdir(tmp_path / "d") == ["f"]
