"""The order of system calls that makes a write survive a power cut, and what lost answers do."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from wstore import errors
from wstore.stores import posix_temp
from wstore.stores.base import Expect
from wstore.stores.posix_store import PosixStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DATA = memoryview(b"new content")


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that matter, in order, as "name path"; temporary names as "TEMP"."""
    seen: list[str] = []

    def shown(path: bytes | str) -> str:
        text = os.fsdecode(path).removeprefix(str(tmp_path)).removeprefix("/") or "."
        folder, _, name = text.rpartition("/")
        is_temp = posix_temp.is_temp_name(os.fsencode(name))
        return os.path.join(folder, "TEMP") if is_temp else text

    def record(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            first = arguments[0]
            if isinstance(first, int):
                first = os.readlink(f"/proc/self/fd/{first}")
            seen.append(f"{name} {shown(first)}")
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, recorded)

    for name in ("pwrite", "fsync", "close", "rename", "link", "unlink", "mkdir"):
        record(name)
    return seen


def test_replace_syncs_file_then_renames_then_syncs_directory(
    store: PosixStore, calls: list[str]
) -> None:
    store.write("f", DATA)
    expected = ["pwrite TEMP", "fsync TEMP", "close TEMP", "rename TEMP", "fsync .", "close ."]
    assert calls == expected


def test_create_syncs_file_then_links_then_syncs_directory(
    store: PosixStore, calls: list[str]
) -> None:
    store.write("f", DATA, expect=Expect.ABSENT)
    assert calls[:3] == ["pwrite TEMP", "fsync TEMP", "close TEMP"]
    assert calls[3:] == ["link TEMP", "unlink TEMP", "fsync .", "close ."]


def test_upload_and_copy_sync_too(store: PosixStore, calls: list[str]) -> None:
    upload = store.upload("f")
    upload.put(0, 0, DATA)
    upload.complete()
    order = [call for call in calls if not call.startswith(("close", "pwrite"))]
    assert order == ["fsync TEMP", "rename TEMP", "fsync ."]
    calls.clear()
    store.copy("f", "g")
    order = [call for call in calls if not call.startswith(("close", "pwrite"))]
    assert order == ["fsync TEMP", "rename TEMP", "fsync ."]


def test_new_parents_are_durable_before_the_file_appears(
    store: PosixStore, calls: list[str]
) -> None:
    store.write("a/b/f", DATA)
    wanted = ["mkdir a", "fsync .", "mkdir a/b", "fsync a", "fsync a/b/TEMP"]
    wanted += ["rename a/b/TEMP", "fsync a/b"]
    positions = [len(calls) - 1 - calls[::-1].index(call) for call in wanted]
    assert positions == sorted(positions)


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "close", "rename", "ftruncate"])
def test_any_failing_call_is_raised_and_leaves_the_old_file(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    store.write("f", memoryview(b"old"))
    real: Callable[..., Any] = getattr(os, failing)
    failed: list[bool] = []

    def fail_once(*arguments: Any) -> Any:
        if failed:
            return real(*arguments)
        failed.append(True)
        if failing == "close":
            real(*arguments)  # Linux closes the descriptor even when it reports an error
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, failing, fail_once)
    with pytest.raises(errors.StoreError) as raised:
        store.write("f", DATA)
    assert isinstance(raised.value.__cause__, OSError)
    assert not raised.value.retryable
    assert bytes(store.read("f", 0, 99).data) == b"old"
    assert os.listdir(tmp_path) == ["f"]


def _raise(code: int) -> None:
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_without_hard_links_a_rename_without_replace_creates(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", lambda *_, **__: _raise(code))
    store.write("f", DATA, expect=Expect.ABSENT)
    with pytest.raises(errors.AlreadyExists):
        store.write("f", memoryview(b"other"), expect=Expect.ABSENT)
    assert bytes(store.read("f", 0, 99).data) == bytes(DATA)
    assert os.listdir(tmp_path) == ["f"]


def test_without_either_it_is_unsupported_and_nothing_is_left(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", lambda *_, **__: _raise(errno.EPERM))
    monkeypatch.setattr(posix_temp, "rename_without_replace", lambda *_: _raise(errno.EINVAL))
    with pytest.raises(errors.UnsupportedOperation):
        store.write("f", DATA, expect=Expect.ABSENT)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EEXIST, errno.ESTALE, errno.EIO])
def test_lost_answer_of_our_own_link_is_a_success(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.link

    def link_twice(source: bytes, target: bytes, *, follow_symlinks: bool) -> None:
        real(source, target, follow_symlinks=follow_symlinks)
        _raise(code)

    monkeypatch.setattr(os, "link", link_twice)
    info = store.write("f", DATA, expect=Expect.ABSENT)
    assert info == store.stat("f")
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_rename_is_repeated_or_found_done(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real, attempts = os.rename, 0

    def stale(source: bytes, target: bytes) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            _raise(code)
        real(source, target)
        if attempts == 2:  # done, but the answer was lost
            _raise(code)

    monkeypatch.setattr(os, "rename", stale)
    assert store.write("f", DATA) == store.stat("f")
    assert attempts == 2
    assert os.listdir(tmp_path) == ["f"]


def test_stale_for_ever_is_retryable_and_leaves_nothing(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "rename", lambda *_: _raise(errno.ESTALE))
    with pytest.raises(errors.Unavailable) as raised:
        store.write("f", DATA)
    assert raised.value.retryable
    assert os.listdir(tmp_path) == []


def test_complete_is_repeatable_after_a_retryable_failure(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.upload("f")
    upload.put(0, 0, DATA)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", lambda *_: _raise(errno.ESTALE))
        with pytest.raises(errors.Unavailable):
            upload.complete()
    assert upload.complete() == store.stat("f")
    assert os.listdir(tmp_path) == ["f"]


def test_complete_that_failed_for_good_leaves_nothing(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.upload("f")
    upload.put(0, 0, DATA)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda *_: _raise(errno.EIO))
        with pytest.raises(errors.StoreError):
            upload.complete()
    with pytest.raises(errors.InvalidArgument):
        upload.complete()
    assert os.listdir(tmp_path) == []


# After the content appeared


def _failing_syncs(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[bytes]:
    """The next so many syncs of directories fail; returns those that were asked for."""
    real, asked = posix_temp.sync_directory, list[bytes]()

    def sync(directory: bytes) -> None:
        asked.append(directory)
        if len(asked) <= times:
            _raise(code)
        real(directory)

    monkeypatch.setattr(posix_temp, "sync_directory", sync)
    return asked


@pytest.mark.parametrize("expect", [Expect.ANY, Expect.ABSENT])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOENT])
def test_a_stale_directory_is_synced_again(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, expect: Expect, code: int
) -> None:
    asked = _failing_syncs(monkeypatch, code, 1)
    assert store.write("f", DATA, expect=expect) == store.stat("f")
    assert len(asked) == 2


@pytest.mark.parametrize("expect", [Expect.ANY, Expect.ABSENT])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_visible_but_not_surely_durable_is_an_outcome_unknown(
    store: PosixStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expect: Expect,
    code: int,
) -> None:
    _failing_syncs(monkeypatch, code, 99)
    with pytest.raises(errors.OutcomeUnknown, match="readers see it") as raised:
        store.write("f", DATA, expect=expect)
    assert raised.value.url == f"{store.url}/f"
    assert bytes(store.read("f", 0, 99).data) == DATA
    assert os.listdir(tmp_path) == ["f"]
