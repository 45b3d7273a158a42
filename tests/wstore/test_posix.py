"""Files as objects: what is peculiar to file systems, beyond the conformance suite."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore import errors
from wstore.stores import posix_looking
from wstore.stores.base import Expect, capabilities_at
from wstore.stores.mounts import FileSystem
from wstore.stores.posix_store import PosixStore
from wstore.stores.posix_temp import is_temp_name, new_temp_name
from wstore.stores.wrap import Retry, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = 1 << 40


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


def content(store: PosixStore, key: str) -> bytes:
    return bytes(store.read(key, 0, WHOLE).data)


def listed(store: PosixStore, prefix: str = "", *, recursive: bool = True) -> list[str]:
    return [entry.key for entry in store.list(prefix, recursive=recursive)]


def write(store: PosixStore, key: str, data: bytes, expect: Expect = Expect.ANY) -> None:
    store.write(key, memoryview(data), expect=expect)


# Names


@pytest.mark.parametrize(
    "key",
    ["ckpt#1", "sub dir/a", "sub%20dir/a", "\udcff\udc80", "n" * 255, "ü" * 127, ".hidden", "a\nb"],
)
def test_odd_names_round_trip_and_are_listed(store: PosixStore, key: str) -> None:
    write(store, key, b"x")
    assert content(store, key) == b"x"
    assert listed(store) == [key]


def test_percent_is_never_decoded(store: PosixStore, tmp_path: Path) -> None:
    write(store, "sub dir/a", b"1")
    write(store, "sub%20dir/a", b"2")
    assert (tmp_path / "sub dir/a").read_bytes() == b"1"
    assert (tmp_path / "sub%20dir/a").read_bytes() == b"2"


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "a/..", "..", "a\0b", "\ud800", "a/", "n" * 256]
)
def test_bad_names_are_refused(store: PosixStore, tmp_path: Path, key: str) -> None:
    for call in (lambda: write(store, key, b"x"), lambda: store.stat(key)):
        with pytest.raises((errors.InvalidPath, errors.IsADirectory)):
            call()
    assert os.listdir(tmp_path) == []


def test_temp_names_are_reserved_and_hidden(store: PosixStore, tmp_path: Path) -> None:
    name = new_temp_name()
    assert is_temp_name(name)
    assert not is_temp_name(b".wstore-x.tmp")
    with pytest.raises(errors.InvalidPath):
        write(store, os.fsdecode(name), b"x")
    (tmp_path / os.fsdecode(name)).write_bytes(b"x")
    assert listed(store) == listed(store, recursive=False) == []


def test_root_must_be_absolute() -> None:
    with pytest.raises(errors.InvalidPath):
        PosixStore("relative")


# Kinds of files


@pytest.mark.timeout(20)
def test_fifos_and_devices_are_refused_and_do_not_hang(store: PosixStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for key, place in (("fifo", store), ("dev/null", PosixStore())):
        for call in (
            lambda place=place, key=key: place.stat(key),
            lambda place=place, key=key: place.read(key, 0, 1),
            lambda place=place, key=key: write(place, key, b"x"),
            lambda place=place, key=key: place.copy(key, f"{tmp_path}/copy"[1:]),
            lambda place=place, key=key: place.upload(key),
        ):
            with pytest.raises(errors.UnsupportedOperation):
                call()
    assert listed(store) == []
    assert os.listdir(tmp_path) == ["fifo"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_directory_where_a_file_is_expected(store: PosixStore, tmp_path: Path) -> None:
    write(store, "d/f", b"x")
    for expect in Expect:
        with pytest.raises(errors.IsADirectory):
            write(store, "d", b"x", expect)
    for key in ("d", ""):
        with pytest.raises(errors.IsADirectory):
            store.read(key, 0, 1)
        with pytest.raises(errors.IsADirectory):
            store.delete(key)
    assert os.listdir(tmp_path) == ["d"]


def test_file_where_a_directory_is_expected(store: PosixStore) -> None:
    write(store, "f", b"x")
    with pytest.raises(errors.NotADirectory, match=r"file://.*/f/g"):
        write(store, "f/g", b"x")
    with pytest.raises(errors.NotADirectory):
        write(store, "f/g/h", b"x")
    with pytest.raises(errors.NotFound):
        store.stat("f/g")
    with pytest.raises(errors.NotADirectory):
        store.rmdir("f")
    with pytest.raises(errors.AlreadyExists):
        store.mkdir("f", parents=True, exist_ok=True)
    assert listed(store, "f/") == []
    assert not store.is_dir("f/g")


def test_symbolic_links_are_followed_as_open_does(store: PosixStore, tmp_path: Path) -> None:
    write(store, "real/f", b"old")
    (tmp_path / "link").symlink_to("real/f")
    write(store, "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert content(store, "real/f") == b"new"
    assert os.listdir(tmp_path / "real") == ["f"]
    (tmp_path / "dangling").symlink_to("real/made")
    with pytest.raises(errors.AlreadyExists):
        write(store, "dangling", b"x", Expect.ABSENT)
    write(store, "dangling", b"made")
    assert content(store, "real/made") == b"made"


@pytest.mark.timeout(20)
def test_loops_and_dangling_links_neither_hang_nor_crash(store: PosixStore, tmp_path: Path) -> None:
    write(store, "d/f", b"x")
    (tmp_path / "d/up").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert listed(store) == ["d/f"]
    assert listed(store, recursive=False) == ["d/"]
    assert listed(store, "d/", recursive=False) == ["d/f", "d/up/"]
    with pytest.raises(errors.InvalidPath):
        store.stat("self")
    with pytest.raises(errors.InvalidPath):
        write(store, "self", b"x")
    with pytest.raises(errors.NotFound):
        store.stat("dangling")
    store.delete("d/up")
    assert content(store, "d/f") == b"x"


def test_listing_order_is_that_of_key_bytes(store: PosixStore) -> None:
    keys = ["a.b", "a/c", "a/d/e", "a0", "a-b", "é", "z", "\U0001f600", "\uffff"]
    for key in keys:
        write(store, key, b"")
    ordered = sorted(keys, key=os.fsencode)
    assert listed(store) == ordered
    for key in ordered:
        after = [entry.key for entry in store.list("", recursive=True, start_after=key)]
        assert after == ordered[ordered.index(key) + 1 :]
    assert listed(store, recursive=False)[:4] == ["a-b", "a.b", "a/", "a0"]


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


# Network file systems


def test_cached_absence_is_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that caches "no such file" until the parent directory is read."""
    write(store, "d/marker", b"x")
    hidden = True
    real_stat, real_open, real_scandir = os.stat, os.open, os.scandir
    path = os.fsencode(tmp_path / "d/marker")

    def stat_cached(name: bytes, **options: bool) -> os.stat_result:
        if hidden and name == path:
            raise FileNotFoundError(2, "No such file or directory")
        return real_stat(name, **options)

    def open_cached(name: bytes, flags: int) -> int:
        if hidden and name == path:
            raise OSError(116, "Stale file handle")
        return real_open(name, flags)

    def scandir(name: bytes) -> object:
        nonlocal hidden
        hidden = hidden and name != os.path.dirname(path)
        return real_scandir(name)

    monkeypatch.setattr(os, "stat", stat_cached)
    monkeypatch.setattr(os, "open", open_cached)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(errors.NotFound):  # local: believed at once
        store.stat("d/marker")
    with pytest.raises(errors.Unavailable):
        store.read("d/marker", 0, 1)
    assert hidden
    monkeypatch.setattr(posix_looking, "file_system_of", lambda path: FileSystem("nfs4"))
    assert store.stat("d/marker").size == 1
    hidden = True
    assert bytes(store.read("d/marker", 0, 1).data) == b"x"


