"""A Store over one of obstore's clients: Azure containers, and obstore's own memory.

What is particular to a service is its `Service`: how its client is made, what it accepts, how large
objects are uploaded. obstore repeats nothing here; `wrap.Retry` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import obstore

from wstore.errors import (
    AlreadyExists,
    ForkedProcess,
    InvalidArgument,
    InvalidPath,
    NotFound,
    PreconditionFailed,
    StoreError,
    Unavailable,
    WStoreError,
)
from wstore.stores import runtime
from wstore.stores.base import (
    Capabilities,
    Copy,
    Entry,
    Expect,
    Multipart,
    ObjectInfo,
    Read,
    Settle,
)
from wstore.stores.objects.failures import Failed, attempt
from wstore.stores.s3.bulk import receive
from wstore.stores.s3.dialect import normal_tag
from wstore.stores.s3.failures import printable
from wstore.stores.s3.per_process import PerProcess
from wstore.stores.s3.reading import require_tag

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator

    from obstore import GetOptions, ObjectMeta, PutMode
    from obstore.store import ObjectStore

    from wstore.stores.base import Upload

F = TypeVar("F")
T = TypeVar("T")

_FEATURES = (Multipart, Copy, Settle)
_WRITE_ID = "wstorewrite"  # Azure's metadata names are identifiers
_MAX_KEY_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Service:
    """One root of one service.

    Attributes:
        url: of the root, without secrets.
        capabilities: what the service promises.
        open_client: makes obstore's client, its retries off; once a process.
        begin_upload: begins a piecewise write of a checked key.
        release: closes what `begin_upload` holds open.
        keeps_memory: the client holds on to what it was given to write, so it gets a copy.
        mangled: characters that the service changes in keys.
    """

    url: str
    capabilities: Capabilities
    open_client: Callable[[], ObjectStore]
    begin_upload: Callable[[ObstoreStore, str], Upload]
    release: Callable[[], None]
    keeps_memory: bool = False
    mangled: str = ""


class ObstoreStore:
    """See the module. Safe from any thread. In a child forked after obstore was used, everything raises
    `ForkedProcess` at once, since obstore would wait for ever."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = PerProcess(self._open)

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a store is not pickled; a StoragePath is, and opens its own")

    @property
    def url(self) -> str:
        return self._service.url

    @property
    def capabilities(self) -> Capabilities:
        return self._service.capabilities

    def stat(self, key: str) -> ObjectInfo:
        """One HEAD."""
        meta = self.run(key, lambda client: obstore.head(client, key))
        return self._described(meta, key)

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """One ranged GET, pinned to the tag; obstore's `get_range(s)` could not be."""
        url = self.url_of(key)
        options: GetOptions = {"range": (offset, offset + length)}
        if tag is not None:
            options["if_match"] = tag
        try:
            result = self._call(key, lambda client: obstore.get(client, key, options=options))
        except Failed as failed:
            other = failed.is_other_content and tag is not None
            unclear = other or failed.is_past_the_end or failed.is_unasked_whole
            problem = None if unclear else failed.error(url)
            whole = failed.is_unasked_whole
        else:
            info = self._described(result.meta, key)
            return receive(result, info, offset, length, buffer=buffer, tag=tag, url=url)
        if problem is not None:
            raise problem
        # Azure finds that a missing object has another content, and some servers send an empty one whole.
        info = self.stat(key)
        require_tag(info, tag, url)
        if whole and info.size:
            raise StoreError("the server ignored the range and sent the whole object", url=url)
        if info.size > offset:
            raise Unavailable("the object was replaced while it was being read", url=url)
        return Read(memoryview(b""), info)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """One PUT. `modified` is this machine's clock at the answer: obstore does not give the service's."""
        url, limit = self.url_of(key), self.capabilities.pieces.max_put
        if data.nbytes > limit:
            text = f"{data.nbytes} bytes in one write: the service takes {limit}"
            raise InvalidArgument(text, url=url)
        mode: PutMode = "create" if expect is Expect.ABSENT else "overwrite"
        if isinstance(expect, str):
            mode = {"e_tag": expect}
        attributes = {} if write_id is None else {_WRITE_ID: write_id}
        body = bytes(data) if self._service.keeps_memory else data
        problem: WStoreError
        try:
            result = self._call(
                key,
                lambda client: obstore.put(
                    client, key, body, mode=mode, attributes=attributes, use_multipart=False
                ),
            )
        except Failed as failed:
            problem = _write_problem(failed, expect, url)
        else:
            tag = normal_tag(result["e_tag"] or "")
            if not tag:
                raise StoreError("the reply to a write has no ETag", url=url)
            return ObjectInfo(data.nbytes, datetime.now(UTC), tag)
        raise problem

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """All pages, then sorted: services sort by other units than UTF-8 bytes, and one level's objects
        and prefixes come apart. So a listing is held in memory.

        Raises:
            InvalidPath: also where a foreign key below the prefix is one that obstore cannot carry.
        """
        found = self._all(prefix) if recursive else self._level(prefix)
        after = start_after.encode()
        entries = [entry for entry in found if entry.key.encode() > after]
        yield from sorted(entries, key=lambda entry: entry.key.encode())

    def delete(self, key: str) -> None:
        """One DELETE. obstore's memory does not say whether there was an object."""
        self.run(key, lambda client: obstore.delete(client, key))

    def close(self) -> None:
        """Forget this process's client and its connections; the next call makes another."""
        self._client.take()
        self._service.release()

    def feature(self, kind: type[F]) -> F | None:
        return self if kind in _FEATURES and isinstance(self, kind) else None

    def upload(self, key: str, *, size: int | None = None) -> Upload:
        """Begin a piecewise write. No request is sent."""
        limit = self.capabilities.pieces.max_object
        if size is not None and size > limit:
            text = f"an object of {size} bytes: the service takes {limit}"
            raise InvalidArgument(text, url=self.url_of(key))
        self._check(key)
        return self._service.begin_upload(self, key)

    def copy(self, source: str, target: str) -> ObjectInfo:
        """A copy by the service, which for one inside an account answers when it is done."""
        self._check(target)
        self.run(source, lambda client: obstore.copy(client, source, target))
        return self.stat(target)

    def wrote(self, key: str, write_id: str) -> bool:
        """One HEAD."""
        options: GetOptions = {"head": True}
        try:
            result = self.run(key, lambda client: obstore.get(client, key, options=options))
        except NotFound:
            return False
        return result.attributes.get(_WRITE_ID) == write_id

    def _all(self, prefix: str) -> builtins.list[Entry]:
        folder = prefix.removesuffix("/")

        def pages(client: ObjectStore) -> builtins.list[ObjectMeta]:
            return [meta for page in obstore.list(client, folder or None) for meta in page]

        return [self._entry(meta) for meta in self.run(folder, pages)]

    def _level(self, prefix: str) -> builtins.list[Entry]:
        folder = prefix.removesuffix("/")
        found = self.run(folder, lambda client: obstore.list_with_delimiter(client, folder or None))
        prefixes = [Entry(f"{name}/", None) for name in found["common_prefixes"]]
        return [*map(self._entry, found["objects"]), *prefixes]

    def url_of(self, key: str) -> str:
        """The URL that errors name."""
        return f"{self.url}/{printable(key, _MAX_KEY_CHARACTERS)}" if key else self.url

    def run(self, key: str, call: Callable[[ObjectStore], T]) -> T:
        """The result of a call about a key (or a prefix, "" for the root), its failure as our error."""
        try:
            return self._call(key, call)
        except Failed as failed:
            problem = failed.error(self.url_of(key))
        raise problem

    def _call(self, key: str, call: Callable[[ObjectStore], T]) -> T:
        if key:
            self._check(key)
        if not runtime.is_usable():
            raise ForkedProcess(
                "obstore was used before os.fork() and does not work in the child: start processes by "
                "'spawn' or 'forkserver', or use this store only in the child",
                url=self.url,
            )
        return attempt(lambda: call(self._client.get()))

    def _open(self) -> ObjectStore:
        runtime.note_use()
        return self._service.open_client()

    def _check(self, key: str) -> None:
        """Refuse what obstore or the service would not keep exactly."""
        url = self.url_of(key)
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise InvalidPath("a key must be valid unicode", url=url) from error
        if not key:
            raise InvalidPath("the root is not an object", url=url)
        if {"", ".", ".."} & set(key.split("/")):
            text = f"obstore carries no key with an empty, '.' or '..' segment: {key[:200]!r}"
            raise InvalidPath(text, url=url)
        if any(c < " " or c == "\x7f" or c in self._service.mangled for c in key):
            refused = " and ".join(["control characters", *map(repr, self._service.mangled)])
            raise InvalidPath(f"this store keeps no {refused} in a key: {key[:200]!r}", url=url)
        if len(key) > _MAX_KEY_CHARACTERS:
            raise InvalidPath(f"a key is longer than {_MAX_KEY_CHARACTERS} characters", url=url)

    def _entry(self, meta: ObjectMeta) -> Entry:
        return Entry(meta["path"], self._described(meta, meta["path"]))

    def _described(self, meta: ObjectMeta, key: str) -> ObjectInfo:
        tag = normal_tag(meta["e_tag"] or "")
        if not tag:
            raise StoreError("the reply has no ETag", url=self.url_of(key))
        return ObjectInfo(meta["size"], meta["last_modified"], tag)


def _write_problem(failed: Failed, expect: Expect | str, url: str) -> WStoreError:
    if expect is Expect.ABSENT and (failed.is_taken or failed.is_other_content):
        return AlreadyExists("there is an object under this key", url=url)
    if isinstance(expect, str):
        if failed.is_missing and failed.code != "ContainerNotFound":
            return PreconditionFailed("there is no object to replace", url=url)
        if failed.is_other_content:
            return PreconditionFailed("the object has another content than the tag names", url=url)
    return failed.error(url)
