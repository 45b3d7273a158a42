"""Keys of a file system's store, in one word each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.stores.base import Expect

if TYPE_CHECKING:
    from wstore.stores.posix_store import PosixStore

WHOLE = 1 << 40


def content(store: PosixStore, key: str) -> bytes:
    return bytes(store.read(key, 0, WHOLE).data)


def listed(store: PosixStore, prefix: str = "", *, recursive: bool = True) -> list[str]:
    return [entry.key for entry in store.list(prefix, recursive=recursive)]


def write(store: PosixStore, key: str, data: bytes, expect: Expect = Expect.ANY) -> None:
    store.write(key, memoryview(data), expect=expect)
