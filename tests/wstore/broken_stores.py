"""Stores that are broken in one way each; the conformance suite must find every one of them."""

from __future__ import annotations

import posixpath
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import unquote

from wstore.errors import NotFound, WStoreError
from wstore.stores.base import Entry, Expect, ObjectInfo, Read
from wstore.stores.memory import MemoryStore, MemoryUpload

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from wstore.stores.base import Capabilities

T = TypeVar("T")
F = TypeVar("F")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Reads(MemoryStore):
    """A memory store whose `read` a mutant changes by its arguments or its result."""

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        return self.broken_read(key, offset, length, buffer, tag)

    def honest(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        return super().read(key, offset, length, buffer=buffer, tag=tag)

    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        raise NotImplementedError


class IgnoresTags(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        return self.honest(key, offset, length, buffer, None)


class ReadsOneByteTooMuch(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        return self.honest(key, offset, length + 1, None, tag)


class ReturnsACopyOfTheBuffer(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        read = self.honest(key, offset, length, buffer, tag)
        return Read(memoryview(bytes(read.data)), read.info)


class ReadsAbsenceAsNothing(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        try:
            return self.honest(key, offset, length, buffer, tag)
        except NotFound:
            return Read(memoryview(b""), ObjectInfo(0, datetime.now(UTC), "none"))

    def stat(self, key: str) -> ObjectInfo:
        return self.read(key, 0, 1).info


class PadsWithZeros(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        read = self.honest(key, offset, length, buffer, tag)
        missing = min(100, length - len(read.data))
        return Read(memoryview(bytes(read.data) + bytes(missing)), read.info)


class ReturnsTheStoresOwnMemory(Reads):
    def _publish(
        self, key: str, data: bytes, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return super()._publish(key, cast("bytes", bytearray(data)), expect, write_id)

    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        return self.honest(key, offset, length, buffer, tag)


class RefusesTheEnd(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        read = self.honest(key, offset, length, buffer, tag)
        if not read.data:
            raise WStoreError("416", url=self.url)
        return read


class ReadsHalfOfLargeRanges(Reads):
    def broken_read(
        self, key: str, offset: int, length: int, buffer: memoryview | None, tag: str | None
    ) -> Read:
        read = self.honest(key, offset, length, buffer, tag)
        return Read(read.data[: min(len(read.data), 1 << 15)], read.info)


class Writes(MemoryStore):
    """A memory store whose `write` a mutant changes."""

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        return self.broken_write(key, data, expect, write_id)

    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        raise NotImplementedError


class LooksBeforeItCreates(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        if expect is Expect.ABSENT and key not in self._objects:
            time.sleep(0.02)
            expect = Expect.ANY
        return self._publish(key, bytes(data), expect, write_id)


class ComparesBeforeItReplaces(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        if isinstance(expect, str) and key in self._objects and self.stat(key).tag == expect:
            time.sleep(0.02)
            expect = Expect.ANY
        return self._publish(key, bytes(data), expect, write_id)


class CreatesOver(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return self._publish(key, bytes(data), Expect.ANY, write_id)


class KeepsTheCallersMemory(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return self._publish(key, cast("bytes", data), expect, write_id)


class LosesTheLastByte(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return self._publish(key, bytes(data[:-1]), expect, write_id)


class WritesWholeBuffers(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return self._publish(key, bytes(data.obj), expect, write_id)


class WritesInTwoSteps(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        self._publish(key, bytes(data[: len(data) // 2]), expect, write_id)
        time.sleep(0.001)
        return self._publish(key, bytes(data), Expect.ANY, write_id)


class LeavesATemporaryObject(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        self._publish(f"{key}.tmp", bytes(data), Expect.ANY, None)
        return self._publish(key, bytes(data), expect, write_id)


class ReplacesWhatIsBelow(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        for other in [k for k in self._objects if k.startswith(f"{key}/")]:
            del self._objects[other]
        for other in [k for k in self._objects if key.startswith(f"{k}/")]:
            del self._objects[other]
        return self._publish(key, bytes(data), expect, write_id)


class NeedsAParent(Writes):
    def broken_write(
        self, key: str, data: memoryview, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        parent = key.rpartition("/")[0]
        if parent.count("/") > 3:
            raise NotFound("no parent", url=self.url)
        return self._publish(key, bytes(data), expect, write_id)


class Lists(MemoryStore):
    """A memory store whose listings a mutant changes."""

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        return iter(self.broken_list(prefix, recursive, start_after))

    def honest(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return list(super().list(prefix, recursive=recursive, start_after=start_after))

    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        raise NotImplementedError


class ListsUnsorted(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return self.honest(prefix, recursive, start_after)[::-1]


class ListsOnePage(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return self.honest(prefix, recursive, start_after)[:1000]


class ListsFromTheStart(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return self.honest(prefix, recursive, "")


class ListsByNameOnly(Lists):
    """The prefix without its slash."""

    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return self.honest(prefix.removesuffix("/"), recursive, start_after)


class ListsAbsenceAsAnError(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        found = self.honest(prefix, recursive, start_after)
        if not found:
            raise NotFound("nothing here", url=self.url)
        return found


class ListsOtherSizes(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return [
            Entry(entry.key, entry.info and replace(entry.info, size=entry.info.size + 1))
            for entry in self.honest(prefix, recursive, start_after)
        ]


class ListsUnfinishedWrites(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        pending = [Entry(session.key, None) for session in self._sessions.values()]
        return self.honest(prefix, recursive, start_after) + pending


class RemembersListings(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        memory = self.__dict__.setdefault("memory", {})
        key = (prefix, recursive, start_after)
        if key not in memory:
            memory[key] = self.honest(prefix, recursive, start_after)
        return list(memory[key])


class Renames(MemoryStore):
    """A memory store that takes a key for another one."""

    def _renamed(self, key: str) -> str:
        raise NotImplementedError

    def _publish(
        self, key: str, data: bytes, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return super()._publish(self._renamed(key), data, expect, write_id)

    def stat(self, key: str) -> ObjectInfo:
        return super().stat(self._renamed(key))

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        return super().read(self._renamed(key), offset, length, buffer=buffer, tag=tag)


class DecodesNames(Renames):
    def _renamed(self, key: str) -> str:
        return unquote(key)


class CleansNames(Renames):
    def _renamed(self, key: str) -> str:
        return posixpath.normpath(key)


class CutsNames(Renames):
    def _renamed(self, key: str) -> str:
        return key[:500]


class GluesNames(Renames):
    """A key that is also a prefix is hidden by what is below it."""

    def _renamed(self, key: str) -> str:
        below = any(other.startswith(f"{key}/") for other in self._objects)
        return f"{key}/" if below else key


class DecodesPrefixes(Lists):
    def broken_list(self, prefix: str, recursive: bool, start_after: str) -> builtins.list[Entry]:
        return self.honest(unquote(prefix), recursive, start_after)


class DeletesNothing(MemoryStore):
    def delete(self, key: str) -> None:
        pass


class DeletesAllThatBeginsAlike(MemoryStore):
    def delete(self, key: str) -> None:
        for other in [other for other in self._objects if other.startswith(key)]:
            del self._objects[other]


class DeletesInventions(MemoryStore):
    def delete(self, key: str) -> None:
        if key not in self._objects:
            self._publish(f"{key}.deleted", b"", Expect.ANY, None)
        super().delete(key)


class TagsBySize(MemoryStore):
    def _publish(
        self, key: str, data: bytes, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        super()._publish(key, data, expect, write_id)
        held = self._objects[key]
        self._objects[key] = replace(held, info=replace(held.info, tag=f"size-{len(data)}"))
        return self._objects[key].info


class LivesInThePast(MemoryStore):
    def _publish(
        self, key: str, data: bytes, expect: Expect | str, write_id: str | None
    ) -> ObjectInfo:
        return replace(super()._publish(key, data, expect, write_id), modified=LONG_AGO)


class DiesWhenClosed(MemoryStore):
    def close(self) -> None:
        del self._objects


class ClaimsDirectories(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, directories=True)


class ClaimsAnyFeature(MemoryStore):
    def feature(self, kind: type[F]) -> F | None:
        return cast("F", self)


class HidesTheUrl(MemoryStore):
    def _missing(self, key: str) -> NotFound:
        return NotFound("gone")


class PublishesPieces(MemoryStore):
    def put_piece(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> None:
        super().put_piece(key, upload_id, number, offset, data)
        self._publish(key, data, Expect.ANY, None)


class NeverForgetsUploads(MemoryStore):
    def end_upload(self, upload_id: str) -> None:
        pass


class AbortsWhatIsPublished(MemoryStore):
    def end_upload(self, upload_id: str) -> None:
        if upload_id not in self._sessions:
            self._objects.clear()
        super().end_upload(upload_id)


class RefusesEmptyUploads(MemoryStore):
    def complete_upload(self, key: str, upload_id: str) -> ObjectInfo:
        if not any(data for _, data in self._sessions[upload_id].pieces.values()):
            raise WStoreError("no pieces", url=self.url)
        return super().complete_upload(key, upload_id)


class KeepsTheMemoryOfPieces(MemoryStore):
    def upload(self, key: str, *, size: int | None = None) -> MemoryUpload:
        upload = super().upload(key, size=size)
        return AliasingUpload(self, key, upload._id)


class AliasingUpload(MemoryUpload):
    def put(self, number: int, offset: int, data: memoryview) -> None:
        self._store.put_piece(self._key, self._id, number, offset, cast("bytes", data))


class KeepsTheFirstOfEachPiece(MemoryStore):
    def put_piece(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> None:
        if number not in self._session(key, upload_id).pieces:
            super().put_piece(key, upload_id, number, offset, data)


class JoinsInOrderOfArrival(MemoryStore):
    def put_piece(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> None:
        pieces = self._session(key, upload_id).pieces
        start = sum(len(held) for _, held in pieces.values())
        super().put_piece(key, upload_id, len(pieces), start, data)


class OneUploadPerKey(MemoryStore):
    def put_piece(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> None:
        for other, session in self._sessions.items():
            if session.key == key:
                super().put_piece(key, other, number, offset, data)


class UploadsDecodedNames(MemoryStore):
    def complete_upload(self, key: str, upload_id: str) -> ObjectInfo:
        return super().complete_upload(unquote(key), upload_id)


class CopiesNothing(MemoryStore):
    def copy(self, source: str, target: str) -> ObjectInfo:
        return self.stat(source)


class BlamesTheTarget(MemoryStore):
    def copy(self, source: str, target: str) -> ObjectInfo:
        try:
            return super().copy(source, target)
        except NotFound as error:
            raise NotFound("no copy", url=f"{self.url}/{target}") from error


class SweepsTheYoung(MemoryStore):
    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        return super().sweep(prefix, older_than_s=-2)


class ClaimsEveryWrite(MemoryStore):
    def wrote(self, key: str, write_id: str) -> bool:
        return key in self._objects
