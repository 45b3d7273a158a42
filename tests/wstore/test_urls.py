"""URLs: what is parsed, what survives, what is refused, and that nothing secret is repeated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstore import InvalidPath, StoragePath, urls
from wstore.urls import Location

if TYPE_CHECKING:
    from pathlib import Path

ODD_KEYS = [
    "a b", "a%20b", "a%b", "a+b", "é/ü", "a#1", "a?b", "a&b=c", "x:y", "q'\"<>", "emoji😀",
    "br[1]*?.txt", "a//b", "./x", "a/./b", " lead", "a\\b", "user@host", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("scheme", ["s3", "memory"])
def test_keys_of_object_stores_are_literal(scheme: str, key: str) -> None:
    location = urls.parse(f"{scheme}://bucket/{key}")
    assert location == Location(scheme, "bucket", key)
    assert urls.parse(location.url) == location


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_key_round_trips_through_its_url(key: str) -> None:
    if ".." in key.split("/"):
        with pytest.raises(InvalidPath):
            urls.parse(f"s3://bucket/{key}/")
        return
    location = urls.parse(f"s3://bucket/{key}/")
    assert location.key == key
    assert urls.parse(location.url) == location


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_every_local_path_round_trips_through_its_file_url(name: str) -> None:
    if ".." in name.split("/"):
        return
    location = urls.parse("/" + name)
    assert urls.parse(location.url) == location
    assert location.url.isascii()


def test_one_trailing_slash_is_dropped() -> None:
    assert urls.parse("s3://b-1/k/") == urls.parse("s3://b-1/k")
    assert urls.parse("s3://b-1") == urls.parse("s3://b-1/") == Location("s3", "b-1", "")
    assert urls.parse("s3://b-1/k//").key == "k/"
    assert urls.parse("S3://b-1/K").scheme == "s3"


def test_file_urls_are_percent_encoded_and_plain_paths_are_not() -> None:
    assert urls.parse("file:///a%20b").key == "a b"
    assert urls.parse("/a%20b").key == "a%20b"
    assert urls.parse("/a%20b").url == "file:///a%2520b"
    assert urls.parse("file://localhost/x").key == "x"
    assert urls.parse("/a#b?c").url == "file:///a%23b%3Fc"
    assert urls.parse("file:///a#b?c").key == "a#b?c"


def test_a_file_name_that_is_not_utf8_round_trips() -> None:
    name = os.fsdecode(b"/x\xff")
    assert urls.parse(urls.parse(name).url).key == name[1:]


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path.resolve())[1:]
    assert urls.parse("a//b/./c/").key == f"{here}/a/b/c"
    assert urls.parse(".").key == here
    assert urls.parse("../x").key == f"{here.rpartition('/')[0]}/x"


def test_dot_dot_of_a_plain_path_follows_links_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    assert urls.parse(f"{tmp_path}/link/../x").key == f"{tmp_path.resolve()}/real/x"[1:]


@pytest.mark.parametrize(
    "url",
    [
        "", "s3://", "s3:///key", "s3://ab/k", "s3://Bad Bucket/k", "s3://a..b/k", "s3://b-1/../x",
        "s3://b-1/a/../../x", "s3://b-1/..", "file:///a/../b", "file://host/x", "file://x",
        "/nul\0", "file:///a%00b", "s3:/bucket/key", "memory://", "memory:///x", "s3://b-1/\udc80",
        "memory://a b/x",
    ],
)  # fmt: skip
def test_malformed_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        StoragePath(url)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAX:hunter2@bucket/key",
        "s3://AKIAX:hunter2/slash@bucket/key",
        "s3://hunter2@bucket/key",
        "s3://bucket:hunter2/key",
        "s3://bucket?secret=hunter2/key",
        "memory://me:hunter2@name/key",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        StoragePath(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "abfss://c@acct.dfs.evil.example/x",
        "abfss://c@acct.blob.core.windows.net.evil.example/x",
        "abfss://c@acct.dfs.core.windows.net.evil.example/x",
        "abfs://c@acct.dfs.core-windows.net/x",
        "az://c@acct.dfs.corexwindows.net/x",
    ],
)
def test_an_azure_url_names_no_host_but_azures(url: str) -> None:
    with pytest.raises(InvalidPath, match="AZURE_STORAGE_ENDPOINT"):
        urls.parse(url)


@pytest.mark.parametrize(
    "domain",
    ["core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "fabric.microsoft.com"],
)
def test_azures_own_clouds_are_named_in_urls(domain: str) -> None:
    for kind in ("dfs", "blob"):
        root = f"c@acct.{kind}.{domain}"
        assert urls.parse(f"abfss://{root}/x") == Location("abfss", root, "x")


@pytest.mark.parametrize(
    "text",
    [
        "simplecache::s3://bucket/hunter2",
        "my_scheme://hunter2/y",
        "3s://bucket/hunter2",
        " s3://bucket/hunter2",
        "://hunter2",
    ],
)
def test_what_only_looks_like_a_url_is_no_local_name(text: str) -> None:
    with pytest.raises(InvalidPath, match=r"'\./\.\.\.'") as caught:
        urls.parse(text)
    assert "hunter2" not in str(caught.value)
    here = urls.parse(".").key
    assert urls.parse(f"./{text}").key == f"{here}/{text.replace('//', '/')}"
    assert urls.parse(f"/{text}").scheme == "file"


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(InvalidPath, match=r"file, gs, http, .*s3.*entry points") as caught:
        StoragePath("nosuch://x/y")
    assert "'nosuch'" in str(caught.value)
