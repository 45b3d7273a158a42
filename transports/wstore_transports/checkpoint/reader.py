"""Reads whole weights: the newest version or an older one, all of it or boxes of some tensors."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Literal

from wstore.errors import (
    AccessDenied,
    ConnectionFailed,
    InvalidArgument,
    NoSpace,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
)
from wstore.path import StoragePath
from wstore_codecs.block import Block
from wstore_codecs.tensors import alias_key
from wstore_transports.checkpoint.export import export
from wstore_transports.checkpoint.fetch import Fetcher, plan, put
from wstore_transports.checkpoint.foreign import open_foreign
from wstore_transports.checkpoint.snapshot import Snapshot
from wstore_transports.checkpoint.targets import Target, allocate, borrow, check_names
from wstore_transports.errors import MirrorsFailed, NoRoot, NotARoot
from wstore_transports.versions import Root, Version
from wstore_transports.versions.mirrors import Mirrors
from wstore_transports.versions.poll import Poll

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wstore.progress import Progress
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.snapshot import Spec
    from wstore_transports.checkpoint.targets import Framework
    from wstore_transports.versions.documents import Anchor, Weights

BUDGET = 256 << 20
"""Bytes that a load may hold beside the tensors it returns or fills."""

Verify = Literal["before", "after", "never"]

_NO_LEASE = (
    AccessDenied,
    ConnectionFailed,
    MirrorsFailed,
    NoSpace,
    StoreError,
    StoreTimeout,
    Unavailable,
    UnsupportedOperation,
)

_log = logging.getLogger("wstore.checkpoint")


class CheckpointReader:
    """Follows a root, or reads one foreign safetensors directory or file. Safe from any thread.

    Each read leases its version, so that retention waits for it; where the reader cannot write (no
    right, a full disk, a store for reading only), it goes without and may find its version gone
    (`VersionGone`).

    Given several URLs of one root, it reads each object from the first that serves it sound: see
    `versions.mirrors.Mirrors`.
    """

    def __init__(
        self,
        root: StoragePath | str | Sequence[StoragePath | str] | Mirrors,
        *,
        reader: str | None = None,
    ) -> None:
        """Open lazily: nothing is read, and the root need not exist yet.

        Args:
            root: the root's URL, or that of a plain safetensors directory or file; or the URLs of
                mirrors of one root, the preferred one first (a `Mirrors` where its patience matters).
            reader: a name for this reader's leases (default: host and process).

        Raises:
            InvalidArgument: no URL, or one twice.
        """
        self._mirrors: Mirrors | None = None
        if isinstance(root, (str, StoragePath)):
            self._path = StoragePath(root)
        else:
            mirrors = root if isinstance(root, Mirrors) else Mirrors([*map(StoragePath, root)])
            self._path, self._mirrors = mirrors.path, mirrors
        self._reader = reader
        self._root: Root | None = None

    @property
    def root(self) -> Root:
        """The root; of mirrors, that at the first that answers. Raises NotARoot where there is none
        (yet), or a foreign directory."""
        if self._mirrors is not None:
            return self._mirrors.root()
        if self._root is None:
            self._root = Root.open(self._path)
        return self._root

    def latest(self) -> Version:
        """The newest version; of mirrors, the newest that any of them shows, and never an older one
        than before. Raises NoVersion, NotARoot."""
        return self._followed.latest()

    def versions(self) -> list[Version]:
        """All versions that can be read, oldest first. Raises NotARoot."""
        return self._followed.versions()

    def wait(
        self,
        after: int | Version = 0,
        timeout: float = 600.0,
        *,
        cancel: threading.Event | None = None,
    ) -> Version:
        """The newest version once there is one newer than `after`; also waits for the root itself.

        Raises:
            WaitTimeout: none within `timeout` seconds. RunEnded: none will come. Cancelled.
        """
        number = after if isinstance(after, int) else after.number
        if self._mirrors is not None:
            return self._mirrors.wait(number, timeout=timeout, cancel=cancel)
        poll = Poll(timeout, cancel, url=self._path.url)
        if self._root is None:
            (self._path / "wstore.json").wait(timeout, cancel=cancel)
        root = poll.look(lambda: self.root)
        return root.wait(number, timeout=poll.remaining_s, cancel=cancel)

    def tensors(self, version: int | Version | None = None) -> dict[str, Spec]:
        """What the version holds, by name; tied names too. Reads no tensor."""
        with self._open(version) as snapshot:
            return snapshot.specs()

    def load(
        self,
        version: int | Version | None = None,
        names: Iterable[str] | None = None,
        box: Mapping[str, tuple[slice, ...]] | None = None,
        out: Mapping[str, Array] | None = None,
        *,
        framework: Framework = "numpy",
        verify: Verify = "before",
        budget: int = BUDGET,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> dict[str, Array]:
        """Read tensors into new memory, or into the caller's.

        Every byte is checked against the manifest's hashes, a block of at most 8 MiB at a time; of a
        sliced tensor the blocks that the slice touches are read. Small blocks share requests.

        With `out`, the old weights stay intact unless all of the new ones are known to be good
        (`verify="before"`): what fits the budget is read, verified and then copied; anything larger is
        read twice, first to verify it, then straight into `out` (verified again: only bytes that
        changed between the two reads can still spoil it, and then the error says so). To read once,
        choose between `verify="after"` (straight into `out`; an error leaves it a mixture) and loading
        into new memory.

        Args:
            version: which one; the newest by default.
            names: what to load; everything by default. Tied names resolve.
            box: by tensor, the slices (step 1) to read of it; others are read whole.
            out: memory by name: torch or numpy, any strides, any device. It must fit exactly: every
                tensor of the version (or of `names`), each with its shape and dtype.
            framework: of new memory: "numpy" (bf16 and fp8 by ml_dtypes) or "torch".
            verify: "before", "after", or "never".
            budget: bytes to hold beside the result; at least one block (8 MiB) is.

        Returns:
            By name, in the version's order; tied names are one array. With `out`, its arrays.

        Raises:
            InvalidArgument: names, shapes or dtypes that do not fit, listed; nothing was written.
            IntegrityError: naming tensor and URL.
            VersionGone: retention let it go. NoVersion, NotARoot.
            UnsupportedOperation: the version holds only what changed; a `delta.Subscriber` reads it.
        """
        chosen = None if names is None else list(names)
        with self._open(version) as snapshot, snapshot.explained():
            targets, arrays = _targets(snapshot, chosen, box or {}, out, framework)
            fetcher = Fetcher(
                snapshot.objects(),
                verify=verify != "never",
                budget=budget,
                progress=progress,
                cancel=cancel,
            )
            requests = plan(targets)
            if out is not None and verify == "before":
                if sum(request.nbytes for request in requests) <= budget:
                    for request, data in zip(requests, fetcher.stage(requests), strict=True):
                        put(request, data)
                    return arrays
                fetcher.check(requests)
            try:
                fetcher.read(requests)
            except Exception as error:
                if out is not None:
                    error.add_note("the arrays in `out` now hold a mixture of old and new weights")
                raise
            return arrays

    def download(
        self,
        version: int | Version | None,
        local_dir: str | os.PathLike[str],
        *,
        max_file_bytes: int = 4 << 30,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Path:
        """Write a version as a plain safetensors directory that any library loads.

        Shards are merged; tied names are stored once and named in the file's metadata; one file is
        "model.safetensors", several come with "model.safetensors.index.json". Extra files go along.
        Everything is verified. The directory appears complete or not at all.

        Raises:
            AlreadyExists: the directory exists and is not empty. IntegrityError, VersionGone.
        """
        with self._open(version) as snapshot, snapshot.explained():
            return export(
                snapshot,
                local_dir,
                max_file_bytes=max_file_bytes,
                progress=progress,
                cancel=cancel,
            )

    @property
    def _followed(self) -> Root | Mirrors:
        return self.root if self._mirrors is None else self._mirrors

    def _open(self, version: int | Version | None) -> AbstractContextManager[Snapshot]:
        """The version, leased while the context lasts."""
        number = version if version is None or isinstance(version, int) else version.number
        if self._mirrors is not None:
            return _mirrored_snapshot(self._mirrors, number, self._reader)
        return leased_snapshot(self._path, number, root=self._root, reader=self._reader)


@contextmanager
def leased_snapshot(
    path: StoragePath,
    number: int | None,
    *,
    root: Root | None = None,
    reader: str | None = None,
) -> Iterator[Snapshot]:
    """A version of a root (None: the newest), leased while the context lasts; or a foreign directory.

    Raises:
        NotARoot: neither is here, or the root's marker is damaged (NoRoot: nothing at all is here).
        NoVersion, VersionGone. InvalidArgument: a version of a foreign one. UnsupportedOperation: a
            version that has no whole weights, only what changed.
    """
    try:
        found = root or Root.open(path)
    except NoRoot:
        foreign = open_foreign(path)
        if foreign is None:
            raise _neither(path) from None
        if number is not None:
            raise InvalidArgument(
                "a plain safetensors directory has no versions", url=path.url
            ) from None
        yield foreign
        return
    with leased_version(found, reader, number) as version:
        yield Snapshot(version.whole(_anchor_of(version)), found.path, version)


def _anchor_of(version: Version) -> Weights | Anchor:
    """The record of the version's whole weights. Raises UnsupportedOperation where it has none."""
    anchor = version.anchor()
    if anchor is None:
        raise UnsupportedOperation(
            f"version {version.number} holds what changed since version {version.base}, and no whole "
            "weights: read it with wstore_transports.delta.Subscriber, or write it out with `wstore pull`",
            url=version.object(version.record.manifest.name).url,
        )
    return anchor


