"""Publishes whole weights: plain safetensors files per rank, then one log record that makes them a version."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstore.errors import IntegrityError, InvalidArgument, NewerFormat, WStoreError
from wstore.path import StoragePath
from wstore_codecs.digest import warm
from wstore_transports.checkpoint.contribution import Contribution
from wstore_transports.checkpoint.extra_files import FILE_KEY, check_file
from wstore_transports.checkpoint.file_stream import FileStream
from wstore_transports.checkpoint.index import write_index
from wstore_transports.checkpoint.pieces import collect
from wstore_transports.checkpoint.placement import MAX_FILE_BYTES, plan_files
from wstore_transports.checkpoint.shared_objects import SharedObjects
from wstore_transports.checkpoint.sharing import plan_sharing
from wstore_transports.errors import VersionGone
from wstore_transports.versions import Retention, enter
from wstore_transports.versions.janitor import Janitor

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from wstore.progress import Progress
    from wstore_codecs.tensors import Array
    from wstore_transports.checkpoint.pieces import Inventory, Piece, Shard, Tensors
    from wstore_transports.versions import Attempt, Version
    from wstore_transports.versions.documents import Manifest

_log = logging.getLogger("wstore.checkpoint")

MANY_TENSORS = 1_000
"""From here on loading the compiled digest pays even when every tensor is small."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What one `write` did.

    Attributes:
        version: the number under which readers see it.
        step: the trainer's label.
        digest: the model digest.
        nbytes: bytes of all objects of the version, of all ranks.
        rank_nbytes: bytes of the tensors that this rank handed in, tied ones once.
        written_nbytes: bytes that this rank wrote; the rest is shared with the version before.
        tensors: names in the version, tied ones each counted.
        seconds: from the call to the commit.
    """

    version: int
    step: int
    digest: str
    nbytes: int
    rank_nbytes: int
    written_nbytes: int
    tensors: int
    seconds: float


class CheckpointWriter:
    """Writes versions of whole weights under a root; one instance a rank, used by one thread at a time.

    Starting one takes the root over: a writer of an earlier start can commit nothing more (`Fenced`).
    A context manager: leaving it normally says that the run has ended, so that waiting readers stop;
    leaving it by an exception does not.
    """

    def __init__(
        self,
        root: StoragePath | str,
        rank: int = 0,
        world_size: int = 1,
        *,
        keep: int | None = None,
        run: str = "main",
        launch: str = "",
        max_file_bytes: int = MAX_FILE_BYTES,
        timeout_s: float = 600.0,
    ) -> None:
        """Open (rank 0: make or take over) the root.

        Args:
            root: where the versions live; made when absent.
            rank, world_size: this process, and how many write each version together.
            keep: newest versions to keep; older ones that no reader leases are deleted after each
                commit, in the background. None keeps all.
            run: a name for what is being trained; part of the objects' names.
            launch: what all ranks of this start of the job share and no earlier start had (a job id
                with its restart count). Needed when `world_size` > 1.
            max_file_bytes: where a rank starts its next file; a larger tensor has a file of its own.
            timeout_s: how long ranks wait for one another.

        Raises:
            InvalidArgument: values that do not fit together. NewerFormat, IntegrityError, AccessDenied:
                of the root.
        """
        if max_file_bytes < 1:
            raise InvalidArgument(f"max_file_bytes={max_file_bytes}: at least 1")
        retention = None if keep is None else Retention(keep_last=keep)
        self._timeout_s = timeout_s
        self._max_file_bytes = max_file_bytes
        path = root if isinstance(root, StoragePath) else StoragePath(root)
        self.root, self._session = enter(
            path, rank=rank, ranks=world_size, run=run, launch=launch, timeout_s=timeout_s
        )
        self._objects = SharedObjects(self.root)
        self._janitor: Janitor | None = None
        if rank == 0:
            self._janitor = Janitor(self.root, retention)

    def write(
        self,
        step: int,
        tensors: Tensors | Iterable[tuple[str, Array | Shard]],
        *,
        files: Mapping[str, bytes] | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> CheckpointReport:
        """Publish one version; returns when it is committed and readers can see it.

        All ranks call this with the same step. Each passes what it shall write: whole arrays or
        `Shard`s; together they must cover every tensor exactly. Nothing is copied but what is not
        row-major in host memory, a block at a time, so the arrays must not change until this returns.
        Tensors that are the same memory (tied weights) are stored once under the first name.
        Files that hold mostly what the previous version held are referenced, not written again; what this
        writer did not write itself is read once before, so that damage is not handed on.

        Args:
            step: the trainer's label; may repeat or fall.
            tensors: by name, or pairs of name and value: numpy (with ml_dtypes), torch (any device), any
                strides, or `Shard`.
            files: small files to go along, such as "config.json"; `download` puts them back. Rank 0's.
            progress: called with the bytes this rank has written and will write.

        Raises:
            InvalidArgument: names, dtypes, shards that cannot be stored; nothing was written then.
            AttemptAborted: another rank failed, or the ranks' pieces do not cover a tensor exactly.
            Fenced: another writer has taken over.
            Whatever the store raises. In each case no version appears and the older ones are intact,
            unless a note on the error says that the version was committed before it.
        """
        started = time.monotonic()
        extra = files or {}
        try:
            inventory = self._collect(tensors, extra)
        except Exception as error:
            self._give_up(step, error)
            raise
        if len(inventory.pieces) >= MANY_TENSORS:
            warm()
        with self._session.open_attempt(step, timeout=self._timeout_s) as attempt:
            given = Contribution(attempt)
            self._add_tensors(attempt, given, inventory, progress, cancel)
            for name, data in extra.items():
                stored = f"{_own(attempt)}file.{name}"
                attempt.path(stored).write_file(data, cancel=cancel)
                given.add_file(FILE_KEY + name, stored, data)
            attempt.done(
                given.objects,
                given.tensors,
                aliases=dict(inventory.aliases),
                metadata=given.metadata,
            )
            version = attempt.commit(timeout=self._timeout_s, cancel=cancel)
        if self._janitor is not None:
            self._janitor.wake()
        manifest = _committed_manifest(version)
        if attempt.rank == 0:
            write_index(version, manifest)
        return _report(version, manifest, inventory, given, time.monotonic() - started)

    def end(self) -> None:
        """Say that no version will follow (rank 0), so that readers who wait get `RunEnded`."""
        if self._session.rank == 0:
            self._session.end()

    def close(self) -> None:
        """Stop the background work of this writer. Idempotent."""
        if self._janitor is not None:
            self._janitor.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            self.close()

    def _collect(
        self,
        tensors: Tensors | Iterable[tuple[str, Array | Shard]],
        files: Mapping[str, bytes],
    ) -> Inventory:
        inventory = collect(tensors)
        if not inventory.pieces and self._session.ranks == 1:
            raise InvalidArgument("there are no tensors to write", url=self.root.path.url)
        for name, data in files.items():
            check_file(name, data)
        return inventory

    def _give_up(self, step: int, error: Exception) -> None:
        """Tell the other ranks, who would wait for this one until their timeout."""
        if self._session.ranks == 1:
            return
        try:
            attempt = self._session.open_attempt(step, timeout=self._timeout_s)
            attempt.abort(f"rank {attempt.rank}: {error}")
        except WStoreError as second:
            error.add_note(f"and the other ranks could not be told: {second}")

    def _add_tensors(
        self,
        attempt: Attempt,
        given: Contribution,
        inventory: Inventory,
        progress: Progress | None,
        cancel: threading.Event | None,
    ) -> None:
        base = _base(attempt)
        plan = plan_sharing(inventory.pieces, base)
        if base is not None:
            plan = plan.without(self._objects.damaged(base, plan.objects(), cancel))
            for shared in plan.shared:
                given.add_shared(shared, base)
        files = [
            *plan_files(plan.still, self._max_file_bytes),
            *plan_files(plan.moved, self._max_file_bytes),
        ]
        streams = [
            FileStream(pieces, metadata=_tied(pieces, inventory), url=attempt.directory.url)
            for pieces in files
        ]
        total = sum(stream.size for stream in streams)
        for number, stream in enumerate(streams, 1):
            name = f"{_own(attempt)}{number:05d}.safetensors"
            report = None if progress is None else _offset(progress, given.written_nbytes, total)
            try:
                attempt.path(name).write_file(stream.chunks(), progress=report, cancel=cancel)
            except Exception as error:
                error.add_note(
                    f"while writing tensor {stream.current!r} to {attempt.path(name).url}"
                )
                raise
            given.add_written(name, stream)
            self._objects.wrote(attempt.object_name(name))


def _base(attempt: Attempt) -> Manifest | None:
    """The manifest to share from. Without it all is written: a rank may always do that."""
    try:
        return attempt.shared()
    except (IntegrityError, NewerFormat, VersionGone) as error:
        _log.warning("nothing is shared with the version before, all is written: %s", error)
        return None


def _own(attempt: Attempt) -> str:
    return f"r{attempt.rank:05d}."


def _offset(progress: Progress, before: int, total: int) -> Progress:
    def report(done: int, _: int | None) -> None:
        progress(before + done, total)

    return report


def _tied(pieces: Sequence[Piece], inventory: Inventory) -> dict[str, str]:
    """A file's metadata: "format" as the Hugging Face libraries want it, and its tied names."""
    names = {piece.name for piece in pieces}
    tied = {alias: name for alias, name in inventory.aliases.items() if name in names}
    return {**{alias: name for alias, name in tied.items() if alias != "format"}, "format": "pt"}


def _committed_manifest(version: Version) -> Manifest:
    try:
        return version.manifest()
    except WStoreError as error:
        error.add_note(f"version {version.number} is committed all the same")
        raise


def _report(
    version: Version,
    manifest: Manifest,
    inventory: Inventory,
    given: Contribution,
    seconds: float,
) -> CheckpointReport:
    return CheckpointReport(
        version=version.number,
        step=version.step,
        digest=version.digest,
        nbytes=version.record.nbytes,
        rank_nbytes=inventory.nbytes,
        written_nbytes=given.written_nbytes,
        tensors=len(manifest.tensors) + len(manifest.aliases),
        seconds=seconds,
    )
