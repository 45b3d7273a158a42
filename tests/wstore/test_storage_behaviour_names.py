"""Known misbehaviour of storage libraries, names, trees and waiting: L, M and W."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from wstore import AccessDenied, InvalidPath, StoragePath, WaitTimeout
from wstore.testing.s3_requests import put_object
from wstore.testing.servers import READER

if TYPE_CHECKING:
    from tests.conftest import MakeBucket, UseEndpoint
    from wstore.testing.s3_requests import S3Endpoint


@pytest.mark.parametrize("other", ["../../other/x", "a/../../b", "/abs", "..", "x/.."])
def test_t37_no_way_out(base: StoragePath, other: str) -> None:
    """T37 (P8): joining never leaves the bucket or the directory; it is refused or stays inside."""
    try:
        joined = base / other
    except InvalidPath:
        return
    assert joined.is_relative_to(base)


def test_t39_nothing_is_decoded(base: StoragePath) -> None:
    """T39 (P8): `sub dir` and `sub%20dir` are two directories."""
    (base / "sub dir" / "x").write_bytes(b"space")
    (base / "sub%20dir" / "x").write_bytes(b"percent")
    assert (base / "sub dir" / "x").read_bytes() == b"space"
    assert (base / "sub%20dir" / "x").read_bytes() == b"percent"
    assert sorted(child.name for child in base.iterdir()) == ["sub dir", "sub%20dir"]


def test_t40_names_that_begin_alike(base: StoragePath) -> None:
    """T40 (P8): `foobar` does not make `foo`; `bush/k` makes a directory, `bus/e` another."""
    for name in ("foobar", "bus/e", "bush/k"):
        (base / name).write_bytes(b"x")
    assert not (base / "foo").exists()
    assert not (base / "foo").is_dir()
    assert not (base / "bu").exists()
    assert (base / "bush").is_dir()
    assert (base / "bus").is_dir()
    assert [child.name for child in (base / "bus").iterdir()] == ["e"]


def test_t44_root_of_a_bucket(base: StoragePath) -> None:
    """T44 (P8): a root is stable: its parent is itself, it exists, it lists."""
    (base / "a" / "b").write_bytes(b"x")
    root = StoragePath(base.anchor)
    assert root.parent == root
    assert root.name == ""
    assert root.exists()
    assert root.is_dir()
    if not base.is_local:
        assert next(iter(root.iterdir())).parent == root
        assert any(path.name == "b" for path in root.rglob("b"))


def test_t44_missing_bucket(
    seaweed: S3Endpoint, moto: S3Endpoint, s3_environment: UseEndpoint
) -> None:
    """T44 (P9): a bucket that is not there does not exist, and cannot be listed, read or written."""
    for endpoint in (seaweed, moto):
        s3_environment(endpoint)
        root = StoragePath("s3://no-such-bucket-here")
        assert not root.exists()
        assert not (root / "x").exists()
        with pytest.raises(FileNotFoundError, match="no-such-bucket-here"):
            list(root.iterdir())
        with pytest.raises(FileNotFoundError, match="no-such-bucket-here"):
            (root / "x").read_bytes()
        with pytest.raises(FileNotFoundError, match="no-such-bucket-here"):
            (root / "x").write_bytes(b"x")


def test_t46_listing_a_missing_directory(base: StoragePath) -> None:
    """T46: FileNotFoundError, at the call."""
    with pytest.raises(FileNotFoundError, match="missing"):
        list((base / "missing").iterdir())
    assert list(base.glob("missing/*")) == []


def test_t47_trailing_slashes() -> None:
    """T47 (P8): they are no part of a path."""
    assert (StoragePath("s3://bucket/k/") / "f").url == "s3://bucket/k/f"
    assert (StoragePath("s3://bucket/") / "k/").url == "s3://bucket/k"
    assert StoragePath("s3://bucket/k/") == StoragePath("s3://bucket/k")


@pytest.mark.long
def test_t48_pages(moto: S3Endpoint, s3_environment: UseEndpoint, bucket: MakeBucket) -> None:
    """T48: 1,001 and 2,500 keys: each once, in order (1,001 also in the plain run: `TestS3AsAwsHasIt`)."""
    s3_environment(moto)
    name = bucket(moto)
    wanted = [f"{number:06d}" for number in range(2_500)]
    for size in (1_001, 2_500):
        for key in wanted[0 if size == 1_001 else 1_001 : size]:
            put_object(moto, name, f"many/{key}", b"")
        folder = StoragePath(f"s3://{name}/many")
        assert [path.name for path in folder.iterdir()] == wanted[:size]


def test_t49_what_others_put_is_seen(base: StoragePath) -> None:
    """T49 (P5): no listing cache: a marker put by another client is there on the next call."""
    other = StoragePath(base.url)
    (base / "other").write_bytes(b"x")
    for number in range(3):
        marker = base / f"DONE-{number}"
        assert marker.name not in [child.name for child in base.iterdir()]
        assert not marker.exists()
        (other / marker.name).write_bytes(b"")
        assert marker.exists()
        assert marker in list(base.glob("DONE-*"))


def test_t52_two_patterns_on_one_path(base: StoragePath) -> None:
    """T52: a second pattern is not answered from what the first one listed."""
    for name in ("train-1", "test-1", "train-2"):
        (base / name).write_bytes(b"x")
    assert [path.name for path in base.glob("train-*")] == ["train-1", "train-2"]
    assert [path.name for path in base.glob("test-*")] == ["test-1"]


def test_t53_waiting(base: StoragePath) -> None:
    """T53 (P5): a marker that appears ends the wait; one that does not is a TimeoutError in words."""
    (base / "other").write_bytes(b"x")
    timer = threading.Timer(0.3, (base / "DONE").write_bytes, (b"done",))
    timer.start()
    assert (base / "DONE").wait(60, poll=0.05).size == 4
    timer.join()
    with pytest.raises(WaitTimeout, match="NEVER") as caught:
        (base / "NEVER").wait(0.2, poll=0.05)
    assert isinstance(caught.value, TimeoutError)


def test_t56_no_secret_in_pickles_and_texts(
    seaweed: S3Endpoint, s3_environment: UseEndpoint, bucket: MakeBucket
) -> None:
    """T56 (P9): pickles, repr and errors hold no credentials, and a pickle works elsewhere."""
    s3_environment(seaweed)
    path = StoragePath(f"s3://{bucket(seaweed)}") / "object"
    path.write_bytes(b"x")
    again = pickle.loads(pickle.dumps(path))
    assert again == path
    assert again.read_bytes() == b"x"
    s3_environment(replace(seaweed, secret_key="wrong-secret"))
    with pytest.raises(AccessDenied) as caught:
        path.read_bytes()
    texts = [repr(path), repr(path.store), str(caught.value), repr(caught.value)]
    texts += [pickle.dumps(path).decode("latin-1"), pickle.dumps(caught.value).decode("latin-1")]
    for text in texts:
        assert seaweed.secret_key not in text
        assert "wrong-secret" not in text


def test_t62_refused(seaweed: S3Endpoint, s3_environment: UseEndpoint, bucket: MakeBucket) -> None:
    """T62 (P9): rights that do not suffice are a PermissionError at once, and change nothing."""
    s3_environment(seaweed)
    path = StoragePath(f"s3://{bucket(seaweed)}") / "object"
    path.write_bytes(b"x")
    s3_environment(replace(seaweed, access_key=READER[0], secret_key=READER[1]))
    assert path.read_bytes() == b"x"
    for call in (lambda: path.write_bytes(b"y"), path.remove):
        with pytest.raises(PermissionError, match="object"):
            call()
    assert path.read_bytes() == b"x"
