"""The Store protocol: what each storage backend and each wrapper around one provides.

A key is the full name of an object inside the store: any string without a leading "/" (a bucket's key;
for POSIX the absolute path without its first slash). "" is the root itself and never an object. Offsets
and sizes are bytes. Every method is safe from any thread. A missing key is `NotFound`, never None.
Stores raise only `wstore.errors`, each naming the URL, and do not retry: `wrap.Retry` is the one place.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

MiB = 1 << 20
GiB = 1 << 30

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One content of one object: size in bytes, last change (aware, UTC), and the tag.

    The tag is opaque: two reads with equal tags saw the same content.
    """

    size: int
    modified: datetime
    tag: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a listing. `info` is None for a prefix (a directory)."""

    key: str
    info: ObjectInfo | None


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes of one ranged request, and the object they came from.

    `data` is the filled front of the caller's buffer, or memory of its own (writable or not).
    """

    data: memoryview
    info: ObjectInfo


class Expect(enum.Enum):
    """What a write demands of the key's present state; a str demands that tag."""

    ANY = "any"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class PieceLimits:
    """What the service accepts. `min_piece` binds all pieces but the last."""

    min_piece: int = 1
    max_piece: int = 5 * GiB
    max_pieces: int = 10_000
    max_put: int = 5 * GiB
    max_object: int = 1 << 63


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a store.

    Attributes:
        create_if_absent: `Expect.ABSENT` is atomic here. Where false it is `UnsupportedOperation`.
        if_match: a tag as `expect` is honoured. Where false it is `UnsupportedOperation`.
        directories: directories exist by themselves (POSIX), not only as prefixes of keys.
        durable: a write that returned survives a power cut.
        listing: what there is can be listed. Where false `list` is `UnsupportedOperation`.
        pieces: limits of uploads.
        request_bytes: the size of ranged read that pays best.
        concurrency: how many requests of that size in parallel pay.
        small_concurrency: how many in parallel pay when they are much smaller, and mostly wait.
        overwrite_interval_s: seconds between two writes of one key; sooner the service answers "slow
            down" (429), which is repeated, but late.
    """

    create_if_absent: bool
    if_match: bool
    directories: bool = False
    durable: bool = True
    listing: bool = True
    pieces: PieceLimits = PieceLimits()
    request_bytes: int = 8 * MiB
    concurrency: int = 8
    small_concurrency: int = 8
    overwrite_interval_s: float = 0.0


class Store(Protocol):
    """Where objects live. Six operations; what not every store can do is a feature (see `feature`)."""

    @property
    def url(self) -> str:
        """The root's URL, without secrets, without a trailing slash ("s3://bucket", "file://")."""

    @property
    def capabilities(self) -> Capabilities: ...

    def stat(self, key: str) -> ObjectInfo:
        """Describe the object. Raises NotFound; IsADirectory for a directory of a POSIX store
        (a prefix of an object store is NotFound: the path layer tells them apart)."""

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        buffer: memoryview | None = None,
        tag: str | None = None,
    ) -> Read:
        """One ranged request: bytes [offset, offset + length) of the object.

        Past the end the result is shorter; from the end on it is empty (and still carries the info).
        `length` >= 1 and `offset` >= 0 are the caller's duty.

        Args:
            buffer: writable, C-contiguous bytes of exactly `length`; filled from its front. Without it
                the store allocates what the object holds of the range, never more.
            tag: read only this content.

        Raises:
            ObjectChanged: `tag` was given and the object has another content now.
            BodyCut: the body ended early; carries what came. `wrap.Retry` resumes there.
        """

    def write(
        self,
        key: str,
        data: memoryview,
        *,
        expect: Expect | str = Expect.ANY,
        write_id: str | None = None,
    ) -> ObjectInfo:
        """Make the whole object in one atomic step: readers see the old one or all of the new one.

        Keeps no reference to `data` (C-contiguous bytes) after it returns. A failure leaves the old
        object and no debris. Parent directories are made where directories exist.

        Args:
            expect: `Expect.ABSENT` creates; a tag replaces only that content.
            write_id: a random id of this logical write, stamped on the object where the service keeps
                metadata, so that a lost answer can be settled by `Settle.wrote`.

        Raises:
            AlreadyExists: `Expect.ABSENT`, and there is an object.
            PreconditionFailed: another content than `expect`, or none.
            UnsupportedOperation: this store cannot promise `expect` atomically. Nothing was written.
        """

    def list(self, prefix: str, *, recursive: bool, start_after: str = "") -> Iterator[Entry]:
        """The entries whose key starts with `prefix`, in order of the key's UTF-8 bytes, each once.

        `prefix` is "" or ends with "/". Without `recursive`, keys with a further "/" are folded into
        one prefix entry whose key ends with "/". Lazily paged; nothing is cached; an absent prefix
        yields nothing (a missing bucket is NotFound). Unfinished writes are never listed.
        On stores with directories, `recursive` yields files only; an empty directory shows without it.
        """

    def delete(self, key: str) -> None:
        """Remove the object. Raises NotFound where the store can tell; an object store may not."""

    def close(self) -> None:
        """Release connections. Calls after this open new ones."""

    def feature(self, kind: type[F]) -> F | None:
        """This store as an optional protocol (Multipart, Copy, Directories, Sweep, Settle,
        Places), or None.

        A wrapper returns one that has the same wrapping.
        """


