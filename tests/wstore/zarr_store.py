"""A zarr store over StoragePath, as a user would write one: zarr's own suite for stores runs over it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype

from wstore import StoragePath
from wstore.errors import AlreadyExists, IsADirectory, NotADirectory, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from typing import Self

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import BufferPrototype

_MISSING = (NotFound, IsADirectory, NotADirectory)


class StoragePathStore(Store):
    """The objects below one path; a key is the part of the path below it."""

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, path: StoragePath | str, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.path = StoragePath(path)

    def with_read_only(self, read_only: bool = False) -> Self:
        return type(self)(self.path, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoragePathStore) and (
            (self.path, self.read_only) == (other.path, other.read_only)
        )

    def __repr__(self) -> str:
        return f"StoragePathStore({str(self.path)!r})"

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        path = self.path / key
        try:
            offset, length, tag = await asyncio.to_thread(_span, path, byte_range)
            data = await path.aread_range(offset, length, tag=tag)
        except _MISSING:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        path = self.path / key
        try:
            offset, length, tag = _span(path, byte_range)
            data = path.read_range(offset, length, tag=tag)
        except _MISSING:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        found = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*found))

    async def exists(self, key: str) -> bool:
        return await asyncio.to_thread((self.path / key).is_file)

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await (self.path / key).awrite_file(value.to_bytes())

    def set_sync(self, key: str, value: Buffer) -> None:
        self._check_writable()
        (self.path / key).write_file(value.to_bytes())

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self._check_writable()
        try:
            await (self.path / key).awrite_file(value.to_bytes(), if_absent=True)
        except AlreadyExists:
            return

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self.delete_sync, key)

    def delete_sync(self, key: str) -> None:
        self._check_writable()
        (self.path / key).remove(missing_ok=True)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        await asyncio.to_thread((self.path / prefix).remove_tree, missing_ok=True)

    async def getsize(self, key: str) -> int:
        return (await asyncio.to_thread((self.path / key).stat)).size

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self._files_below, self.path / prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._children, self.path / prefix):
            yield name

    def _files_below(self, path: StoragePath) -> Sequence[str]:
        return [found.relative_to(self.path) for found in path.rglob("*") if found.is_file()]

    def _children(self, path: StoragePath) -> Sequence[str]:
        try:
            return [found.name for found in path.iterdir()]
        except (NotFound, NotADirectory):
            return []


def _span(path: StoragePath, byte_range: ByteRequest | None) -> tuple[int, int, str | None]:
    """Offset, length and, where the size had to be looked up, the tag of what has it."""
    match byte_range:
        case None:
            return 0, sys.maxsize, None
        case RangeByteRequest(start, end):
            return start, end - start, None
        case OffsetByteRequest(offset):
            return offset, sys.maxsize, None
        case SuffixByteRequest(suffix):
            info = path.stat()
            start = max(0, info.size - suffix)
            return start, info.size - start, info.tag
        case _:
            raise ValueError(f"Unexpected byte_range, got {byte_range}.")
