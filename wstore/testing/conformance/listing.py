"""Listings: order, folding, paging, no caches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wstore.stores.base import Directories, Multipart
from wstore.testing.conformance.place import names, pattern, view

if TYPE_CHECKING:
    from wstore.testing.conformance.place import StoreUnderTest

# "-" and "." sort before "/", "0" after; U+FF5E sorts before U+1F600 in UTF-8 but after it in UTF-16.
TREE = ("a-b", "a.b", "a/b", "a/c/d", "a0", "b/c", "é", "\uff5e", "\U0001f600")


def check_recursive_order(place: StoreUnderTest) -> None:
    """All objects below the prefix, each once, by the bytes of their whole key."""
    store = place.open()
    for name in reversed(TREE):
        place.raw_put(place.key(name), b"x")
    listed = list(store.list(place.prefix, recursive=True))
    assert names(listed, place.prefix) == sorted(TREE, key=str.encode)
    assert all(entry.info is not None for entry in listed)


def check_folded_order(place: StoreUnderTest) -> None:
    """One level: deeper keys fold into one entry ending with "/", sorted as that name."""
    store = place.open()
    for name in reversed(TREE):
        place.raw_put(place.key(name), b"x")
    listed = list(store.list(place.prefix, recursive=False))
    wanted = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in TREE}, key=str.encode)
    assert names(listed, place.prefix) == wanted
    assert [entry.info is None for entry in listed] == [name.endswith("/") for name in wanted]
    inner = store.list(place.key("a/"), recursive=False)
    assert names(inner, place.prefix) == ["a/b", "a/c/"]


def check_entries_describe_objects(place: StoreUnderTest) -> None:
    """Sizes and tags of a listing are those that stat gives."""
    store = place.open()
    for size in (0, 1, 1000):
        store.write(place.key(f"size-{size}"), view(pattern(size)))
    for entry in store.list(place.prefix, recursive=True):
        stat = store.stat(entry.key)
        assert entry.info is not None
        assert (entry.info.size, entry.info.tag) == (stat.size, stat.tag)
        assert f"size-{stat.size}" in entry.key
        assert entry.info.modified.utcoffset() is not None


def check_prefix_ends_at_its_slash(place: StoreUnderTest) -> None:
    """ "foo/" has nothing to do with "foobar", nor "foo" itself."""
    store = place.open()
    for name in ("foobar", "foob/x", "foo.d/x"):
        place.raw_put(place.key(name), b"x")
    for recursive in (False, True):
        assert list(store.list(place.key("foo/"), recursive=recursive)) == []


def check_absent_prefix(place: StoreUnderTest) -> None:
    """A prefix under which nothing is yields nothing."""
    store = place.open()
    for recursive in (False, True):
        assert list(store.list(place.key("nothing/here/"), recursive=recursive)) == []


def check_start_after(place: StoreUnderTest) -> None:
    """Entries up to and including `start_after` are left out, be it there or not."""
    store = place.open()
    # Servers that keep objects as files walk "a/" before "a-b", and lose it after "a-b".
    as_keys = place.flat or store.capabilities.directories
    for name in TREE:
        if as_keys or name[:2] not in ("a-", "a."):
            place.raw_put(place.key(name), b"x")
    for recursive in (False, True):
        whole = [entry.key for entry in store.list(place.prefix, recursive=recursive)]
        for number, key in enumerate(whole):
            rest = store.list(place.prefix, recursive=recursive, start_after=key)
            assert [entry.key for entry in rest] == whole[number + 1 :], (recursive, key)
        between = store.list(place.prefix, recursive=recursive, start_after=place.key("a1"))
        assert names(between, place.prefix)[0] == ("b/c" if recursive else "b/")
        assert not list(store.list(place.prefix, recursive=recursive, start_after="\U0010ffff"))


def check_many_keys(place: StoreUnderTest) -> None:
    """More keys than a page holds: each once, sorted, also when resumed in the middle."""
    store = place.open()
    wanted = [place.key(f"many/{number:06d}") for number in range(place.many)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: place.raw_put(key, b""), wanted))
    for recursive in (False, True):
        listed = [entry.key for entry in store.list(place.key("many/"), recursive=recursive)]
        assert listed == wanted
    middle = place.many // 2
    rest = store.list(place.key("many/"), recursive=True, start_after=wanted[middle])
    assert [entry.key for entry in rest] == wanted[middle + 1 :]


def check_listing_while_deleting(place: StoreUnderTest) -> None:
    """Deleting each entry as it comes does not disturb the listing."""
    store = place.open()
    wanted = [place.key(f"{folder}/{number}") for folder in "ab" for number in range(4)]
    for key in wanted:
        place.raw_put(key, b"x")
    seen = []
    for entry in store.list(place.prefix, recursive=True):
        seen.append(entry.key)
        store.delete(entry.key)
    assert seen == wanted
    assert list(store.list(place.prefix, recursive=True)) == []


def check_listing_left_early(place: StoreUnderTest) -> None:
    """A listing may be dropped after its first entry, and begun again."""
    store = place.open()
    for name in ("a", "b", "c"):
        place.raw_put(place.key(name), b"x")
    for _ in range(3):
        assert next(store.list(place.prefix, recursive=True)).key == place.key("a")


def check_unfinished_writes_are_hidden(place: StoreUnderTest) -> None:
    """An upload in progress is in no listing."""
    store = place.open()
    store.write(place.key("a"), view(b"x"))
    multipart = store.feature(Multipart)
    if multipart is None:
        return
    upload = multipart.upload(place.key("b"))
    upload.put(0, 0, view(pattern(1000)))
    for recursive in (False, True):
        assert names(store.list(place.prefix, recursive=recursive), place.prefix) == ["a"]
    upload.abort()


def check_empty_directories(place: StoreUnderTest) -> None:
    """A directory without objects shows on its level where directories exist, and never among files."""
    store = place.open()
    directories = store.feature(Directories)
    assert (directories is not None) == store.capabilities.directories
    if directories is None:
        return
    directories.mkdir(place.key("void"), parents=True, exist_ok=False)
    assert names(store.list(place.prefix, recursive=False), place.prefix) == ["void/"]
    assert names(store.list(place.prefix, recursive=True), place.prefix) == []
