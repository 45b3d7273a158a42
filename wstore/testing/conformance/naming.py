"""Names: any key survives, and no two keys are taken for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.errors import WStoreError
from wstore.testing.conformance.place import attempt, contents, names, view

if TYPE_CHECKING:
    from wstore.testing.conformance.place import StoreUnderTest

ODD = (
    "a b",
    "a%20b",
    "a%b",
    "a+b",
    "a%2Fb",
    "é/ü",
    "a#1",
    "ckpt#1",
    "a?b",
    "a&b=c",
    "x:y",
    "q'\"<>",
    "emoji😀",
    "br[1]*?.txt",
    "sub dir/sub%20dir",
    " lead and trail ",
    "back\\slash",
    "~tilde",
    "-dash",
    "a;b,c@d!e$f(g)",
    "{braces}|^`",
    ".hidden",
    "...",
    "a..b",
    "name.tmp",
    "name.part",
    "tab\tnewline\n",
    "zero\u200bwidth",
    "日本語",
)

TWINS = (
    ("a b", "a%20b", "a+b"),
    ("e\u0301", "\u00e9"),
    ("Case", "case"),
    ("sub dir/x", "sub%20dir/x"),
    ("x", "x."),
)

SLASHES = ("a//b", "a/b", "a/./b", "a/../b", "./c", "../c", "d/", "d", "d//", "//e", "e")


def check_odd_names(place: StoreUnderTest) -> None:
    """Every odd character survives: written, read, seen raw, listed, deleted under the same string."""
    store, odd = place.open(), _odd(place)
    for name in odd:
        key, data = place.key(name), name.encode()
        store.write(key, view(data))
        assert place.raw_get(key) == data, name
        assert contents(store, key) == data, name
    wanted = sorted(odd, key=str.encode)
    assert names(store.list(place.prefix, recursive=True), place.prefix) == wanted
    for name in odd:
        store.delete(place.key(name))
    assert list(store.list(place.prefix, recursive=True)) == []


def check_odd_names_of_others(place: StoreUnderTest) -> None:
    """Objects with odd names that other programs made are listed and read."""
    store = place.open()
    for name in _odd(place):
        place.raw_put(place.key(name), name.encode())
    for entry in store.list(place.prefix, recursive=True):
        assert contents(store, entry.key) == entry.key.removeprefix(place.prefix).encode()
    found = names(store.list(place.prefix, recursive=True), place.prefix)
    assert found == sorted(_odd(place), key=str.encode)


def check_twins_are_two(place: StoreUnderTest) -> None:
    """Nothing is decoded, folded or normalised: names that look alike are different objects."""
    store = place.open()
    for number, twins in enumerate(TWINS):
        for name in twins:
            store.write(place.key(f"{number}/{name}"), view(name.encode()))
        for name in twins:
            assert contents(store, place.key(f"{number}/{name}")) == name.encode()
        listed = store.list(place.key(f"{number}/"), recursive=True)
        assert names(listed, place.key(f"{number}/")) == sorted(twins, key=str.encode)


def check_odd_prefixes(place: StoreUnderTest) -> None:
    """A prefix with odd characters lists what is under it and nothing else."""
    store = place.open()
    folders = ("a b", "a%20b", "a+b", "[x]*", "é", "a#1", "a?b", "q'\"<>&")
    for folder in folders:
        place.raw_put(place.key(f"{folder}/x"), b"x")
    for folder in folders:
        for recursive in (False, True):
            listed = store.list(place.key(f"{folder}/"), recursive=recursive)
            assert names(listed, place.prefix) == [f"{folder}/x"]
    level = names(store.list(place.prefix, recursive=False), place.prefix)
    assert level == sorted((f"{folder}/" for folder in folders), key=str.encode)


def check_long_key(place: StoreUnderTest) -> None:
    """1,024 bytes of key, as long as S3 allows; a longer one works or is a clear error."""
    store = place.open()
    room = 1024 - len(place.prefix.encode())
    # Names of files end at 255 bytes, so the key is a path; "ü" is two bytes.
    name = ("ü" * 60 + "/") * (room // 121)
    name += "x" * (room - len(name.encode()))
    name = name.removesuffix("/") + "x" * name.endswith("/")
    key = place.key(name)
    assert len(key.encode()) == 1024
    store.write(key, view(b"long"))
    assert place.raw_get(key) == b"long"
    assert contents(store, key) == b"long"
    assert [entry.key for entry in store.list(place.prefix, recursive=True)] == [key]
    longer = place.key("y" * 5000)
    error = attempt(WStoreError, lambda: store.write(longer, view(b"x")))
    assert error.url if error else contents(store, longer) == b"x"


def check_key_that_is_also_a_prefix(place: StoreUnderTest) -> None:
    """ "a" beside "a/b": each reads as what it is, and a listing shows both the file and the prefix."""
    if not place.flat:
        return
    store = place.open()
    place.raw_put(place.key("a"), b"file")
    place.raw_put(place.key("a/b"), b"below")
    for _ in range(2):
        assert contents(store, place.key("a")) == b"file"
        assert contents(store, place.key("a/b")) == b"below"
        level = list(store.list(place.prefix, recursive=False))
        assert names(level, place.prefix) == ["a", "a/"]
        assert [entry.info is None for entry in level] == [False, True]
        below = store.list(place.prefix, recursive=True)
        assert names(below, place.prefix) == ["a", "a/b"]


def check_slashes_and_dots(place: StoreUnderTest) -> None:
    """Where a key is any string, "//", "." and ".." and a final "/" are part of it like any other.

    Where keys are paths such a key is refused, or means one file to every method.
    """
    store = place.open()
    if not place.flat:
        # A name that ends with "/" is a directory there, whose content is lost by some servers.
        for name in (name for name in SLASHES if not name.endswith("/")):
            _refused_or_same(place, f"{SLASHES.index(name)}/{name}")
        return
    for name in SLASHES:
        store.write(place.key(name), view(name.encode()))
    for name in SLASHES:
        assert contents(store, place.key(name)) == name.encode(), name
        assert place.raw_get(place.key(name)) == name.encode(), name
        assert store.stat(place.key(name)).size == len(name), name
    listed = list(store.list(place.prefix, recursive=True))
    assert names(listed, place.prefix) == sorted(SLASHES, key=str.encode)
    assert names(store.list(place.key("a//"), recursive=False), place.prefix) == ["a//b"]
    assert names(store.list(place.key("d/"), recursive=False), place.prefix) == ["d/", "d//"]
    for entry in listed:
        store.delete(entry.key)
    assert list(store.list(place.prefix, recursive=True)) == []


def _odd(place: StoreUnderTest) -> list[str]:
    return [name for name in ODD if not set(name) & set(place.mangled)]


def _refused_or_same(place: StoreUnderTest, name: str) -> None:
    store, key = place.open(), place.key(name)
    error = attempt(WStoreError, lambda: store.write(key, view(b"x")))
    assert error.url if error else contents(store, key) == b"x", name
