"""Listing, globbing and removing, on a file system and on an object store."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wstore import (
    AccessDenied,
    AlreadyExists,
    Cancelled,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NotADirectory,
    NotFound,
    StoragePath,
)
from wstore.stores.base import Multipart
from wstore.stores.memory import MemoryStore
from wstore.stores.wrap import Fault, Faults, Trace, TraceRecord, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.stores.base import Store
    from wstore.stores.wrap import Call

_count = itertools.count()
TREE = [
    "a.json", "b.txt", ".hidden", "step_1/manifest.json", "step_2/manifest.json", "step_2/x/deep.json",
    "step_10/other.json", "steps.json", "[odd]/q?.json", "d/.h/z.json", "d-e/f.json",
]  # fmt: skip
PATTERNS = [
    "*", "*.json", "step_*/manifest.json", "step_*/*", "**/*.json", "**/x/*", "*/**/*.json", "step_?/m*",
    "step_[12]/*.json", "step_[!1]/*", "a.json", "nope", "step_1/nope", "step_2/x/deep.json", "*/x", "[[]odd]/*",
    "**/step_2/**/*.json", ".*", "d*/*", "*/", "step_*/", "**/x/", "s*p*s.json",
]  # fmt: skip


@pytest.fixture(params=["memory", "posix"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    if request.param == "posix":
        return StoragePath(tmp_path)
    return StoragePath(f"memory://tree{next(_count)}/base")


def fill(base: StoragePath) -> None:
    for name in TREE:
        (base / name).write_bytes(name.encode())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob_finds_what_pathlib_finds(base: StoragePath, tmp_path: Path, pattern: str) -> None:
    fill(base)
    oracle = tmp_path / "oracle"
    oracle.mkdir()
    for name in TREE:
        (oracle / name).parent.mkdir(parents=True, exist_ok=True)
        (oracle / name).touch()
    if base.is_local:
        base = StoragePath(oracle)
    expected = sorted({str(p.relative_to(oracle)) for p in oracle.glob(pattern)})
    found = [p.relative_to(base) for p in base.glob(pattern)]
    assert sorted(found) == expected
    assert sorted(p.relative_to(base) for p in base.rglob(pattern)) == sorted(
        {str(p.relative_to(oracle)) for p in oracle.rglob(pattern)}
    )


def test_a_trailing_double_star_gives_all_below(base: StoragePath) -> None:
    fill(base)
    found = [p.relative_to(base) for p in (base / "step_2").glob("**")]
    assert sorted(found) == ["step_2", "step_2/manifest.json", "step_2/x", "step_2/x/deep.json"]


@pytest.mark.parametrize("pattern", ["", "/abs", "."])
def test_patterns_without_meaning_are_refused(base: StoragePath, pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        base.glob(pattern)
    with pytest.raises(InvalidPath):
        base.glob("../*")


def test_iterdir_gives_children_once_in_order(base: StoragePath) -> None:
    fill(base)
    assert [p.name for p in base.iterdir()] == sorted(
        {name.split("/")[0] for name in TREE},
        key=lambda name: name + "/" * (base / name).is_dir(),
    )


def test_iterdir_of_what_is_no_directory(base: StoragePath) -> None:
    fill(base)
    with pytest.raises(NotFound):
        (base / "nope").iterdir()
    with pytest.raises(NotADirectory):
        (base / "a.json").iterdir()
    assert list((base / "nope").glob("*")) == []


def test_an_empty_directory(tmp_path: Path) -> None:
    path = StoragePath(tmp_path) / "empty"
    path.mkdir()
    assert list(path.iterdir()) == []
    assert path.is_dir()
    with pytest.raises(AlreadyExists):
        path.mkdir()
    path.mkdir(exist_ok=True)
    with pytest.raises(NotFound):
        (path / "x" / "y").mkdir()
    (path / "x" / "y").mkdir(parents=True)


def test_kinds(base: StoragePath) -> None:
    fill(base)
    file, directory, missing = base / "a.json", base / "step_1", base / "step"
    assert (file.exists(), file.is_file(), file.is_dir()) == (True, True, False)
    assert (directory.exists(), directory.is_file(), directory.is_dir()) == (True, False, True)
    assert (missing.exists(), missing.is_file(), missing.is_dir()) == (False, False, False)
    for read in (directory.read_bytes, directory.stat, lambda: directory.open("rb")):
        with pytest.raises(IsADirectory) as caught:
            read()
        assert isinstance(caught.value, IsADirectoryError)
    with pytest.raises(IsADirectoryError):
        directory.read_into(bytearray(1))
    with pytest.raises(FileNotFoundError):
        missing.read_bytes()


def test_mkdir_is_no_op_where_there_are_no_directories() -> None:
    path = StoragePath(f"memory://tree{next(_count)}/x")
    path.mkdir()
    path.mkdir()
    assert not path.exists()


def test_a_key_that_is_also_a_prefix_is_the_file() -> None:
    root = StoragePath(f"memory://tree{next(_count)}")
    for key in ("a", "a!", "a-b", "a/b", "a/c/d"):
        (root / key).write_bytes(key.encode())
    assert (root / "a").read_bytes() == b"a"
    assert (root / "a").is_file()
    assert (root / "a").is_dir()
    assert [p.key for p in root.iterdir()] == ["a", "a!", "a-b"]
    assert [p.key for p in root.glob("a*")] == ["a", "a!", "a-b"]
    assert sorted(p.key for p in root.rglob("*")) == ["a", "a!", "a-b", "a/b", "a/c", "a/c/d"]
    (root / "a").remove()
    assert (root / "a/b").read_bytes() == b"a/b"
    assert (root / "a").remove_tree() == 2


def test_odd_foreign_keys_are_listed_and_read() -> None:
    store = MemoryStore("odd")
    root = StoragePath("memory://odd", store=store)
    keys = ["a//b", "a/./c", "dir/", "/lead", "up/../x", "a/b/"]
    for key in keys:
        store.write(key, memoryview(key.encode()))
    found = {p.key: p for p in root.rglob("*")}
    for key in ("a//b", "a/./c", "/lead", "up/../x"):
        assert found[key].read_bytes() == key.encode()
    assert [p.key for p in (root / "a").iterdir()] == ["a/.", "a/", "a/b"]
    inner = next(p for p in (root / "a").iterdir() if p.key == "a/")
    assert [p.key for p in inner.iterdir()] == ["a//b"]
    assert (root / "dir").is_dir()
    assert list((root / "dir").iterdir()) == []
    assert (root / "dir").remove_tree() == 1
    assert not (root / "dir").exists()


def test_glob_lists_only_what_can_match() -> None:
    inner = MemoryStore("narrow")
    root = StoragePath("memory://narrow", store=inner)
    for name in TREE:
        (root / name).write_bytes(b"")
    records: list[TraceRecord] = []
    traced = StoragePath("memory://narrow", store=Trace(inner, records.append))
    assert len(list(traced.glob("step_*/manifest.json"))) == 2
    listed = [record.call.key for record in records if record.call.op == "list"]
    assert listed[0] == ""
    assert set(listed[1:]) <= {"step_10/manifest.json/"}  # the look whether that is a prefix
    assert not any(record.call.op == "read" for record in records)


def test_remove(base: StoragePath) -> None:
    fill(base)
    (base / "a.json").remove()
    assert not (base / "a.json").exists()
    with pytest.raises(NotFound):
        (base / "a.json").remove()
    (base / "a.json").remove(missing_ok=True)
    with pytest.raises(IsADirectory):
        (base / "step_1").remove()
    assert (base / "step_1/manifest.json").exists()


def test_remove_tree(base: StoragePath) -> None:
    fill(base)
    (base / "step_20").write_bytes(b"")
    assert (base / "step_2").remove_tree() == 2
    assert not (base / "step_2").exists()
    assert (base / "step_20").exists()
    with pytest.raises(NotFound):
        (base / "step_2").remove_tree()
    assert (base / "step_2").remove_tree(missing_ok=True) == 0
    with pytest.raises(NotADirectory):
        (base / "a.json").remove_tree()


def test_remove_tree_takes_temps_and_links_but_not_what_links_point_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    tree = StoragePath(tmp_path / "tree")
    multipart = tree.store.feature(Multipart)
    assert multipart is not None
    upload = multipart.upload((tree / "sub/x").key)
    upload.put(0, 0, memoryview(b"unfinished"))
    Path(tree / "link").symlink_to(outside)
    tree.remove_tree()
    assert not tree.exists()
    assert (outside / "keep").exists()
    upload.abort()


def test_removing_a_link_to_a_tree_leaves_the_tree(tmp_path: Path) -> None:
    outside = StoragePath(tmp_path / "outside")
    (outside / "sub/keep").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    assert StoragePath(tmp_path / "link").remove_tree() == 1
    assert not (tmp_path / "link").is_symlink()
    assert (outside / "sub/keep").read_bytes() == b"x"


def test_a_tree_is_not_removed_after_a_cancel(tmp_path: Path) -> None:
    tree = StoragePath(tmp_path / "tree")
    (tree / "sub/x").write_bytes(b"x")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        tree.remove_tree(cancel=cancel)
    assert (tree / "sub/x").exists()


def test_a_literal_head_finds_names_behind_ones_that_are_no_unicode(tmp_path: Path) -> None:
    (tmp_path / "\udc80").touch()  # the byte 80: before "é" in a listing, behind it as text
    (tmp_path / "é1").touch()
    assert [path.name for path in StoragePath(tmp_path).glob("é*")] == ["é1"]


def test_the_root_of_the_file_system_is_not_removed() -> None:
    with pytest.raises(InvalidArgument):
        StoragePath("/").remove_tree()


def test_refusals_are_not_absence() -> None:
    def denied(store: Store) -> StoragePath:
        faults = Faults(
            store, [Fault(fail(lambda: AccessDenied("no")), lambda call: True, times=99)]
        )
        return StoragePath("memory://x/y", store=faults)

    with pytest.raises(AccessDenied):
        denied(MemoryStore()).exists()
    with pytest.raises(AccessDenied):
        denied(MemoryStore()).is_dir()
    with pytest.raises(AccessDenied):
        list(denied(MemoryStore()).glob("*"))


def test_children_of_a_directory_that_appears_between_two_looks() -> None:
    """Listed as absent, then found to exist: what is in it is not left out."""
    memory = MemoryStore()

    def empty_at_first(call: Call, run: Callable[[], object]) -> object:
        memory.write("run/new", memoryview(b""))
        return []

    store = Faults(memory, [Fault(empty_at_first, lambda call: call.op == "list")])
    assert [path.name for path in StoragePath("memory://x/run", store=store).iterdir()] == ["new"]