class Upload(Protocol):
    """A piecewise write in progress. Nothing is visible until `complete` returns."""

    def put(self, number: int, offset: int, data: memoryview) -> None:
        """Store piece `number` (from 0), which starts at byte `offset`. Thread-safe, any order, may be
        repeated for the same number (a retry). Keeps no reference to `data`."""

    def complete(self) -> ObjectInfo:
        """Publish atomically all pieces put, in order of their number."""

    def abort(self) -> None:
        """Drop everything; the old object stays. Idempotent; never raises for what is already gone."""


@runtime_checkable
class Multipart(Protocol):
    """Objects larger than memory, written in pieces."""

    def upload(self, key: str, *, size: int | None = None) -> Upload:
        """Begin an unconditional write of `key`. `size` is a hint for preallocation and striping."""


@runtime_checkable
class Copy(Protocol):
    """Copies inside one store without moving the bytes through the client."""

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy atomically, whatever the size. Raises NotFound naming the source."""


@runtime_checkable
class Directories(Protocol):
    """Directories that exist by themselves."""

    def is_dir(self, key: str) -> bool: ...

    def mkdir(self, key: str, *, parents: bool, exist_ok: bool) -> None: ...

    def rmdir(self, key: str) -> None:
        """Remove an empty directory. Raises DirectoryNotEmpty, NotADirectory, NotFound."""


@runtime_checkable
class Sweep(Protocol):
    """What killed writers left unfinished: temporary files, multipart uploads."""

    def sweep(self, prefix: str, *, older_than_s: float) -> list[str]:
        """Remove debris under `prefix` (recursively) older than that by the store's own clock;
        returns what was removed (temp names, or "key (upload id)"), for the log."""


@runtime_checkable
class Settle(Protocol):
    """Tells whether a write whose answer was lost took effect."""

    def wrote(self, key: str, write_id: str) -> bool:
        """Whether the present object carries this write id."""


@runtime_checkable
class Places(Protocol):
    """A store whose capabilities differ from place to place, as a tree of mounts has them."""

    def capabilities_at(self, key: str) -> Capabilities:
        """The capabilities for this key: an object, a directory, or where one will be."""


def capabilities_at(store: Store, key: str) -> Capabilities:
    """What the store can do for this key."""
    places = store.feature(Places)
    return store.capabilities if places is None else places.capabilities_at(key)