def _neither(path: StoragePath) -> NotARoot:
    what = "neither a root nor a safetensors file or directory"
    if path.exists():
        return NotARoot(f"this is {what}", url=path.url)
    return NoRoot(f"there is nothing here, so it is {what}", url=path.url)


@contextmanager
def _mirrored_snapshot(
    mirrors: Mirrors, number: int | None, reader: str | None
) -> Iterator[Snapshot]:
    with leased_version(mirrors, reader, number) as version:
        manifest = mirrors.whole(version, _anchor_of(version))
        yield Snapshot(manifest, version.place.path, version, mirrors)


@contextmanager
def leased_version(
    root: Root | Mirrors, reader: str | None, number: int | None
) -> Iterator[Version]:
    """A version (None: the newest), under a lease that covered everything before the log was looked at."""
    try:
        lease = root.lease(reader)
    except _NO_LEASE as error:
        _log.warning("reading without a lease: %s", error)
        yield root.latest() if number is None else root.version(number)
        return
    with lease:
        found = root.latest() if number is None else root.version(number)
        try:
            lease.narrow(found.number)
        except _NO_LEASE as error:
            _log.warning("the lease stays one of everything: %s", error)
        yield found


def _targets(
    snapshot: Snapshot,
    names: list[str] | None,
    boxes: Mapping[str, tuple[slice, ...]],
    out: Mapping[str, Array] | None,
    framework: Framework,
) -> tuple[list[Target], dict[str, Array]]:
    """What to fill, each memory once, and what to return."""
    have = snapshot.names()
    wanted = names if names is not None else list(have if out is None else out)
    check_names(dict.fromkeys(wanted), have, exact=names is None)
    stray = [name for name in boxes if name not in wanted]
    if stray or (out is not None and set(out) != set(wanted)):
        lacking = stray or sorted(set(out or ()) ^ set(wanted))
        raise InvalidArgument(f"`names`, `box` and `out` do not belong together: {lacking[:10]}")
    targets: dict[object, Target] = {}
    result: dict[str, Array] = {}
    for name in wanted:
        tensor = snapshot.tensor(name)
        shape = tuple(tensor.shape)
        cut = (
            box_of(have[name], shape, boxes[name])
            if name in boxes
            else Block.whole(have[name], shape)
        )
        if out is None:
            key: object = (have[name], cut)
            target = targets.get(key) or allocate(have[name], tensor, cut, framework)
        else:
            target = borrow(have[name], tensor, cut, out[name])
            key = (have[name], cut, alias_key(out[name], name=name))
        result[name] = target.array
        targets.setdefault(key, target)
    return list(targets.values()), result


def box_of(name: str, shape: tuple[int, ...], cut: tuple[slice, ...]) -> Block:
    """The box that slices (step 1, missing ones whole) cut from a tensor. Raises InvalidArgument."""
    if len(cut) > len(shape) or any(part.step not in (None, 1) for part in cut):
        raise InvalidArgument(
            f"tensor {name!r}: {cut} is not a box of shape {shape}: at most one slice a dimension, step 1"
        )
    full = (*cut, *(slice(None) for _ in shape[len(cut) :]))
    spans = [part.indices(length) for part, length in zip(full, shape, strict=True)]
    origin = tuple(start for start, _, _ in spans)
    return Block(name, origin, tuple(max(0, stop - start) for start, stop, _ in spans))
