"""Region aliases: found, resolved, and every mistake said clearly."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from wstore import StoragePath
from wstore.errors import InvalidPath

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[regions]
weights = {us = "s3://us-bucket/x", eu = "gs://eu-bucket/x y", local = "memory://regions"}

[regions.disk]
us = "/data/us"
here = "file:///data/a%20b"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good configuration in the working directory, in region "us"."""
    monkeypatch.delenv("WSTORE_CONFIG", raising=False)
    monkeypatch.setenv("WSTORE_REGION", "us")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "wstore.toml"
    file.write_text(GOOD)
    return file


@pytest.mark.parametrize(
    ("region", "url", "resolved"),
    [
        ("us", "region://weights/run1", "s3://us-bucket/x/run1"),
        ("us", "region://weights", "s3://us-bucket/x"),
        ("us", "region://weights/", "s3://us-bucket/x"),
        ("eu", "region://weights/a%20b//c", "gs://eu-bucket/x y/a%20b//c"),
        ("local", "region://weights/run1", "memory://regions/run1"),
        ("us", "region://disk/a b", "file:///data/us/a%20b"),
        ("here", "region://disk/run", "file:///data/a%20b/run"),
    ],
)
def test_an_alias_is_the_url_of_this_region(
    config: Path, monkeypatch: pytest.MonkeyPatch, region: str, url: str, resolved: str
) -> None:
    monkeypatch.setenv("WSTORE_REGION", region)
    path = StoragePath(url)
    assert path.url == resolved
    assert path == StoragePath(resolved)
    assert pickle.loads(pickle.dumps(path)) == path


def test_an_alias_is_understood_wherever_a_path_is(config: Path) -> None:
    path = StoragePath("s3://us-bucket/x/run1/head.json")
    assert path.relative_to("region://weights/run1") == "head.json"
    assert path.is_relative_to("region://weights")
    assert not path.is_relative_to("region://disk")


def test_paths_of_an_alias_work(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSTORE_REGION", "local")
    (StoragePath("region://weights/run") / "object").write_bytes(b"there")
    assert StoragePath("memory://regions/run/object").read_bytes() == b"there"
    assert StoragePath("region://weights/x", client="obstore").location.client == "obstore"


def test_the_file_is_found_above_and_by_name(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert StoragePath("region://weights").root == "us-bucket"
    (tmp_path / "a" / "wstore.toml").write_text('[regions]\nweights = {us = "s3://nearer"}\n')
    assert StoragePath("region://weights").root == "nearer"
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text('[regions]\nweights = {us = "s3://named"}\n')
    monkeypatch.setenv("WSTORE_CONFIG", str(elsewhere))
    assert StoragePath("region://weights").root == "named"


def test_a_changed_file_is_read_again(config: Path) -> None:
    first = StoragePath("region://weights/run")
    config.write_text(GOOD.replace("us-bucket", "new-bucket"))
    os.utime(config, (1, 1))
    assert StoragePath("region://weights/run").root == "new-bucket"
    assert first.root == "us-bucket"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[regions]\nweights = {us = \n", "line 2"),
        ("regions = 3\n", "must be a table"),
        ("[regions]\nweights = 's3://x'\n", "us = "),
        ("[regions]\nweights = {}\n", "us = "),
        ("[regions]\nweights = {us = 3}\n", "regions.weights.us"),
        ("[regions]\n'a/b' = {us = 's3://bucket'}\n", "an alias is made of"),
        ("[regions]\nweights = {us = 'region://disk'}\n", "another alias"),
        ("[regions]\nweights = {us = 'rel/path'}\n", "absolute"),
        ("[regions]\nweights = {us = 's3://key:secret@bucket/x'}\n", "regions.weights.us"),
        ("[regions]\nother = {us = 's3://bucket'}\n", "it has: other"),
        ("[regions]\nweights = {ap = 's3://bucket', eu = 's3://b-eu'}\n", "it has: ap, eu"),
        ("", "it has: none"),
        ("\udc80", "UTF-8"),
    ],
)
def test_a_bad_configuration_names_the_file_and_the_fault(
    config: Path, text: str, says: str
) -> None:
    config.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidPath) as caught:
        StoragePath("region://weights/run")
    assert str(config) in str(caught.value)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_region_or_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSTORE_REGION", "")
    with pytest.raises(InvalidPath, match=r"WSTORE_REGION is not set.*eu, local, us"):
        StoragePath("region://weights")
    monkeypatch.setenv("WSTORE_CONFIG", str(config) + ".none")
    with pytest.raises(InvalidPath, match=r"wstore.toml.none cannot be read"):
        StoragePath("region://weights")
    monkeypatch.delenv("WSTORE_CONFIG")
    config.unlink()
    with pytest.raises(InvalidPath, match="WSTORE_CONFIG"):
        StoragePath("region://weights")


def test_dots_do_not_leave_the_place(config: Path) -> None:
    with pytest.raises(InvalidPath):
        StoragePath("region://weights/../other")