def test_a_directory_whose_absence_is_cached_is_listed(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "run/d/marker", b"x")
    hidden, real_scandir = True, os.scandir

    def scandir(name: bytes) -> object:
        nonlocal hidden
        if hidden and name == os.fsencode(tmp_path / "run"):
            raise FileNotFoundError(2, "No such file or directory")
        hidden = hidden and name != os.fsencode(tmp_path)
        return real_scandir(name)

    monkeypatch.setattr(os, "scandir", scandir)
    assert listed(store, "run/") == []  # local: believed at once
    assert hidden
    monkeypatch.setattr(posix_looking, "file_system_of", lambda path: FileSystem("nfs4"))
    assert listed(store, "run/") == ["run/d/marker"]


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.seaweedfs"])
def test_cached_attributes_are_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A client that gives the attributes of a replaced file until they are asked from the server."""
    write(store, "x", b"old")
    old, real_stat, asked = os.stat(tmp_path / "x"), os.stat, list[bytes | int]()
    write(store, "x", b"newer")
    path = os.fsencode(tmp_path / "x")

    def stat_cached(name: bytes, **options: bool) -> os.stat_result:
        return old if name == path and not asked else real_stat(name, **options)

    monkeypatch.setattr(os, "stat", stat_cached)
    monkeypatch.setattr(posix_looking, "ask_attributes", asked.append)
    assert store.stat("x").size == 3  # local: believed
    monkeypatch.setattr(posix_looking, "file_system_of_device", lambda device: FileSystem(kind))
    tag = store.stat("x").tag
    assert bytes(store.read("x", 0, 9, tag=tag).data) == b"newer"


# A mount that is away


def test_what_a_mount_that_is_away_can_do_is_asked_again(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "mount/x", b"data")
    real_stat, away = os.stat, 2

    def stat_away(name: bytes, **options: bool) -> os.stat_result:
        nonlocal away
        if away and os.fsencode(name).startswith(os.fsencode(tmp_path / "mount")):
            away -= 1
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return real_stat(name, **options)

    monkeypatch.setattr(os, "stat", stat_away)
    with pytest.raises(errors.ConnectionFailed):
        store.capabilities_at("mount/x")
    with pytest.raises(errors.ConnectionFailed):
        store.write("mount/y", memoryview(b""), expect=Expect.ABSENT)
    away = 2
    patient = Retry(store, RetryPolicy(), sleep=lambda seconds: None)
    assert capabilities_at(patient, "mount/x").create_if_absent
    assert away == 0
