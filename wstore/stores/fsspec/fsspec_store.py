"""Any protocol of fsspec as a store: checked reads, atomic writes where the protocol has one.

A key is a path below the root; one that fsspec would take for another (an empty, "." or ".." segment) is
refused. Nothing is cached. There is no create-if-absent and no condition on a tag: one publisher.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from wstore.errors import (
    ConnectionFailed,
    InvalidPath,
    NotFound,
    ObjectChanged,
    Unavailable,
    UnsupportedOperation,
)
from wstore.stores.base import Capabilities, Expect, Multipart, Read, Sweep
from wstore.stores.fsspec import fsspec_listing
from wstore.stores.fsspec.descriptions import described, is_directory
from wstore.stores.fsspec.failures import translated
from wstore.stores.fsspec.instances import Clients, path_of_root
from wstore.stores.fsspec.protocols import LIMITS, Publish, class_of, protocol_of
from wstore.stores.fsspec.publishing import SpooledUpload, publish, sweep_temps
from wstore.stores.s3.per_process import PerProcess

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Mapping

    from fsspec import AbstractFileSystem

    from wstore.stores.base import Entry, F, ObjectInfo

_ATTEMPTS = 50
_PAUSE_S = 0.002
_MAX_KEY_BYTES = 4096


class FsspecStore:
    """One root of one protocol. Safe from any thread (clients that are not take turns); a forked child
    connects anew."""

    def __init__(self, scheme: str, root: str) -> None:
        self._scheme = scheme
        self._root = root
        self.protocol = protocol_of(scheme)
        self._base = path_of_root(scheme, root)
        threads = self.protocol.threads or class_of(scheme).async_impl
        self._clients = PerProcess(lambda: Clients(scheme, root, threads=threads))
        self._capabilities = Capabilities(
            create_if_absent=False,
            if_match=False,
            durable=self.protocol.publish is Publish.PUT and scheme != "memory",
            pieces=LIMITS,
            overwrite_interval_s=1.0 if self.protocol.whole_seconds else 0.0,
        )

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a store is not pickled; a StoragePath is, and opens its own")

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._root}"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def url_of(self, key: str) -> str:
        """The URL that errors name."""
        shown = key.encode("utf-8", "backslashreplace").decode()[:_MAX_KEY_BYTES]
        return f"{self.url}/{''.join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)}"

    @contextlib.contextmanager
    def client(self, key: str, *, named: str = "") -> Iterator[tuple[AbstractFileSystem, str]]:
        """fsspec's file system, and what it calls the key. Its errors become wstore's; after a broken
        connection the next call makes a new one.

        Args:
            named: the key that errors name: the target's, where `key` is a temporary one.
        """
        url = self.url_of(named or key)
        path = self._path(key, url)
        try:
            with translated(url), self._clients.get().use() as files:
                yield files, path
        except ConnectionFailed:
            self._clients.take()
            raise

    def stat(self, key: str) -> ObjectInfo:
        """One `info`."""
        with self.client(key) as (files, path):
            raw = files.info(path)
        if is_directory(raw):
            raise NotFound("this is a directory, no object", url=self.url_of(key))
        return described(raw, self.url_of(key))

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """`info`, `cat_file`, and `info` again, until both describe one content: fsspec cannot pin one."""
        url = self.url_of(key)
        before = self.stat(key)
        for _ in range(_ATTEMPTS):
            if tag not in (None, before.tag):
                raise ObjectChanged("the object was replaced while it was being read", url=url)
            wanted = max(0, min(length, before.size - offset))
            if not wanted:
                return Read(memoryview(b""), before)
            with self.client(key) as (files, path):
                data = memoryview(self.protocol.fetch(files, path, offset, offset + wanted))
            after = self.stat(key)
            if after.tag == before.tag and len(data) == wanted:
                if buffer is None:
                    return Read(data, after)
                buffer[:wanted] = data
                return Read(buffer[:wanted], after)
            if after.tag == before.tag:
                text = f"{len(data)} bytes came of {wanted} that are there"
                raise Unavailable(text, url=url)
            before = after
            time.sleep(_PAUSE_S)
        raise Unavailable("the object is replaced faster than it can be read", url=url)

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """One PUT, or a hidden file that is renamed over the target. The result is what `info` says
        afterwards: where two write at once, perhaps the other's."""
        if expect is not Expect.ANY:
            text = f"fsspec has no conditional write for {self._scheme}://; one publisher at a time"
            raise UnsupportedOperation(text, url=self.url_of(key))
        self._require_writable(key)
        return publish(self, key, data)

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """One `ls` a directory."""
        found = fsspec_listing.entries(
            self._rows, prefix, recursive=recursive, after=start_after, url=self.url_of(prefix)
        )
        return (entry for entry in found if not fsspec_listing.is_hidden(entry.key))

    def delete(self, key: str) -> None:
        """`rm_file` of what `info` calls a file."""
        self._require_writable(key)
        self.stat(key)
        with self.client(key) as (files, path):
            files.rm_file(path)

    def close(self) -> None:
        """Forget the client of this process; fsspec closes its connections."""
        clients = self._clients.take()
        if clients is not None:
            clients.forget()

    def feature(self, kind: type[F]) -> F | None:
        offered = {Publish.PUT: (Multipart,), Publish.RENAME: (Multipart, Sweep), Publish.NEVER: ()}
        has = kind in offered[self.protocol.publish]
        return self if has and isinstance(self, kind) else None

    # Multipart

    def upload(self, key: str, *, size: int | None = None) -> SpooledUpload:
        """Begin an upload whose pieces are collected in a local file."""
        self._require_writable(key)
        return SpooledUpload(self, key)

    # Sweep

    def sweep(self, prefix: str, *, older_than_s: float) -> builtins.list[str]:
        """Remove the hidden files of killed writers."""
        return sweep_temps(self, prefix, older_than_s=older_than_s)

    def all_entries(self, prefix: str) -> Iterator[Entry]:
        """Every file under a prefix, temporary ones too."""
        url = self.url_of(prefix)
        return fsspec_listing.entries(self._rows, prefix, recursive=True, after="", url=url)

    def _rows(self, prefix: str) -> builtins.list[Mapping[str, object]]:
        """What is directly under a prefix. Raises NotFound."""
        with self.client(prefix.removesuffix("/")) as (files, path):
            try:
                rows = files.ls(path, detail=True)
            except FileNotFoundError:
                if self.protocol.buckets and path != self._base:
                    files.info(self._base)  # a missing bucket is an error, an absent prefix is none
                raise
        inside = f"{path.rstrip('/')}/"
        found: builtins.list[Mapping[str, object]] = []
        for row in rows:
            name = str(row["name"]).rstrip("/")
            if name.lstrip("/") == path.strip("/"):
                continue  # `ls` of a file gives the file
            rest = name.removeprefix(inside) if name.startswith(inside) else name.lstrip("/")
            rest = rest.removeprefix(inside.lstrip("/"))
            if rest and "/" not in rest:
                found.append({**row, "name": rest})
        return found

    def _path(self, key: str, url: str) -> str:
        if not key:
            return self._base or "/"
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise InvalidPath("a key must be valid Unicode", url=url) from error
        if size > _MAX_KEY_BYTES or "\0" in key or {"", ".", ".."} & set(key.split("/")):
            text = "fsspec takes no key with an empty, '.' or '..' segment, nor one so long"
            raise InvalidPath(text, url=url)
        return f"{self._base}/{key}"

    def _require_writable(self, key: str) -> None:
        url = self.url_of(key)
        if self.protocol.publish is Publish.NEVER:
            text = f"{self._scheme}:// is read-only here: {Publish.NEVER.value}"
            raise UnsupportedOperation(text, url=url)
        if not key:
            raise InvalidPath("the root is not an object", url=url)
        self._path(key, url)
