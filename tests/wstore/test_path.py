"""The algebra of paths: what pathlib users expect, and what keeps inside the bucket."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore import InvalidPath, StoragePath, UnsupportedOperation
from wstore.stores.memory import MemoryStore

S3 = StoragePath("s3://bucket/run1/log/head.tar.gz")
NAMES = st.text("ab.é x", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


def test_names() -> None:
    assert S3.name == "head.tar.gz"
    assert S3.stem == "head.tar"
    assert S3.suffix == ".gz"
    assert S3.suffixes == [".tar", ".gz"]
    assert S3.parts == ("s3://bucket/", "run1", "log", "head.tar.gz")
    assert S3.parent.url == "s3://bucket/run1/log"
    assert [p.url for p in S3.parents] == [
        "s3://bucket/run1/log",
        "s3://bucket/run1",
        "s3://bucket/",
    ]
    assert (S3.scheme, S3.root, S3.key) == ("s3", "bucket", "run1/log/head.tar.gz")
    assert str(S3) == S3.url
    assert repr(S3) == "StoragePath('s3://bucket/run1/log/head.tar.gz')"


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_local_algebra_is_pathlibs(names: list[str]) -> None:
    ours = StoragePath("/").joinpath(*names)
    theirs = PurePosixPath("/").joinpath(*names)
    assert str(ours) == str(theirs) == os.fspath(ours)
    assert (ours.name, ours.stem, ours.suffix, ours.suffixes) == (
        theirs.name, theirs.stem, theirs.suffix, theirs.suffixes,
    )  # fmt: skip
    assert ours.parts == theirs.parts
    assert [str(p) for p in ours.parents] == [str(p) for p in theirs.parents]
    assert str(ours.with_name("x")) == str(theirs.with_name("x"))
    assert ours.match("*a") == theirs.match("*a")
    assert str(ours.with_suffix(".z")) == str(theirs.with_suffix(".z"))
    assert ours.relative_to("/") == str(theirs.relative_to("/"))


def test_the_root_is_stable() -> None:
    root = StoragePath("s3://bucket")
    assert root.name == ""
    assert root.parent == root
    assert root.parents == ()
    assert root.url == "s3://bucket/"
    assert root / "k" == StoragePath("s3://bucket/k")
    with pytest.raises(InvalidPath):
        root.with_name("x")


def test_joining_drops_trailing_slashes_and_keeps_the_rest() -> None:
    assert (StoragePath("s3://b-1/k/") / "f").url == "s3://b-1/k/f"
    assert (StoragePath("s3://b-1/") / "k/").url == "s3://b-1/k"
    assert (StoragePath("s3://b-1/k") / "").key == "k"
    assert (StoragePath("s3://b-1/k") / ".").key == "k"
    assert (StoragePath("s3://b-1/k") / "a//b%20#?").key == "k/a//b%20#?"
    assert (StoragePath("/k") / "a//./b").key == "k/a/b"
    assert (StoragePath("s3://b-1/k") / PurePosixPath("x/y")).key == "k/x/y"


@pytest.mark.parametrize("base", ["s3://bucket/k", "/tmp/k", "memory://m/k"])
@pytest.mark.parametrize("name", ["../../other/x", "..", "a/..", "/abs", "a/../../../x"])
def test_nothing_joined_leaves_the_path(base: str, name: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        StoragePath(base) / name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["", "..", ".", "a/b"])
def test_with_name_takes_names_only(name: str) -> None:
    with pytest.raises(InvalidPath):
        S3.with_name(name)


def test_relative_paths_join_back() -> None:
    base = StoragePath("s3://bucket/run1")
    assert S3.relative_to(base) == "log/head.tar.gz"
    assert base / S3.relative_to(base) == S3
    assert base.relative_to(base) == "."
    assert S3.is_relative_to(base)
    assert not StoragePath("s3://bucket/run10").is_relative_to(base)
    assert not StoragePath("s3://other/run1/x").is_relative_to(base)
    assert not StoragePath("/run1/x").is_relative_to(base)
    with pytest.raises(InvalidPath):
        base.relative_to(S3)


def test_paths_are_values() -> None:
    same = StoragePath("s3://bucket/run1") / "log" / "head.tar.gz"
    assert same == S3
    assert hash(same) == hash(S3)
    assert copy.deepcopy(S3) is S3
    assert pickle.loads(pickle.dumps(S3)) == S3
    assert StoragePath(S3) == S3
    assert sorted([StoragePath("/b"), StoragePath("/a/z"), StoragePath("/a")]) == [
        StoragePath("/a"), StoragePath("/a/z"), StoragePath("/b"),
    ]  # fmt: skip
    assert S3 != "s3://bucket/run1/log/head.tar.gz"
    for name in ("name", "key", "anything"):
        with pytest.raises(AttributeError):
            setattr(S3, name, "x")


def test_a_path_with_a_store_of_its_own_passes_it_on_and_does_not_pickle() -> None:
    store = MemoryStore("mine")
    path = StoragePath("s3://bucket/a", store=store) / "b"
    assert path.store is store
    assert path.parent.store is store
    assert path != StoragePath("s3://bucket/a/b")
    assert StoragePath(path) == path
    with pytest.raises(UnsupportedOperation):
        pickle.dumps(path)


def test_only_local_paths_are_file_names() -> None:
    assert os.fspath(StoragePath("file:///a%20b")) == "/a b"
    assert str(StoragePath("file:///a%20b")) == "/a b"
    with pytest.raises(UnsupportedOperation, match="download"):
        os.fspath(S3)


def test_match_is_from_the_right() -> None:
    assert S3.match("*.gz")
    assert S3.match("log/*.gz")
    assert S3.match("l[o]g/head.???.gz")
    assert not S3.match("run1/*.gz")
    assert not S3.match("*.GZ")
